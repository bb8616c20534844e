"""Watchdogs renew what is held, locks and claims, and find out what is lost.

There is one thread for all of the process, and one timer for all of an event loop, which is in
async_watchdog.py. Neither waits for a server: renewals run in another thread, or task, for
each client and server that has some due, so a server that does not answer holds up neither the
locks of others nor the news that a lock is lost. Neither logs nor calls what users gave, but for
observers in asyncio. A child of fork starts with nothing to watch.

What is watched stands in a dictionary that holders change while the watchdog reads copies of it.
There is no mutex, so nobody waits for a thread that is held up.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import weakref
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from bloomlock.effects import ConnectionLost, Limit
from bloomlock.locks.protocol.waiting import deadline_of
from bloomlock.runtime import background, connections
from bloomlock.runtime.clock import boot_clock
from bloomlock.slot_moves import without_waiting

from .hold import OUT_OF_LEASE
from .owners import thread_is_over
from .reports import AT_END_SECONDS, REPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.effects import AnyRuntime, Core
    from bloomlock.locks.protocol.steps import LockSteps

    from .hold import Hold

    Place = tuple[Any, str, type]

IDLE_SECONDS = 5.0

LONGEST_RETRY = 1.0
LONGEST_SLEEP = 1.0
"""Seconds between looks: what a watchdog sleeps by does not count suspend, the leases do."""
GOES_ALONG = 0.25
"""By which part of the time between two renewals one may be early."""
GONE = "its key was gone when it was to be renewed"
ENDED = "the thread or task that held it has ended"


class Watched(Protocol):
    """What a hold belongs to: a lock object, or a claim: that is no thread's.

    Attributes:
        what: "lock" or "claim".
        label: What messages call it.
        key: A key that names its server.
        steps: What gives its holds back when the process or the loop ends; None: they are left.
    """

    what: str

    @property
    def label(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def steps(self) -> LockSteps | None:
        return None

    def is_orphan(self, hold: Hold) -> bool:  # noqa: ARG002
        """Return whether no thread or task is left to give a hold back."""
        return False

    def is_abandoned(self, hold: Hold, has_ended: Callable[[object], bool]) -> bool:  # noqa: ARG002
        """Return whether its owner has ended at the end of the process or the loop."""
        return False

    def renewal_of(self, hold: Hold, lease_ms: int) -> Any:
        """Return what asks for a lease."""

    def renew_all(self, renewals: Sequence[Any]) -> Core[Sequence[bool | Exception]]:
        """Renew holds of its kind that one request may carry; for each whether it was held."""

    def renewed(self, hold: Hold, now: float) -> None:  # noqa: ARG002
        """Take note of a renewal."""
        return

    def lose_behind(self, hold: Hold, reason: str) -> bool:
        """Take note that a hold is lost; return whether that is news. Never raises."""


def session_of(hold: Hold) -> Watched | None:
    session: Watched | None = hold.session()
    return session


def is_due(hold: Hold, at: float) -> bool:
    renew_at = hold.renew_at
    return renew_at is not None and renew_at <= at and not hold.renewing


def key_of(hold: Hold) -> str:
    """Return the key of a watched lock; empty if the lock object is no more."""
    session = session_of(hold)
    return session.key if session is not None else ""


def place_of(hold: Hold) -> Place:
    """Return through what it is renewed, on which server of a cluster, and by which step."""
    server_of = getattr(hold.runtime, "server_of", None)
    return hold.runtime, server_of(key_of(hold)) if server_of is not None else "", hold.kind


def address_of(hold: Hold) -> str:
    """Return what messages call the server, or servers, of a hold."""
    runtime, server, _ = place_of(hold)
    if len(runtime.members) > 1:
        return f"{len(runtime.members)} servers"
    pool = connections.own_pool(runtime.client)
    settings = {} if pool is None else connections.settings_of(pool)
    address = f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
    return server or str(settings.get("path") or address)


class Schedule:
    """The holds that are watched, and what is due when; the time is passed in."""

    def __init__(self) -> None:
        self._holds: dict[Hold, None] = {}

    def add(self, hold: Hold, session: Watched, runtime: AnyRuntime) -> None:
        hold.session, hold.kind, hold.steps = weakref.ref(session), type(session), session.steps
        hold.runtime = runtime
        self._holds[hold] = None

    def remove(self, hold: Hold) -> None:
        self._holds.pop(hold, None)

    def next_time(self) -> float:
        return min((hold.next_time() for hold in self._holds.copy()), default=float("inf"))

    def over(self, now: float) -> list[tuple[Hold, str]]:
        """Take out and return the holds that are over, each with the reason.

        The owner of a hold is looked at whenever it is to be renewed.
        """
        over = []
        for hold in self._holds.copy():
            session = session_of(hold)
            if hold.deadline <= now:
                over.append((hold, OUT_OF_LEASE))
            elif is_due(hold, now) and session is not None and session.is_orphan(hold):
                over.append((hold, ENDED))
        for hold, _ in over:
            self.remove(hold)
        return over

    def take_abandoned(self, has_ended: Callable[[object], bool]) -> list[Hold]:
        """Take out and return the holds of owners that can give nothing back any more."""
        abandoned = []
        for hold in self._holds.copy():
            session = session_of(hold)
            mine = hold.steps is not None and hold.pid == os.getpid()
            if mine and (session is None or session.is_abandoned(hold, has_ended)):
                abandoned.append(hold)
                self.remove(hold)
        return abandoned

    def due(self, now: float) -> dict[Place, list[Hold]]:
        """Return the holds to renew now, by runtime, server and kind; each until it is answered.

        A server that is still busy with an earlier renewal waits its turn: one that does not
        answer must not collect threads, nor hold up the other ones of a cluster. What would be due
        soon goes along with what is due now, so that holds that began one by one are renewed
        together.
        """
        holds = self._holds.copy()
        if not any(is_due(hold, now) for hold in holds):
            return {}
        busy = {place_of(hold) for hold in holds if hold.renewing}
        found: dict[Place, list[Hold]] = {}
        dropped: Counter[str] = Counter()
        for hold in holds:
            if not is_due(hold, now + hold.renewal_seconds * GOES_ALONG):
                continue
            if session_of(hold) is None:
                dropped[hold.kind.what] += 1
                hold.renew_at = None
            elif (place := place_of(hold)) in busy:
                hold.renew_at = now + retry_seconds(hold)
            else:
                hold.renewing = True
                found.setdefault(place, []).append(hold)
        for what, number in dropped.items():
            text = "a %s was dropped while held; it is left to expire"
            if number > 1:
                text = f"{number} %ss were dropped while held; they are left to expire"
            REPORTS.warning(what, text, what)
        return found


def retry_seconds(hold: Hold) -> float:
    return min(LONGEST_RETRY, hold.lease_ms / 10_000)


def give_back(hold: Hold, until: float) -> Core[Exception | None]:
    """Release a hold that its owner did not, if the server answers in time; return why not."""
    yield Limit(until, [None])
    try:
        yield from hold.steps.give_back(hold)
    except (ConnectionLost, RedisError) as error:
        return error
    return None


def report_left(failures: Iterable[object]) -> None:
    """Log what was not given back at the end, in one line: the cause is mostly one for all."""
    left = [failure for failure in failures if failure is not None]
    if left:
        why = str(left[0]) or type(left[0]).__name__
        text = "a lock was not released at the end and is left to expire: %s"
        if len(left) > 1:
            text = f"{len(left)} locks were not released at the end and are left to expire: %s"
        REPORTS.warning("lock", text, why)


def give_up(holds: Iterable[Hold], now: float) -> None:
    for hold in holds:
        if hold.renewing:
            hold.renewing = False
            hold.schedule_renewal(now + retry_seconds(hold))


def renew(
    holds: Iterable[Hold], clock: Callable[[], float], remove: Callable[[Hold], None]
) -> Core[None]:
    """Renew holds that one request may carry and note the answers.

    A hold whose renewal is not answered is tried again until its deadline.
    """
    sent = clock()
    asked: list[tuple[Hold, Watched, int]] = []
    for hold in holds:
        session = session_of(hold)
        lease_ms = hold.lease_to_ask_ms(sent)
        if session is None or not lease_ms:
            hold.renewing = False
            hold.schedule_renewal(sent + hold.renewal_seconds)
        else:
            asked.append((hold, session, lease_ms))
    if not asked:
        return
    # All are of one kind and go to the same server, or it is a single one.
    first, of_first, _ = asked[0]
    renewals = [session.renewal_of(hold, lease_ms) for hold, session, lease_ms in asked]
    # What waits for one slot of a cluster would hold up the holds in others of its server.
    results = yield from without_waiting(of_first.renew_all(renewals))
    failed: list[str] = []
    gone: list[tuple[Hold, str]] = []
    error: Exception | None = None
    for (hold, session, lease_ms), result in zip(asked, results, strict=True):
        if isinstance(result, Exception):
            failed.append(session.label)
            error = error or result
            hold.schedule_renewal(clock() + retry_seconds(hold))
        elif not result:
            gone.append((hold, GONE))
        else:
            hold.deadline = max(hold.deadline, deadline_of(sent, lease_ms))
            hold.schedule_renewal(sent + hold.renewal_seconds)
        # What waits for this finds the new deadline.
        hold.renewing = False
        if result is True:
            session.renewed(hold, sent)
    lose_all(gone, remove)
    if failed:
        REPORTS.not_renewed(of_first.what, failed, address_of(first), error)
    else:
        REPORTS.renewed(of_first.what, address_of(first))


def lose_all(over: Iterable[tuple[Hold, str]], remove: Callable[[Hold], None]) -> None:
    """Note that holds are lost, each with the reason; one log line for each kind and reason."""
    lost: dict[tuple[str, str], list[str]] = {}
    for hold, reason in over:
        remove(hold)
        session = session_of(hold)
        if session is not None and session.lose_behind(hold, reason):
            lost.setdefault((session.what, reason), []).append(session.label)
    for (what, reason), labels in lost.items():
        REPORTS.lost(what, labels, reason)


class Watchdog(Schedule):
    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a child of fork has no thread and holds nothing."""
        super().__init__()
        # Both are C through and through: a KeyboardInterrupt in the middle of a Condition or an
        # Event leaves it locked, and then nothing would be renewed any more.
        self._only_one = threading.Lock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._idle_since = boot_clock()
        self._wake_at = float("inf")
        self._runs = False

    def add(self, hold: Hold, session: Watched, runtime: AnyRuntime) -> None:
        super().add(hold, session, runtime)
        at = hold.next_time()
        if not self._runs:
            self._start()
        elif at < self._wake_at:
            # The next hold, which is due later, need not wake it again: most are over by then.
            self._wake_at = at
            self._wake.put(None)

    def give_back_all(self) -> None:
        """Release what is held when the process ends, but for what a running thread holds.

        The main thread is at its end then. A daemon thread may still work under its locks.
        """
        until = boot_clock() + AT_END_SECONDS
        failures: list[Exception | None] = []
        for hold in self.take_abandoned(thread_is_over):
            try:
                failures.append(hold.runtime.run(give_back(hold, until)))
            except Exception as error:  # noqa: BLE001 - reported
                failures.append(error)
        report_left(failures)

    @staticmethod
    def call(function: Callable[[], None]) -> None:
        """Call a function that runs the user's code, in another thread."""
        background.WORKERS.start(function)

    def _start(self) -> None:
        # A thread of its own, not a worker: it does not end with the job before.
        threading.Thread(target=self._run, name="bloomlock-watchdog", daemon=True).start()

    def _run(self) -> None:
        if not self._only_one.acquire(blocking=False):
            return
        self._runs, self._idle_since = True, boot_clock()
        while self._runs:
            try:
                self._look()
            except BaseException:  # noqa: BLE001 - reported
                # Without this thread every lock of the process would be lost.
                REPORTS.exception("lock", "watching locks failed")
                self._sleep(LONGEST_SLEEP)
        self._only_one.release()
        if self._holds:
            # It was added when this thread seemed to run still.
            self._start()

    def _look(self) -> None:
        """Do what is due, or sleep until something is; end if there is nothing to watch."""
        now = boot_clock()
        over, due = self.over(now), self.due(now)
        lose_all(over, self.remove)
        for (runtime, *_), holds in due.items():
            background.WORKERS.start(partial(self._renew, runtime, holds))
        if self._holds or over:
            self._idle_since = now
        elif now - self._idle_since > IDLE_SECONDS:
            self._runs = False
            return
        if not over and not due:
            # Whoever adds a hold before the time is known wakes it in any case.
            self._wake_at = float("inf")
            self._wake_at = wake_at = min(self.next_time(), now + LONGEST_SLEEP)
            self._sleep(wake_at - now)

    def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=max(0.0, seconds))
            while True:
                self._wake.get_nowait()

    def _renew(self, runtime: Any, holds: list[Hold]) -> None:
        try:
            for part in runtime.by_server(holds, key_of):
                runtime.run(renew(part, boot_clock, self.remove))
        except Exception:  # noqa: BLE001 - reported
            REPORTS.exception("lock", "renewing locks failed")
        finally:
            give_up(holds, boot_clock())
            self._wake.put(None)


WATCHDOG = Watchdog()
atexit.register(WATCHDOG.give_back_all)
os.register_at_fork(after_in_child=WATCHDOG.start_over)
