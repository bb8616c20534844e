"""The watchdog renews locks and claims that are held, and notices those that are lost.

It is one thread for the whole process. It waits for no server, writes no log line and calls no
callback, because each of them may block. Workers do that, and event loops for their own tasks.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from bloomlock.clock import boot_clock
from bloomlock.effects import NOT_WAITING, Limit
from bloomlock.locks.options import deadline_of
from bloomlock.runtime import background

from .hold import OUT_OF_LEASE, Hold, current_owner, has_ended
from .reports import AT_END_SECONDS, REPORTS, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.effects import Core

    from .hold import Place, Renewal, Watched

    Loop = asyncio.AbstractEventLoop

IDLE_SECONDS = 5.0
LONGEST_SLEEP = 1.0
"""Seconds. While a machine is suspended a lease runs on, and the clock of a sleep does not."""
GOES_ALONG = 0.25
"""A renewal may be early by this part of the time between two."""


@dataclass(eq=False)
class Outage:
    """A server that does not answer renewals. One line is logged at its begin, and one at its end.

    Holds that are lost in between are counted, and reported at the end.
    """

    what: str
    since: float = field(default_factory=boot_clock)
    is_answered: bool = False
    lost: dict[str, list[str]] = field(default_factory=dict)  # labels by reason


class Watchdog:
    """The holds of this process and the thread that renews them."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a child of fork has no thread and holds nothing."""
        # Holders change it while the watchdog reads copies of it. There is no mutex, so nobody
        # waits for a thread that is held up. The watchdog alone does the rest.
        self._holds: dict[Hold, None] = {}
        self._outages: dict[str, Outage] = {}
        # Both are written in C: a KeyboardInterrupt in the middle of a Condition or an Event leaves
        # it locked, and then nothing would be renewed any more.
        self._only_one = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wake_at = float("inf")
        self._queues = weakref.WeakKeyDictionary[Any, background.SerialQueue]()

    def add(self, hold: Hold, session: Watched) -> None:
        hold.session, hold.kind = weakref.ref(session), type(session)
        hold.steps, hold.runtime = session.steps, session.runtime
        if hold.runtime.is_async:
            hold.loop = asyncio.get_running_loop()
        self._holds[hold] = None
        at = hold.next_time()
        if not self._only_one.locked():
            self._start_thread()
        elif at < self._wake_at:
            # Later holds need not wake the thread for the same moment.
            self._wake_at = at
            self._jobs.put(None)

    def remove(self, hold: Hold) -> None:
        self._holds.pop(hold, None)

    def call(self, function: Callable[[], None], session: Watched, loop: Loop | None) -> None:
        """Have a loop, or else another thread, call a function that never raises."""
        if loop is None:
            self._queues.setdefault(session, background.SerialQueue()).append(function)
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(function)

    def _seconds_to_next(self) -> float:
        at = min((hold.next_time() for hold in self._holds.copy()), default=float("inf"))
        return min(max(0.0, at - boot_clock()), LONGEST_SLEEP)

    def _do_due(self) -> bool:
        """Note holds that are over, and begin renewals that are due; return whether any was."""
        now, is_due = boot_clock(), False
        over: list[tuple[Hold, str]] = []
        dropped: dict[str, list[str]] = {}
        for hold in self._holds.copy():
            session = hold.session()
            if hold.loop is not None and hold.loop.is_closed():
                self.remove(hold)
                dropped.setdefault(hold.kind.what, []).append(hold.label())
            elif hold.deadline <= now:
                over.append((hold, OUT_OF_LEASE))
                if hold.renewing:
                    self._note_failure([hold], "no answer came")
            elif not hold.is_due(now):
                continue
            elif session is None:
                dropped.setdefault(hold.kind.what, []).append(hold.label())
                hold.renew_at, hold.outage = None, ""
            elif session.is_orphan(hold):
                over.append((hold, "the thread or task that held it has ended"))
            else:
                is_due = True
        self._lose(over)
        for what, labels in dropped.items():
            REPORTS.passive(what, labels, "dropped while held, and left to expire")
        self._end_outages(hold.outage for hold in self._holds.copy())
        if is_due:
            self._begin_renewals(now)
        return bool(over or is_due)

    def _begin_renewals(self, now: float) -> None:
        """Begin to renew holds that are due, by one request for each server and client.

        A server that has not answered an earlier renewal yet gets no second one: a silent server
        must neither collect threads nor hold up the others of a cluster. Holds that are due soon go
        along, so that holds that began one by one are renewed together.
        """
        holds = self._holds.copy()
        busy = {hold.place() for hold in holds if hold.renewing}
        found: dict[Place, list[Hold]] = {}
        for hold in holds:
            if not hold.is_due(now + hold.renewal_seconds * GOES_ALONG):
                continue
            if (place := hold.place()) in busy:
                hold.renew_at = now + hold.retry_seconds
            else:
                hold.renewing = True
                found.setdefault(place, []).append(hold)
        for together in found.values():
            self._start(together)

    def _renew(self, runtime: Any, holds: list[Hold]) -> Core[None]:
        """Renew holds of one kind at one server."""
        # A wait for one slot of a cluster would hold up the holds in other slots of its server.
        yield NOT_WAITING
        try:
            for part in runtime.by_server(holds, Hold.key):
                sent = boot_clock()
                asked = [
                    (session, hold, hold.limit_lease_ms(hold.lease_ms, sent))
                    for hold in part
                    if (session := hold.session()) is not None
                ]
                if asked:
                    results = yield from asked[0][0].renew_all(asked)
                    self._jobs.put(partial(self._settle, sent, asked, results))
        except Exception:  # noqa: BLE001 - reported
            REPORTS.exception("lock", "renewing locks failed")

    def _settle(self, sent: float, asked: Sequence[Renewal], results: Sequence[Any]) -> None:
        """Apply the answers to a renewal; holds without one are still `renewing`."""
        gone: list[tuple[Hold, str]] = []
        failed: list[Hold] = []
        error: Exception | None = None
        for (session, hold, lease_ms), result in zip(asked, results, strict=True):
            if isinstance(result, Exception):
                error = result
                failed.append(hold)
                continue
            self._note_answer(hold.outage)
            if not result:
                gone.append((hold, "its key was gone when it was to be renewed"))
            else:
                hold.deadline = max(hold.deadline, deadline_of(sent, lease_ms))
                hold.schedule_renewal(sent + hold.renewal_seconds)
                hold.renewing, hold.outage = False, ""
                session.renewed(hold)
        self._lose(gone)
        self._note_failure(failed, error)

    def _end_renewal(self, holds: Iterable[Hold]) -> None:
        """Schedule another renewal, until the deadline, of holds without an answer."""
        for hold in holds:
            if hold.renewing:
                hold.renewing = False
                hold.schedule_renewal(boot_clock() + hold.retry_seconds)

    def _lose(self, over: Iterable[tuple[Hold, str]]) -> None:
        """Note that holds are lost; log one line for each kind and reason, and for each outage."""
        lost: dict[tuple[str, str], list[str]] = {}
        for hold, reason in over:
            self.remove(hold)
            session = hold.session()
            if session is not None and session.lose_behind(hold, reason):
                if (outage := self._outages.get(hold.outage)) is not None:
                    outage.lost.setdefault(reason, []).append(session.label)
                else:
                    lost.setdefault((session.what, reason), []).append(session.label)
        for (what, reason), labels in lost.items():
            REPORTS.lost(what, labels, reason)

    def _note_failure(self, failed: Sequence[Hold], error: object) -> None:
        """Begin an outage of all holds at the server, unless it is known."""
        # An answer may come late, when the hold is lost and its outage over.
        failed = [hold for hold in failed if hold in self._holds and hold.session() is not None]
        if not failed:
            return
        server, what = failed[0].outage or failed[0].servers(), failed[0].kind.what
        for hold in failed:
            hold.outage = server
        if server in self._outages:
            return
        labels = []
        for hold in self._holds.copy():
            session = hold.session()
            is_there = hold.renew_at is not None and server in (hold.outage, hold.servers())
            if session is not None and is_there:
                hold.outage = server
                labels.append(session.label)
        if labels:
            self._outages[server] = Outage(what)
            text = "%s could not be renewed yet: %s (%s; one line for all until it answers)"
            REPORTS.warning(what, text, listed(labels), error, server)

    def _note_answer(self, server: str) -> None:
        """Renew all holds at a server that answers again soon; the last one ends its outage."""
        outage = self._outages.get(server)
        if outage is not None and not outage.is_answered:
            outage.is_answered = True
            for hold in self._holds.copy():
                if hold.outage == server and hold.renew_at is not None:
                    hold.renew_at = min(hold.renew_at, boot_clock() + hold.retry_seconds)

    def _end_outages(self, still: Iterable[str]) -> None:
        for server in self._outages.copy().keys() - set(still):
            outage = self._outages.pop(server, None)
            if outage is None:
                # The main thread reports it, because the process ends.
                continue
            for reason, labels in outage.lost.copy().items():
                REPORTS.lost(outage.what, labels, reason)
            text = "%s renews again" if outage.is_answered else "nothing is left to renew at %s"
            seconds = boot_clock() - outage.since
            REPORTS.warning(outage.what, f"{text}, after %.1f s", server, seconds)

    def give_back_all(self) -> None:
        """Release, when the process ends, the locks of threads that have ended, and of this one.

        A daemon thread that runs may still work under its locks. A lock on a silent server expires
        by itself.
        """
        until = boot_clock() + AT_END_SECONDS

        def give_back(hold: Hold) -> Core[None]:
            yield Limit(until, [None])
            yield from hold.steps.give_back(hold)

        for hold in self._holds.copy():
            is_over = hold.owner is current_owner() or has_ended(hold.owner)
            if hold.loop is None and hold.steps and (is_over or hold.session() is None):
                self.remove(hold)
                with contextlib.suppress(Exception):
                    hold.runtime.run(give_back(hold))
        self._end_outages(())

    def _start_thread(self) -> None:
        # It is no worker, because those end.
        try:
            threading.Thread(target=self._run, name="bloomlock-watchdog", daemon=True).start()
        except RuntimeError:
            # Since Python 3.12 an atexit handler can start no thread. What it holds is not renewed.
            if threading.main_thread().is_alive():
                raise

    def _run(self) -> None:
        if not self._only_one.acquire(blocking=False):
            return
        busy_at = boot_clock()
        while self._holds or self._outages or boot_clock() - busy_at < IDLE_SECONDS:
            if self._holds:
                busy_at = boot_clock()
            # Whoever adds a hold before the time is known wakes it in any case.
            self._wake_at = float("inf")
            try:
                seconds = 0.0 if self._do_due() else self._seconds_to_next()
                self._wake_at = boot_clock() + seconds
                self._do_jobs(seconds)
            except BaseException:  # noqa: BLE001 - reported
                # Without this thread every lock of the process would be lost.
                REPORTS.exception("lock", "watching locks failed")
                time.sleep(LONGEST_SLEEP)
        self._only_one.release()
        if self._holds:
            # It was added when this thread seemed to run still.
            self._start_thread()

    def _do_jobs(self, seconds: float) -> None:
        """Do what is handed over in some seconds; None wakes the thread, which then looks again."""
        with contextlib.suppress(queue.Empty):
            job = self._jobs.get(timeout=seconds)
            while True:
                if job is not None:
                    job()
                job = self._jobs.get_nowait()

    def _start(self, holds: list[Hold]) -> None:
        """Carry out `_renew`, and then `_end_renewal`, where it holds up nobody else."""
        runtime, loop = holds[0].runtime, holds[0].loop
        end = partial(self._jobs.put, partial(self._end_renewal, holds))

        def work() -> None:
            try:
                runtime.run(self._renew(runtime, holds))
            finally:
                end()

        def begin_task() -> None:
            task = asyncio.ensure_future(runtime.run(self._renew(runtime, holds)))
            task.set_name("bloomlock-renewal")
            _TASKS.add(task)
            task.add_done_callback(_TASKS.discard)
            # Also of one that is cancelled before its first step.
            task.add_done_callback(lambda _: end())

        if loop is None:
            background.WORKERS.start(work)
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(begin_task)


_TASKS: set[asyncio.Task[None]] = set()
"""A loop keeps its tasks by weak references."""
WATCHDOG = Watchdog()
atexit.register(WATCHDOG.give_back_all)
os.register_at_fork(after_in_child=WATCHDOG.start_over)
