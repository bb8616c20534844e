"""Holds: each is one lock or claim as long as one thread or task of this process has it."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from bloomlock.runtime import connections
from bloomlock.runtime.cluster import server_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.effects import Core
    from bloomlock.locks.protocol.steps import LockSteps

    Place = tuple[Any, str, type]

OUT_OF_LEASE = "its lease ran out before it could be renewed"
RENEWALS_PER_LEASE = 3
LONGEST_RETRY = 1.0


class Watched(Protocol):
    """What a watchdog asks of a lock object, or of a claim, which is no thread's."""

    what: str  # "lock" or "claim"
    steps: LockSteps | None = None  # give holds back at the end of the process or the loop

    @property
    def label(self) -> str:
        """What messages call it."""

    @property
    def key(self) -> str:
        """A key that names its server."""

    def is_orphan(self, hold: Hold) -> bool:  # noqa: ARG002
        """Return whether no thread or task is left to give a hold back."""
        return False

    def renewal_of(self, hold: Hold, lease_ms: int) -> Any:
        """Return what asks for a lease."""

    def renew_all(self, renewals: Sequence[Any]) -> Core[Sequence[bool | Exception]]:
        """Renew holds of its kind that one request may carry; for each whether it was held."""

    def renewed(self, hold: Hold) -> None:  # noqa: ARG002
        """Take note of a renewal."""
        return

    def lose_behind(self, hold: Hold, reason: str) -> bool:
        """Take note that a hold is lost; return whether that is news. Never raises."""


@dataclass(eq=False, slots=True)
class Hold:
    """What is known of a hold here; its times are seconds by the holder's clock."""

    token: bytes  # which no other hold has
    group: bytes  # which holds it shares the lock with; empty: none
    lease_ms: int  # the lease it is renewed to
    fence: int | None
    waiters: bool  # whether a client was waiting when it was granted
    since: float
    deadline: float  # until when the holder may rely on it
    pid: int = field(default_factory=os.getpid)  # the process that has it; a fork's child does not
    renew_at: float | None = None  # None: never
    last_renewal: float = float("inf")  # renewing must not carry it past this
    ballot: Any = None  # what several servers said of it
    owner: Any = None  # the thread or task that has it
    heir: Any = None  # who has it after its owner has ended
    count: int = 1  # how often a re-entrant lock was acquired
    renewing: bool = False  # whether a renewal is on its way
    lost: str = ""  # why it is lost
    unreported: list[None] = field(default_factory=partial(list, (None,)))  # popped by who reports
    event: Any = None  # set when it is lost; made at its first use
    reported: str = ""  # kind of the event that was reported of it last
    # What a watchdog was given for it: the lock or claim, if that is still there, its class,
    # through what it is renewed, and what gives it back at the end of the process or the loop.
    session: Callable[[], Watched | None] = lambda: None
    kind: Any = None
    runtime: Any = None
    steps: LockSteps | None = None

    @property
    def renewal_seconds(self) -> float:
        return self.lease_ms / 1000 / RENEWALS_PER_LEASE

    @property
    def retry_seconds(self) -> float:
        return min(LONGEST_RETRY, self.lease_ms / 10_000)

    def key(self) -> str:
        """Return a key of what it belongs to; empty if that is no more."""
        session = self.session()
        return session.key if session is not None else ""

    def place(self) -> Place:
        """Return through what it is renewed, on which server of a cluster, and by which step."""
        return self.runtime, server_of_key(self.runtime.client, self.key()), self.kind

    def address(self) -> str:
        """Return what messages call its server, or servers."""
        runtime, server, _ = self.place()
        if len(runtime.members) > 1:
            return f"{len(runtime.members)} servers"
        pool = connections.own_pool(runtime.client)
        settings = {} if pool is None else connections.settings_of(pool)
        address = f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        return server or str(settings.get("path") or address)

    def next_time(self) -> float:
        renew_at = self.renew_at
        if self.renewing or renew_at is None:
            return self.deadline
        return min(renew_at, self.deadline)

    def is_due(self, at: float) -> bool:
        renew_at = self.renew_at
        return renew_at is not None and renew_at <= at and not self.renewing

    def schedule_renewal(self, at: float) -> None:
        """Let the next renewal be due then, unless it is not to be renewed any more, or not now."""
        if self.renew_at is not None:
            self.renew_at = at

    def limit_lease_ms(self, lease_ms: int, now: float) -> int:
        """Return the part of a lease that begins now and does not go beyond `last_renewal`."""
        return int(min(lease_ms, max(1.0, (self.last_renewal - now) * 1000)))

    def lease_to_ask_ms(self, now: float) -> int:
        """Return the lease a renewal may ask for now; 0: none that ends after the lease it has."""
        seconds = min(self.lease_ms / 1000, self.last_renewal - now)
        return int(seconds * 1000) if now + seconds > self.deadline else 0


class Holdings:
    """The holds of one lock object by owner: the thread or task that acquired them.

    No hold replaces another: an owner has all that were granted to it and not given back. Reading
    takes no mutex, because the tuples are replaced as a whole. With `shared` an owner that has no
    hold of its own may use those of others.
    """

    def __init__(self, has_ended: Callable[[Any], bool], *, shared: bool = False) -> None:
        self._has_ended = has_ended
        self._shared = shared
        self._holds: dict[object, tuple[Hold, ...]] = {}

    def own(self, owner: object) -> Hold | None:
        """Return what an owner acquired last, lost or not; none that a parent process acquired."""
        holds = self._holds.get(owner, ())
        return next((hold for hold in reversed(holds) if hold.pid == os.getpid()), None)

    def mine(self, owner: object) -> Hold | None:
        """Return an owner's hold: what it acquired, or what it is the heir of."""
        if not self._holds:
            return None
        hold = self.own(owner)
        if hold is None and owner is not None:
            for left in self._all():
                if left.heir is owner and self._has_ended(left.owner):
                    self.drop(left)
                    self.put(owner, left)
                    return left
        return hold

    def of(self, owner: object) -> Hold | None:
        """Return what an owner may give back: its own; else, if they are shared, the oldest."""
        hold = self.mine(owner)
        if hold is None and self._shared:
            held = self._all()
            live = [other for other in held if not other.lost]
            return min(live or held, key=lambda other: other.since, default=None)
        return hold

    def put(self, owner: object, hold: Hold) -> None:
        """Note that an owner holds the lock, beside what it has."""
        with _guard:
            self._holds[owner] = (*self._holds.get(owner, ()), hold)
            hold.owner = owner

    def others(self, hold: Hold) -> list[Hold]:
        return [other for other in self._all() if other is not hold]

    def count_again(self, hold: Hold) -> bool:
        with _guard:
            if hold in self:
                hold.count += 1
            return hold in self

    def give_back(self, hold: Hold, stop: Callable[[Hold], None]) -> int | None:
        """Count a hold once less; with the last, call `stop` with it and forget it.

        Returns how often it is still held; None: another thread has given it back.
        """
        with _guard:
            if hold not in self:
                return None
            if hold.count > 1:
                hold.count -= 1
                return hold.count
            stop(hold)
            owner = self._forget(hold)
        # A task that nobody else refers to ends here, with its hooks, and no mutex is held.
        del owner
        return 0

    def drop(self, hold: Hold) -> None:
        owner = None
        with _guard:
            if hold in self:
                owner = self._forget(hold)
        del owner

    def _forget(self, hold: Hold) -> object:
        owner, hold.owner = hold.owner, None
        rest = tuple(other for other in self._holds[owner] if other is not hold)
        if rest:
            self._holds[owner] = rest
        else:
            del self._holds[owner]
        return owner

    def __contains__(self, hold: Hold) -> bool:
        return hold in self._holds.get(hold.owner, ())

    def is_orphan(self, hold: Hold) -> bool:
        """Return whether neither its owner nor its heir is left to give a hold back."""
        heir_is_left = hold.heir is not None and not self._has_ended(hold.heir)
        owner = hold.owner
        return not (self._shared or heir_is_left or owner is None) and self._has_ended(owner)

    def _all(self) -> list[Hold]:
        pid = os.getpid()
        return [h for h in chain.from_iterable(list(self._holds.values())) if h.pid == pid]


_guard = threading.RLock()


def _start_over() -> None:
    global _guard  # noqa: PLW0603 - another thread may have had it when this process was forked
    _guard = threading.RLock()


os.register_at_fork(after_in_child=_start_over)


class ForeignThread:
    """A thread that the threading module did not start, such as one of C, or a greenlet.

    For that module it is alive for ever, and a later one may have its number. What is kept in its
    own data lives as long as it does.
    """

    def __init__(self) -> None:
        _LOCAL.presence = presence = threading.Lock()
        self._presence = weakref.ref(presence)

    def has_ended(self) -> bool:
        return self._presence() is None


_LOCAL = threading.local()


def this_thread() -> object:
    """Return who holds what this thread acquires."""
    thread = threading.current_thread()
    if not isinstance(thread, threading._DummyThread):  # noqa: SLF001 - there is no other way to tell
        # Not its number: that is given to another thread when this one has ended.
        return thread
    foreign = getattr(_LOCAL, "owner", None)
    if foreign is None:
        foreign = _LOCAL.owner = ForeignThread()
    return foreign


def thread_has_ended(owner: Any) -> bool:
    if isinstance(owner, ForeignThread):
        return owner.has_ended()
    return isinstance(owner, threading.Thread) and not owner.is_alive()


def thread_is_over(owner: object) -> bool:
    """Return the same at the end of the process, to which the main thread has come."""
    return owner is None or owner is threading.main_thread() or thread_has_ended(owner)
