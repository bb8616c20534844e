"""The parameters of a lock: checked before anything is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypedDict

from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .events import Observer

NOT_GIVEN = -1
"""The time limit of `acquire` that leaves it to the lock object."""
DEFAULT_TTL = 30.0
SHORTEST_TTL = 0.05
LONGEST_TTL = 365 * 86_400.0
CONFIRM_SECONDS = 1.0
"""How long replicas have to acknowledge a grant."""


class LockParameters(TypedDict, total=False):
    """The parameters of a lock that are given by name, for type checkers."""

    renew: bool | None
    max_hold: float | None
    on_lost: Callable[[Any], object] | None
    blocking: bool
    blocking_timeout: float | None
    thread_local: bool
    replicas: int
    observer: Observer | None
    prefix: str
    timeout: float | None
    sleep: float | None
    raise_on_release_error: bool


@dataclass(frozen=True)
class LockOptions:
    """See Lock for what they mean."""

    ttl: float
    renew: bool
    max_hold: float | None
    on_lost: Callable[[Any], object] | None
    blocking: bool
    blocking_timeout: float | None
    thread_local: bool
    replicas: int
    observer: Observer | None
    raise_on_release_error: bool

    @cached_property
    def seconds_to_wait(self) -> float | None:
        """How long `acquire` waits if its caller does not say: 0 for not at all, None for ever."""
        return self.blocking_timeout if self.blocking else 0.0

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds; no longer than the lock may be held."""
        longest = self.ttl if self.max_hold is None else self.max_hold
        return milliseconds(min(self.ttl, longest))


def check_options(
    *,
    ttl: float | None,
    timeout: float | None,
    sleep: float | None,
    renew: bool | None,
    max_hold: float | None,
    blocking_timeout: float | None,
    replicas: int,
    on_lost: Callable[[Any], object] | None,
    observer: Observer | None,
    blocking: bool,
    thread_local: bool,
    raise_on_release_error: bool,
) -> LockOptions:
    """Return the options of a lock.

    Raises:
        ConfigurationError: If one of them is not usable.
    """
    if timeout is not None and ttl is not None:
        raise ConfigurationError("ttl and timeout mean the same here; give one of them")
    if sleep is not None:
        # A waiter is woken, so there is nothing to sleep for; redis-py's word is understood.
        check_seconds("sleep", sleep, least=0.0)
    if max_hold is not None:
        check_seconds("max_hold", max_hold, least=SHORTEST_TTL)
    if blocking_timeout is not None:
        check_seconds("blocking_timeout", blocking_timeout, least=0.0)
    if not isinstance(replicas, Integral) or isinstance(replicas, bool) or replicas < 0:
        raise ConfigurationError(f"replicas must be a whole number from 0 on, not {replicas!r:.80}")
    for name, flag in (
        ("blocking", blocking),
        ("thread_local", thread_local),
        ("raise_on_release_error", raise_on_release_error),
    ):
        check_flag(name, flag)
    if renew is not None:
        check_flag("renew", renew)
    for name, function in (("on_lost", on_lost), ("observer", observer)):
        if function is not None and not callable(function):
            raise ConfigurationError(f"{name} must be a function or None, not {function!r:.80}")
    return LockOptions(
        ttl=check_lease(timeout, "timeout") if timeout is not None else check_lease(ttl),
        # redis-py's timeout is the longest a lock is held, so it is not renewed.
        renew=timeout is None if renew is None else renew,
        max_hold=None if max_hold is None else float(max_hold),
        on_lost=on_lost,
        blocking=bool(blocking),
        blocking_timeout=None if blocking_timeout is None else float(blocking_timeout),
        thread_local=bool(thread_local),
        replicas=int(replicas),
        observer=observer,
        raise_on_release_error=raise_on_release_error,
    )


def check_lease(ttl: float | None, name: str = "ttl") -> float:
    """Return a lease in seconds; None: the usual one."""
    if ttl is None:
        return DEFAULT_TTL
    return check_seconds(name, ttl, least=SHORTEST_TTL, most=LONGEST_TTL)


def check_seconds(name: str, value: object, *, least: float, most: float = math.inf) -> float:
    """Return `value`, or raise ConfigurationError if it is no number of seconds from `least` on."""
    # NumPy's numbers too.
    usable = isinstance(value, Real) and not isinstance(value, bool)
    if not usable or math.isnan(value) or not least <= value <= most:  # type: ignore[arg-type,operator]  # narrowed above
        limits = f"from {least:g}" + (f" to {most:g}" if most < math.inf else " on")
        raise ConfigurationError(f"{name} must be a number of seconds {limits}, not {value!r:.80}")
    return float(value)  # type: ignore[arg-type]  # a number by now


def check_flag(name: str, value: object) -> None:
    """Raise ConfigurationError if `value` is not True or False."""
    # threading.Lock is often asked by acquire(0); NumPy's True and False are no numbers.
    is_flag = isinstance(value, Integral) or str(getattr(value, "dtype", "")) == "bool"
    if not is_flag or value not in (0, 1):
        raise ConfigurationError(f"{name} must be True or False, not {value!r:.80}")


def seconds_to_wait(
    options: LockOptions,
    blocking: bool | None,
    timeout: float | None,
    blocking_timeout: float | None,
    sleep: float | None,
) -> float | None:
    """Return how long `acquire` waits: seconds, 0 for not at all, None for ever.

    Raises:
        ConfigurationError: If the arguments contradict each other, as threading.Lock raises then.
    """
    if sleep is not None:
        check_seconds("sleep", sleep, least=0.0)
    if blocking_timeout is not None:
        blocking_timeout = check_seconds("blocking_timeout", blocking_timeout, least=0.0)
    if timeout is None:
        timeout = NOT_GIVEN
    if blocking_timeout is not None and timeout != NOT_GIVEN:
        raise ConfigurationError("timeout and blocking_timeout mean the same; give one of them")
    if timeout == NOT_GIVEN:
        given = blocking_timeout
    else:
        given = check_seconds("timeout (other than -1)", timeout, least=0.0)
    if blocking is None:
        blocking = options.blocking
    else:
        check_flag("blocking", blocking)
    if not blocking:
        if timeout != NOT_GIVEN:
            raise ConfigurationError(f"timeout must be -1 if blocking is False, not {timeout!r}")
        return 0.0
    return given if given is not None else options.blocking_timeout


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))
