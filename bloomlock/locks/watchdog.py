"""Watchdogs renew what is held, locks and claims, and find out what is lost.

There is one thread for all of the process, and one timer for all of an event loop, which is in
async_watchdog.py. Neither waits for a server: renewals run in a short-lived thread, or task, for
each client and server that has some due, so a server that does not answer holds up neither the
locks of others nor the news that a lock is lost. A child of fork starts with nothing to watch.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import weakref
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from bloomlock.effects import ConnectionLost, Limit
from bloomlock.locks.protocol.model import ReleaseRequest
from bloomlock.locks.protocol.waiting import deadline_of
from bloomlock.runtime.clock import boot_clock
from bloomlock.slot_moves import without_waiting

from .hold import OUT_OF_LEASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.effects import AnyRuntime, Core
    from bloomlock.locks.protocol.steps import LockSteps

    from .hold import Hold

logger = logging.getLogger("bloomlock.locks")

IDLE_SECONDS = 5.0

LONGEST_RETRY = 1.0
LONGEST_SLEEP = 1.0
"""Seconds between looks: what a watchdog sleeps by does not count suspend, the leases do."""
GOES_ALONG = 0.25
"""By which part of the time between two renewals one may be early."""
AT_END_SECONDS = 1.0
"""How long what is held is given back when the process or the loop ends."""
GONE = "its key was gone when it was to be renewed"
ENDED = "the thread or task that held it has ended"


class Watched(Protocol):
    """What a hold belongs to: a lock object, or a claim."""

    @property
    def label(self) -> str:
        """What messages call it."""

    @property
    def key(self) -> str:
        """A key that names its server."""

    @property
    def steps(self) -> LockSteps | None:
        """What gives its holds back when the process or the loop ends; None: they are left."""

    def is_orphan(self, hold: Hold) -> bool:
        """Return whether no thread or task is left to give a hold back."""

    def is_abandoned(self, hold: Hold, has_ended: Callable[[object], bool]) -> bool:
        """Return whether its owner has ended at the end of the process or the loop."""

    def renewal_of(self, hold: Hold, lease_ms: int) -> Any:
        """Return what asks for a lease."""

    def renew_all(self, renewals: Sequence[Any]) -> Core[Sequence[bool | Exception]]:
        """Renew holds of its kind that one request may carry; for each whether it was held."""

    def renewed(self, hold: Hold, now: float) -> None:
        """Take note of a renewal."""

    def lose_behind(self, hold: Hold, reason: str) -> None:
        """Take note that a hold is lost; never raises."""


@dataclass(eq=False, slots=True)
class Watch:
    """A hold that is watched.

    Attributes:
        hold: The hold.
        runtime: Through what it is renewed.
        session: Of the lock object, or of the claim. If that is no more, no caller can release the
            hold: it is renewed no more, and expires unless the process ends before.
        kind: What is renewed by one step.
        steps: Those of the lock; None: it is not given back at the end.
    """

    hold: Hold
    runtime: Any  # of the one kind or the other, as the watchdog
    session: weakref.ref[Watched]
    kind: type
    steps: LockSteps | None

    def next_time(self) -> float:
        """Return when something is to be done about it."""
        renew_at = self.hold.renew_at
        if self.hold.renewing or renew_at is None:
            return self.hold.deadline
        return min(renew_at, self.hold.deadline)

    def is_due(self, at: float) -> bool:
        """Return whether it is to be renewed at that time."""
        renew_at = self.hold.renew_at
        return renew_at is not None and renew_at <= at and not self.hold.renewing


def key_of(watch: Watch) -> str:
    """Return the key of a watched lock; empty if the lock object is no more."""
    session = watch.session()
    return session.key if session is not None else ""


def place_of(watch: Watch) -> tuple[Any, str, type]:
    """Return through what it is renewed, on which server of a cluster, and by which step."""
    server_of = getattr(watch.runtime, "server_of", None)
    server = server_of(key_of(watch)) if server_of is not None else ""
    return watch.runtime, server, watch.kind


class Schedule:
    """The holds that are watched, and what is due when; the time is passed in.

    Not safe to use from two threads at once.
    """

    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, hold: Hold, session: Watched, runtime: AnyRuntime) -> Watch:
        """Watch a hold, anew if it is watched already."""
        watch = Watch(hold, runtime, weakref.ref(session), type(session), session.steps)
        self._watches[id(hold)] = watch
        return watch

    def remove(self, hold: Hold) -> None:
        """Forget a hold."""
        self._watches.pop(id(hold), None)

    def next_time(self) -> float:
        """Return when to look again."""
        return min((watch.next_time() for watch in self._watches.values()), default=float("inf"))

    def over(self, now: float) -> list[tuple[Watch, str]]:
        """Take out and return the holds that are over, each with the reason.

        The owner of a hold is looked at whenever it is to be renewed.
        """
        over = []
        for watch in list(self._watches.values()):
            session = watch.session()
            if watch.hold.deadline <= now:
                over.append((watch, OUT_OF_LEASE))
            elif watch.is_due(now) and session is not None and session.is_orphan(watch.hold):
                over.append((watch, ENDED))
        for watch, _ in over:
            self.remove(watch.hold)
        return over

    def take_abandoned(self, has_ended: Callable[[object], bool]) -> list[Watch]:
        """Take out and return the holds of owners that can give nothing back any more."""
        abandoned = []
        for watch in list(self._watches.values()):
            session = watch.session()
            mine = watch.steps is not None and watch.hold.pid == os.getpid()
            if mine and (session is None or session.is_abandoned(watch.hold, has_ended)):
                abandoned.append(watch)
                self.remove(watch.hold)
        return abandoned

    def due(self, now: float) -> dict[tuple[Any, str, type], list[Watch]]:
        """Return the holds to renew now, by runtime, server and kind; each until it is answered.

        A server that is still busy with an earlier renewal waits its turn: one that does not
        answer must not collect threads, nor hold up the other ones of a cluster. What would be due
        soon goes along with what is due now, so that holds that began one by one are renewed
        together.
        """
        if not any(watch.is_due(now) for watch in self._watches.values()):
            return {}
        busy = {place_of(watch) for watch in self._watches.values() if watch.hold.renewing}
        found: dict[tuple[Any, str, type], list[Watch]] = {}
        dropped: Counter[str] = Counter()
        for watch in list(self._watches.values()):
            if not watch.is_due(now + watch.hold.renewal_seconds * GOES_ALONG):
                continue
            session = watch.session()
            if session is None:
                dropped["claim" if watch.steps is None else "lock"] += 1
                watch.hold.renew_at = None
            elif (place := place_of(watch)) in busy:
                watch.hold.renew_at = now + retry_seconds(watch.hold)
            else:
                found.setdefault(place, []).append(watch)
        for what, number in dropped.items():
            if number == 1:
                logger.warning("a %s was dropped while held; it is left to expire", what)
            else:
                text = "%d %ss were dropped while held; they are left to expire"
                logger.warning(text, number, what)
        for watches in found.values():
            for watch in watches:
                watch.hold.renewing = True
        return found


def retry_seconds(hold: Hold) -> float:
    """Return how long to wait before a renewal is tried again."""
    return min(LONGEST_RETRY, hold.lease_ms / 10_000)


def give_back(watch: Watch, until: float) -> Core[Exception | None]:
    """Release a hold that its owner did not, if the server answers in time; return why not."""
    if watch.steps is None:
        return None
    yield Limit(until, [None])
    try:
        yield from watch.steps.release(
            ReleaseRequest(watch.hold.token, watch.hold.group), waiters=watch.hold.waiters
        )
    except (ConnectionLost, RedisError) as error:
        return error
    return None


def report_left(failures: Iterable[object]) -> None:
    """Log what was not given back at the end, in one line: the cause is mostly one for all."""
    left = [failure for failure in failures if failure is not None]
    if left:
        why = str(left[0]) or type(left[0]).__name__
        if len(left) == 1:
            logger.warning("a lock was not released at the end and is left to expire: %s", why)
        else:
            text = "%d locks were not released at the end and are left to expire: %s"
            logger.warning(text, len(left), why)


def give_up(watches: Iterable[Watch], now: float) -> None:
    """Note which renewals came to nothing for now; they are tried again."""
    for watch in watches:
        if watch.hold.renewing:
            watch.hold.renewing = False
            watch.hold.schedule_renewal(now + retry_seconds(watch.hold))


def renew(
    watches: Iterable[Watch],
    clock: Callable[[], float],
    lose: Callable[[Watch, str], None],
) -> Core[None]:
    """Renew holds that one request may carry and note the answers.

    A hold whose renewal is not answered is tried again until its deadline.
    """
    sent = clock()
    asked: list[tuple[Watch, Watched, int]] = []
    for watch in watches:
        session, hold = watch.session(), watch.hold
        lease_ms = hold.lease_to_ask_ms(sent)
        if session is None or not lease_ms:
            hold.renew_at, hold.renewing = None, False
        else:
            asked.append((watch, session, lease_ms))
    if not asked:
        return
    # All are of one kind and go to the same server, or it is a single one.
    renewals = [session.renewal_of(watch.hold, lease_ms) for watch, session, lease_ms in asked]
    # What waits for one slot of a cluster would hold up the holds in others of its server.
    results = yield from without_waiting(asked[0][1].renew_all(renewals))
    for (watch, session, lease_ms), result in zip(asked, results, strict=True):
        hold = watch.hold
        if isinstance(result, Exception):
            logger.warning("%s could not be renewed yet: %s", session.label, result)
            hold.schedule_renewal(clock() + retry_seconds(hold))
        elif not result:
            lose(watch, GONE)
        else:
            hold.deadline = max(hold.deadline, deadline_of(sent, lease_ms))
            hold.schedule_renewal(sent + hold.renewal_seconds)
        # What waits for this finds the new deadline.
        hold.renewing = False
        if result is True:
            session.renewed(hold, sent)


class Watchdog:
    """Watches the holds of all threads."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a child of fork has no thread and holds nothing."""
        # Both are C through and through: a KeyboardInterrupt in the middle of a Condition or an
        # Event leaves it locked, and then nothing would be renewed any more.
        self._lock = threading.RLock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._schedule = Schedule()
        self._uncalled: deque[Callable[[], object]] = deque()
        self._idle_since = boot_clock()
        self._wake_at = float("-inf")
        self._runs = False

    def add(self, hold: Hold, session: Watched, runtime: AnyRuntime) -> None:
        """Begin to watch a hold."""
        with self._lock:
            at = self._schedule.add(hold, session, runtime).next_time()
            runs = self._runs
            if runs and at < self._wake_at:
                # The next hold, which is due later, need not wake it again: most are over by then.
                self._wake.put(None)
                self._wake_at = at
        if not runs:
            start_thread("bloomlock-watchdog", self._run)

    def remove(self, hold: Hold) -> None:
        """Stop watching a hold."""
        with self._lock:
            self._schedule.remove(hold)

    def give_back_all(self) -> None:
        """Release what is held when the process ends, but for what a running thread holds.

        The main thread is at its end then. A daemon thread may still work under its locks.
        """
        with self._lock:
            abandoned = self._schedule.take_abandoned(_thread_is_over)
        until = boot_clock() + AT_END_SECONDS
        failures: list[Exception | None] = []
        for watch in abandoned:
            try:
                failures.append(watch.runtime.run(give_back(watch, until)))
            except Exception as error:  # noqa: BLE001 - reported
                failures.append(error)
        report_left(failures)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in a thread of its own, as soon as there may be one more."""
        try:
            start_thread("bloomlock-callback", function)
        except RuntimeError as error:
            logger.warning("a callback of a lock has to wait: %s", error)
            self._uncalled.append(function)

    def _run(self) -> None:
        with self._lock:
            if self._runs:
                return
            self._runs = True
        self._idle_since = boot_clock()
        goes_on = True
        while goes_on:
            try:
                goes_on = self._look()
            except BaseException:
                # Without this thread every lock of the process would be lost.
                logger.exception("watching locks failed")
                self._sleep(LONGEST_SLEEP)

    def _look(self) -> bool:
        """Do what is due, or sleep until something is; False: there is nothing to watch."""
        with self._lock:
            now = boot_clock()
            over = self._schedule.over(now)
            due = self._schedule.due(now)
            if len(self._schedule) or over or self._uncalled:
                self._idle_since = now
            elif now - self._idle_since > IDLE_SECONDS:
                self._runs = False
                return False
            asked_for = self._wake_at if self._wake_at > now else float("inf")
            self._wake_at = min(self._schedule.next_time(), asked_for, now + LONGEST_SLEEP)
        for watch, reason in over:
            self._lose(watch, reason)
        for (runtime, *_), watches in due.items():
            self._start_renewal(runtime, watches)
        for _ in range(len(self._uncalled)):
            self.call(self._uncalled.popleft())
        if not over and not due:
            self._sleep(self._wake_at - now)
        return True

    def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=max(0.0, seconds))
            while True:
                self._wake.get_nowait()

    def _start_renewal(self, runtime: Any, watches: list[Watch]) -> None:
        try:
            start_thread("bloomlock-renewal", self._renew, runtime, watches)
        except RuntimeError as error:  # there are too many threads
            logger.warning("locks could not be renewed yet: %s", error)
            give_up(watches, boot_clock())

    def _renew(self, runtime: Any, watches: list[Watch]) -> None:
        try:
            for part in runtime.by_server(watches, key_of):
                try:
                    runtime.run(renew(part, boot_clock, self._lose))
                except Exception:
                    logger.exception("renewing locks failed")
        finally:
            give_up(watches, boot_clock())
            self._wake.put(None)

    def _lose(self, watch: Watch, reason: str) -> None:
        self.remove(watch.hold)
        session = watch.session()
        if session is not None:
            session.lose_behind(watch.hold, reason)


def start_thread(name: str, target: Any, *arguments: Any) -> None:
    """Run a function in a thread that does not keep the process alive."""
    threading.Thread(target=target, args=arguments, name=name, daemon=True).start()


def _thread_is_over(owner: object) -> bool:
    return not isinstance(owner, threading.Thread) or (
        owner is threading.main_thread() or not owner.is_alive()
    )


WATCHDOG = Watchdog()
atexit.register(WATCHDOG.give_back_all)
os.register_at_fork(after_in_child=WATCHDOG.start_over)
