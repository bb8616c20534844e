"""The arguments that locks take because those of redis-py and of threading take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock.errors import ConfigurationError
from bloomlock.runtime.clients import CLIENTS

from .options import check_flag, check_seconds

if TYPE_CHECKING:
    from .options import LockOptions

NOT_GIVEN = -1
"""The time limit of `acquire` that leaves it to the lock object."""


def in_order(name: Any, client: Any) -> tuple[str, Any]:
    """Return name and client; `r.lock(name, lock_class=Lock)` gives them the other way round."""
    return (client, name) if isinstance(name, CLIENTS) else (name, client)


def seconds_to_wait(
    usual: LockOptions,
    blocking: bool | None,
    timeout: float | None,
    blocking_timeout: float | None,
    sleep: float | None,
) -> float | None:
    """Return how long `acquire` waits: seconds, 0 for not at all, None for ever.

    Raises:
        ConfigurationError: If the arguments contradict each other, as threading.Lock raises then.
    """
    if timeout is None:
        timeout = NOT_GIVEN
    if blocking is sleep is blocking_timeout is None and timeout == NOT_GIVEN:
        return usual.wait_s
    if sleep is not None:
        check_seconds("sleep", sleep, least=0.0)
    if blocking_timeout is not None:
        blocking_timeout = check_seconds("blocking_timeout", blocking_timeout, least=0.0)
        if timeout != NOT_GIVEN:
            raise ConfigurationError("timeout and blocking_timeout mean the same; give one of them")
    given = blocking_timeout
    if timeout != NOT_GIVEN:
        given = check_seconds("timeout (other than -1)", timeout, least=0.0)
    blocking = usual.blocking if blocking is None else check_flag("blocking", blocking)
    if not blocking:
        if timeout != NOT_GIVEN:
            raise ConfigurationError(f"timeout must be -1 if blocking is False, not {timeout!r}")
        return 0.0
    return given if given is not None else usual.blocking_timeout


def check_token(token: str | bytes | None) -> bytes | None:
    """Return a token given by the caller, as bytes.

    Raises:
        ConfigurationError: If it cannot stand in a queue.
    """
    if token is None:
        return None
    data = token.encode(errors="replace") if isinstance(token, str) else token
    if isinstance(token, str) and data.decode() != token:
        raise ConfigurationError(f"token must be a text that has a UTF-8 form, not {token!r:.80}")
    if not isinstance(data, bytes) or data.split() != [data]:
        raise ConfigurationError(f"token must be a text without spaces, not {token!r:.80}")
    if data.startswith(b"="):
        raise ConfigurationError(f"token must not start with '=', as {token!r:.80} does")
    return data
