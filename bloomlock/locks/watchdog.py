"""Watchdogs renew what is held, locks and claims, and find out what is lost.

There is one thread for all of the process, and one timer for all of an event loop. Neither waits
for a server, logs, or calls what users gave, but for observers in asyncio.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import queue
import threading
import weakref
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from bloomlock.effects import ConnectionLost, Limit
from bloomlock.locks.protocol.waiting import deadline_of
from bloomlock.runtime import background
from bloomlock.runtime.clock import boot_clock
from bloomlock.slot_moves import without_waiting

from .hold import OUT_OF_LEASE, Hold, thread_is_over
from .reports import AT_END_SECONDS, REPORTS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from bloomlock.effects import AnyRuntime, Core

    from .hold import Place, Watched

IDLE_SECONDS = 5.0
LONGEST_SLEEP = 1.0
"""Seconds between looks: what a watchdog sleeps by does not count suspend, the leases do."""
GOES_ALONG = 0.25
"""By which part of the time between two renewals one may be early."""


class Schedule:
    """The holds that are watched, and what is due when.

    Holders change the dictionary while the watchdog reads copies of it. There is no mutex, so
    nobody waits for a thread that is held up.
    """

    def __init__(self) -> None:
        self._holds: dict[Hold, None] = {}

    def add(self, hold: Hold, session: Watched, runtime: AnyRuntime) -> None:
        hold.session, hold.kind = weakref.ref(session), type(session)
        hold.steps, hold.runtime = session.steps, runtime
        self._holds[hold] = None

    def remove(self, hold: Hold) -> None:
        self._holds.pop(hold, None)

    def _start(self, renewal: Core[None], runtime: Any, holds: list[Hold]) -> None:
        """Carry out a renewal where it holds up nobody else; let it be over for the holds then."""
        raise NotImplementedError

    def _seconds_to_next(self) -> float:
        at = min((hold.next_time() for hold in self._holds.copy()), default=float("inf"))
        return min(max(0.0, at - boot_clock()), LONGEST_SLEEP)

    def _do_due(self) -> bool:
        """Note what is over, and begin renewals that are due; return whether there were any."""
        now = boot_clock()
        over, due = self._over(now), self._due(now)
        self._lose(over)
        for (runtime, *_), holds in due.items():
            self._start(self._renew(runtime, holds), runtime, holds)
        return bool(over or due)

    def _over(self, now: float) -> list[tuple[Hold, str]]:
        """Return the holds that are over, each with the reason.

        The owner of a hold is looked at whenever it is to be renewed.
        """
        over = []
        for hold in self._holds.copy():
            session = hold.session()
            if hold.deadline <= now:
                over.append((hold, OUT_OF_LEASE))
            elif hold.is_due(now) and session is not None and session.is_orphan(hold):
                over.append((hold, "the thread or task that held it has ended"))
        return over

    def _due(self, now: float) -> dict[Place, list[Hold]]:
        """Return the holds to renew now, by runtime, server and kind; each until it is answered.

        A server that is still busy with an earlier renewal waits its turn: one that does not
        answer must not collect threads, nor hold up the other ones of a cluster. What would be due
        soon goes along with what is due now, so that holds that began one by one are renewed
        together.
        """
        holds = self._holds.copy()
        if not any(hold.is_due(now) for hold in holds):
            return {}
        busy = {hold.place() for hold in holds if hold.renewing}
        found: dict[Place, list[Hold]] = {}
        dropped: Counter[str] = Counter()
        for hold in holds:
            if not hold.is_due(now + hold.renewal_seconds * GOES_ALONG):
                continue
            if hold.session() is None:
                dropped[hold.kind.what] += 1
                hold.renew_at = None
            elif (place := hold.place()) in busy:
                hold.renew_at = now + hold.retry_seconds
            else:
                hold.renewing = True
                found.setdefault(place, []).append(hold)
        for what, number in dropped.items():
            text = "a %s was dropped while held; it is left to expire"
            if number > 1:
                text = f"{number} %ss were dropped while held; they are left to expire"
            REPORTS.warning(what, text, what)
        return found

    def _lose(self, over: Iterable[tuple[Hold, str]]) -> None:
        """Note that holds are lost, each with the reason; one log line for each kind and reason."""
        lost: dict[tuple[str, str], list[str]] = {}
        for hold, reason in over:
            self.remove(hold)
            session = hold.session()
            if session is not None and session.lose_behind(hold, reason):
                lost.setdefault((session.what, reason), []).append(session.label)
        for (what, reason), labels in lost.items():
            REPORTS.lost(what, labels, reason)

    def _renew(self, runtime: Any, holds: list[Hold]) -> Core[None]:
        try:
            for part in runtime.by_server(holds, Hold.key):
                yield from self._renew_part(part)
        except Exception:  # noqa: BLE001 - reported
            REPORTS.exception("lock", "renewing locks failed")

    def _renew_part(self, holds: list[Hold]) -> Core[None]:
        """Renew holds that one request may carry and note the answers.

        A hold whose renewal is not answered is tried again until its deadline.
        """
        sent = boot_clock()
        asked: list[tuple[Hold, Watched, int]] = []
        for hold in holds:
            session = hold.session()
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
                hold.schedule_renewal(boot_clock() + hold.retry_seconds)
            elif not result:
                gone.append((hold, "its key was gone when it was to be renewed"))
            else:
                hold.deadline = max(hold.deadline, deadline_of(sent, lease_ms))
                hold.schedule_renewal(sent + hold.renewal_seconds)
            # What waits for this finds the new deadline.
            hold.renewing = False
            if result is True:
                session.renewed(hold)
        self._lose(gone)
        if failed:
            REPORTS.not_renewed(of_first.what, failed, first.address(), error)
        else:
            REPORTS.renewed(of_first.what, first.address())

    def _end_renewal(self, holds: Iterable[Hold]) -> None:
        """Let those be tried again soon that were not answered."""
        for hold in holds:
            if hold.renewing:
                hold.renewing = False
                hold.schedule_renewal(boot_clock() + hold.retry_seconds)

    def _take_left(
        self, has_ended: Callable[[object], bool]
    ) -> list[tuple[Any, Core[Exception | None]]]:
        """Take out the holds of owners that can give nothing back; return what gives them back.

        That is done when the process or the loop ends, if the server answers in time.
        """
        until = boot_clock() + AT_END_SECONDS
        left = []
        for hold in self._holds.copy():
            is_ours = hold.steps is not None and hold.pid == os.getpid()
            if is_ours and (hold.owner is None or hold.session() is None or has_ended(hold.owner)):
                self.remove(hold)
                left.append((hold.runtime, _give_back(hold, until)))
        return left


def _give_back(hold: Hold, until: float) -> Core[Exception | None]:
    """Release a hold that its owner did not; return why it could not be."""
    yield Limit(until, [None])
    try:
        if hold.steps is not None:
            yield from hold.steps.give_back(hold)
    except (ConnectionLost, RedisError) as error:
        return error
    return None


def _report_left(failures: Iterable[object]) -> None:
    """Log what was not given back at the end, in one line: the cause is mostly one for all."""
    left = [failure for failure in failures if failure is not None]
    if left:
        why = str(left[0]) or type(left[0]).__name__
        text = "a lock was not released at the end and is left to expire: %s"
        if len(left) > 1:
            text = f"{len(left)} locks were not released at the end and are left to expire: %s"
        REPORTS.warning("lock", text, why)


class Watchdog(Schedule):
    """Watches the holds of all threads."""

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
            self._start_thread()
        elif at < self._wake_at:
            # The next hold, which is due later, need not wake it again: most are over by then.
            self._wake_at = at
            self._wake.put(None)

    def give_back_all(self) -> None:
        """Release what is held when the process ends, but for what a running thread holds.

        The main thread is at its end then. A daemon thread may still work under its locks.
        """
        failures: list[Exception | None] = []
        for runtime, core in self._take_left(thread_is_over):
            try:
                failures.append(runtime.run(core))
            except Exception as error:  # noqa: BLE001 - reported
                failures.append(error)
        _report_left(failures)

    @staticmethod
    def call(function: Callable[[], None]) -> None:
        """Call a function that runs the user's code, in another thread."""
        background.WORKERS.start(function)

    def _start_thread(self) -> None:
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
            self._start_thread()

    def _look(self) -> None:
        """Do what is due, or sleep until something is; end if there is nothing to watch."""
        now = boot_clock()
        did = self._do_due()
        if self._holds or did:
            self._idle_since = now
        elif now - self._idle_since > IDLE_SECONDS:
            self._runs = False
            return
        if not did:
            # Whoever adds a hold before the time is known wakes it in any case.
            self._wake_at = float("inf")
            seconds = self._seconds_to_next()
            self._wake_at = boot_clock() + seconds
            self._sleep(seconds)

    def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=seconds)
            while True:
                self._wake.get_nowait()

    def _start(self, renewal: Core[None], runtime: Any, holds: list[Hold]) -> None:
        def work() -> None:
            try:
                runtime.run(renewal)
            finally:
                self._end_renewal(holds)
                self._wake.put(None)

        background.WORKERS.start(work)


class AsyncWatchdog(Schedule):
    """Watches the holds of all tasks of one loop; get it by `watchdog_of_loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        # The loop must not be kept alive by what is kept for it.
        self._loop = weakref.ref(loop)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_end: AsyncGenerator[None, None] | None = None

    def add(self, hold: Hold, session: Watched, runtime: AnyRuntime) -> None:
        super().add(hold, session, runtime)
        self._set_timer()
        if self._at_end is None:
            # A loop that ends closes its asynchronous generators while it still runs.
            self._at_end = self._give_back_at_end()
            with contextlib.suppress(StopIteration):
                self._at_end.__anext__().send(None)

    async def _give_back_at_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._at_end = None
            left = [runtime.run(core) for runtime, core in self._take_left(_task_is_over)]
            before = asyncio.all_tasks()
            _report_left(await asyncio.gather(*left, return_exceptions=True))
            # The loop has cancelled its tasks already; what a silent server keeps is of later.
            for task in (late := asyncio.all_tasks() - before):
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    @staticmethod
    def call(function: Callable[[], None]) -> None:
        """Call a function that runs the user's code, in the loop."""
        function()

    def _set_timer(self) -> None:
        loop = self._loop()
        if loop is None or not self._holds:
            return
        seconds = self._seconds_to_next()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            self._do_due()
        finally:
            self._set_timer()

    def _start(self, renewal: Core[None], runtime: Any, holds: list[Hold]) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(runtime.run(renewal), name="bloomlock-renewal")
        self._tasks.add(task)
        # Also of one that is cancelled before its first step.
        task.add_done_callback(partial(self._after_renewal, holds))

    def _after_renewal(self, holds: list[Hold], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._end_renewal(holds)
        self._set_timer()


def _task_is_over(owner: object) -> bool:
    return not isinstance(owner, asyncio.Future) or owner.done()


def watchdog_of_loop() -> AsyncWatchdog:
    loop = asyncio.get_running_loop()
    watchdog = _WATCHDOGS.get(loop)
    if watchdog is None:
        for other in list(_WATCHDOGS):
            # Its generator keeps a loop that was closed without being shut down.
            if other.is_closed():
                del _WATCHDOGS[other]
        watchdog = _WATCHDOGS[loop] = AsyncWatchdog(loop)
    return watchdog


_WATCHDOGS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWatchdog] = (
    weakref.WeakKeyDictionary()
)
WATCHDOG = Watchdog()
atexit.register(WATCHDOG.give_back_all)
os.register_at_fork(after_in_child=WATCHDOG.start_over)
