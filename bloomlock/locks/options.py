"""The options of locks: declared once, and checked before anything is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypedDict

from bloomlock.errors import ConfigurationError
from bloomlock.keys import DEFAULT_PREFIX

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


class SharedParameters(TypedDict, total=False):
    """The options that all locks take by name, for type checkers."""

    renew: bool | None
    max_hold: float | None
    on_lost: Callable[[Any], object] | None
    blocking: bool
    blocking_timeout: float | None
    thread_local: bool
    observer: Observer | None
    prefix: str


class LockParameters(SharedParameters, total=False):
    """The options of a lock on one server."""

    timeout: float | None
    sleep: float | None
    replicas: int
    raise_on_release_error: bool


class RedlockParameters(SharedParameters, total=False):
    """The options of a lock on several servers."""

    server_timeout: float | None
    longest_ttl: float | None
    pauses: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LockOptions:
    """The options of a lock, checked when they are made; see Lock for what they mean.

    Attributes:
        lease_s: The lease in seconds.
        lease_ms: The lease in milliseconds; no longer than the lock may be held.
        renews: Whether it is renewed.
        wait_s: How many seconds `acquire` waits if its caller does not say; None: for ever.

    Raises:
        ConfigurationError: If one of them is not usable.
    """

    ttl: float | None = None
    timeout: float | None = None
    sleep: float | None = None
    renew: bool | None = None
    max_hold: float | None = None
    on_lost: Callable[[Any], object] | None = None
    blocking: bool = True
    blocking_timeout: float | None = None
    thread_local: bool = True
    replicas: int = 0
    observer: Observer | None = None
    raise_on_release_error: bool = True
    prefix: str = DEFAULT_PREFIX
    lease_s: float = field(init=False)
    lease_ms: int = field(init=False)
    renews: bool = field(init=False)
    wait_s: float | None = field(init=False)

    def __post_init__(self) -> None:
        if self.timeout is not None and self.ttl is not None:
            raise ConfigurationError("ttl and timeout mean the same here; give one of them")
        for name, least in (("sleep", 0.0), ("max_hold", SHORTEST_TTL), ("blocking_timeout", 0.0)):
            if (seconds := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_seconds(name, seconds, least=least))
        replicas = self.replicas
        if not isinstance(replicas, Integral) or isinstance(replicas, bool) or replicas < 0:
            raise ConfigurationError(
                f"replicas must be a whole number from 0 on, not {replicas!r:.80}"
            )
        for name in ("blocking", "thread_local", "raise_on_release_error"):
            check_flag(name, getattr(self, name))
        if self.renew is not None:
            check_flag("renew", self.renew)
        for name in ("on_lost", "observer"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise ConfigurationError(f"{name} must be a function or None, not {function!r:.80}")
        # redis-py's timeout is the longest a lock is held, so it is not renewed.
        renews = self.timeout is None if self.renew is None else bool(self.renew)
        lease_s = check_lease(self.ttl)
        if self.timeout is not None:
            lease_s = check_lease(self.timeout, "timeout")
        longest = lease_s if self.max_hold is None else self.max_hold
        object.__setattr__(self, "renews", renews)
        object.__setattr__(self, "lease_s", lease_s)
        object.__setattr__(self, "lease_ms", milliseconds(min(lease_s, longest)))
        object.__setattr__(self, "wait_s", self.blocking_timeout if self.blocking else 0.0)


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
