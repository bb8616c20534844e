"""The parameters that only a lock on several servers has: checked before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock.errors import ConfigurationError
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.quorum import default_server_timeout

from .options import LONGEST_TTL, check_options, check_seconds
from .redlock_core import RedlockCore
from .redlock_steps import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from .events import Observer

PAUSES = (0.05, 0.25)
SHORTEST_PAUSE = 0.001


def make_core(
    name: str,
    *,
    ttl: float | None,
    server_timeout: float | None,
    longest_ttl: float | None,
    pauses: tuple[float, float],
    renew: bool | None,
    max_hold: float | None,
    on_lost: Callable[[Any], object] | None,
    blocking: bool,
    blocking_timeout: float | None,
    thread_local: bool,
    observer: Observer | None,
    prefix: str,
) -> RedlockCore:
    """Return the core of a lock with these parameters; see Redlock.

    Raises:
        ConfigurationError: If one of them is not usable.
    """
    keys = LockKeys.of(name, prefix)
    options = check_options(
        ttl=ttl,
        timeout=None,
        sleep=None,
        renew=renew,
        max_hold=max_hold,
        blocking_timeout=blocking_timeout,
        replicas=0,
        on_lost=on_lost,
        observer=observer,
        blocking=blocking,
        thread_local=thread_local,
        raise_on_release_error=True,
    )
    return RedlockCore(
        name, keys, options, _check_limits(options.ttl, server_timeout, longest_ttl, pauses)
    )


def _check_limits(
    ttl: float,
    server_timeout: float | None,
    longest_ttl: float | None,
    pauses: tuple[float, float],
) -> Limits:
    if server_timeout is None:
        server_timeout = min(default_server_timeout(ttl), ttl)
    check_seconds("server_timeout", server_timeout, least=SHORTEST_PAUSE, most=ttl)
    if longest_ttl is None:
        longest_ttl = ttl
    check_seconds("longest_ttl", longest_ttl, least=0.0, most=LONGEST_TTL)
    if 0 < longest_ttl < ttl:
        raise ConfigurationError(
            f"longest_ttl must be 0 or at least the ttl of {ttl:g} seconds, not {longest_ttl!r}"
        )
    if not isinstance(pauses, (tuple, list)) or len(pauses) != 2:  # noqa: PLR2004 - from, to
        raise ConfigurationError(f"pauses must be two numbers of seconds, not {pauses!r:.80}")
    shortest = check_seconds("pauses[0]", pauses[0], least=SHORTEST_PAUSE)
    longest = check_seconds("pauses[1]", pauses[1], least=shortest)
    return Limits(float(server_timeout), float(longest_ttl), (shortest, longest))
