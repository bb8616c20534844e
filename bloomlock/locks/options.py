"""The options of locks, checked before anything is sent."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypedDict

from bloomlock.errors import ConfigurationError
from bloomlock.keys import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from .events import Observer

DEFAULT_TTL = 30.0
SHORTEST_TTL = 0.05
LONGEST_TTL = 365 * 86_400.0


class SharedParameters(TypedDict, total=False):
    renew: bool | None
    max_hold: float | None
    on_lost: Callable[[Any], object] | None
    blocking: bool
    blocking_timeout: float | None
    thread_local: bool
    observer: Observer | None
    prefix: str


class LockParameters(SharedParameters, total=False):
    timeout: float | None
    sleep: float | None
    replicas: int
    raise_on_release_error: bool


class LockOptions:
    """The options of a lock, checked.

    Args:
        ttl: See Lock.
        given: The others.

    Attributes:
        lease_s: The lease in seconds.
        lease_ms: The lease in milliseconds; no longer than the lock may be held.
        renews: Whether it is renewed.
        wait_s: How many seconds `acquire` waits if its caller does not say; None: for ever.

    Raises:
        ConfigurationError: If one of them is not usable.
    """

    def __init__(self, ttl: float | None = None, **given: Any) -> None:
        if unknown := next((key for key in given if key not in LockParameters.__annotations__), ""):
            raise TypeError(f"a lock has no parameter {unknown!r}")
        self.prefix: str = given.get("prefix", DEFAULT_PREFIX)
        # redis-py's timeout is the longest a lock is held, so such a lease is not renewed.
        timeout, renew = given.get("timeout"), given.get("renew")
        if timeout is not None and ttl is not None:
            raise ConfigurationError("ttl and timeout mean the same here; give one of them")
        self.lease_s = check_lease(ttl) if timeout is None else check_lease(timeout, "timeout")
        self.renews = timeout is None if renew is None else check_flag("renew", renew)
        self.max_hold = check_optional("max_hold", given, least=SHORTEST_TTL)
        self.blocking_timeout = check_optional("blocking_timeout", given)
        check_optional("sleep", given)
        self.blocking = check_flag("blocking", given.get("blocking", True))
        self.thread_local = check_flag("thread_local", given.get("thread_local", True))
        self.raise_on_release_error = check_flag(
            "raise_on_release_error", given.get("raise_on_release_error", True)
        )
        self.replicas = replicas = given.get("replicas", 0)
        if not isinstance(replicas, Integral) or isinstance(replicas, bool) or replicas < 0:
            raise ConfigurationError(
                f"replicas must be a whole number from 0 on, not {replicas!r:.80}"
            )
        for name in ("on_lost", "observer"):
            if (function := given.get(name)) is not None and not callable(function):
                raise ConfigurationError(f"{name} must be a function or None, not {function!r:.80}")
        self.on_lost: Callable[[Any], object] | None = given.get("on_lost")
        self.observer: Observer | None = given.get("observer")
        longest = self.lease_s if self.max_hold is None else self.max_hold
        self.lease_ms = milliseconds(min(self.lease_s, longest))
        self.wait_s = self.blocking_timeout if self.blocking else 0.0


def check_lease(ttl: float | None, name: str = "ttl") -> float:
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


def check_optional(name: str, given: dict[str, Any], *, least: float = 0.0) -> float | None:
    value = given.get(name)
    return None if value is None else check_seconds(name, value, least=least)


def check_flag(name: str, value: object) -> bool:
    # threading.Lock is often asked by acquire(0); NumPy's True and False are no numbers.
    is_flag = isinstance(value, Integral) or str(getattr(value, "dtype", "")) == "bool"
    if not is_flag or value not in (0, 1):
        raise ConfigurationError(f"{name} must be True or False, not {value!r:.80}")
    return bool(value)


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))
