"""The options of locks and the arguments of `acquire`, checked before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from bloomlock.errors import ConfigurationError
from bloomlock.keys import DEFAULT_PREFIX
from bloomlock.sizing import check_flag, check_seconds, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from .reports import Observer

DEFAULT_TTL = 30.0
SHORTEST_TTL = 0.05
LONGEST_TTL = 365 * 86_400.0
DRIFT = 0.01
MARGIN_SECONDS = 0.002
"""A holder takes its lease to be shorter by so much: clocks differ, and packets travel."""


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
    replicas: int


class RedlockParameters(SharedParameters, total=False):
    server_timeout: float | None
    longest_ttl: float | None


class LockOptions:
    """The options of a lock; see Lock."""

    kind: ClassVar = "Lock"
    known: ClassVar = LockParameters.__annotations__
    longest_ttl = 0.0

    def __init__(self, ttl: float | None = None, **given: Any) -> None:
        if unknown := given.keys() - self.known:
            raise TypeError(f"{self.kind} has no parameter {min(unknown)!r}")

        def flag(name: str) -> bool:
            return check_flag(name, given.get(name, True))

        def seconds(name: str, least: float = 0.0) -> float | None:
            value = given.get(name)
            return None if value is None else check_seconds(name, value, least=least)

        self.prefix: str = given.get("prefix", DEFAULT_PREFIX)
        # redis-py's timeout is the longest a lock is held, so such a lease is not renewed.
        timeout = given.get("timeout")
        if timeout is not None and ttl is not None:
            raise ConfigurationError("ttl and timeout mean the same here; give one of them")
        self.lease_s = check_lease(ttl) if timeout is None else check_lease(timeout, "timeout")
        self.renews = timeout is None if given.get("renew") is None else flag("renew")
        self.max_hold = seconds("max_hold", SHORTEST_TTL)
        self.blocking_timeout = seconds("blocking_timeout")
        self.blocking = flag("blocking")
        self.thread_local = flag("thread_local")
        replicas = given.get("replicas", 0)
        self.replicas = check_whole("replicas", replicas, 0, 2**31, "from 0 on")
        for name in ("on_lost", "observer"):
            if (function := given.get(name)) is not None and not callable(function):
                raise ConfigurationError(f"{name} must be a function or None, not {function!r:.80}")
        self.on_lost: Callable[[Any], object] | None = given.get("on_lost")
        self.observer: Observer | None = given.get("observer")
        # No longer than the lock may be held.
        self.lease_ms = milliseconds(min(self.lease_s, self.max_hold or self.lease_s))

    def seconds_to_wait(
        self, blocking: bool | None, timeout: float | None, blocking_timeout: float | None
    ) -> float | None:
        """Return how long `acquire` waits: seconds, 0 for not at all, None for ever."""
        if timeout is not None and blocking_timeout is not None:
            raise ConfigurationError("timeout and blocking_timeout mean the same; give one of them")
        seconds = self.blocking_timeout
        for name, given in (("timeout", timeout), ("blocking_timeout", blocking_timeout)):
            if given is not None:
                seconds = check_seconds(name, given, least=0.0)
        if self.blocking if blocking is None else check_flag("blocking", blocking):
            return seconds
        if timeout is not None:
            # threading.Lock refuses that too.
            raise ConfigurationError(f"timeout must be None if blocking is False, not {timeout!r}")
        return 0.0


class RedlockOptions(LockOptions):
    """The options of a lock on several servers; see Redlock."""

    kind = "Redlock"
    known = RedlockParameters.__annotations__

    def __init__(
        self,
        ttl: float | None = None,
        *,
        server_timeout: float | None = None,
        longest_ttl: float | None = None,
        **given: Any,
    ) -> None:
        super().__init__(ttl, **given)
        ttl = self.lease_s
        if server_timeout is None:
            # A tenth of the lease, so that most of it is left.
            server_timeout = max(0.05, min(1.0, ttl / 10))
        self.server_timeout = check_seconds("server_timeout", server_timeout, least=0.001, most=ttl)
        if longest_ttl is None:
            longest_ttl = ttl
        self.longest_ttl = check_seconds("longest_ttl", longest_ttl, least=0.0, most=LONGEST_TTL)
        if 0 < longest_ttl < ttl:
            raise ConfigurationError(
                f"longest_ttl must be 0 or at least the ttl of {ttl:g} seconds, not {longest_ttl!r}"
            )


def check_lease(ttl: float | None, name: str = "ttl") -> float:
    if ttl is None:
        return DEFAULT_TTL
    return check_seconds(name, ttl, least=SHORTEST_TTL, most=LONGEST_TTL)


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def deadline_of(sent: float, lease_ms: int) -> float:
    """Return when a lease that was requested at `sent` (seconds) is over for its holder."""
    return sent + lease_ms / 1000 * (1 - DRIFT) - MARGIN_SECONDS
