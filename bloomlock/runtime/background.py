"""What must not hold up the caller: a server that is silent, a step with a time limit.

In asyncio it is tasks. For threads it is daemons that end when they had nothing to do for a second:
they do not hold up the end of the process, and none stays behind an object that is no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.effects import ConnectionLost

from .clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from bloomlock.effects import AsyncRuntime, Behind, Core, FanOut, Runtime

    Job = Callable[[], None]

T = TypeVar("T")
logger = logging.getLogger("bloomlock.runtime")

FAILED = "failed to release a lock or claim; it expires by itself"
IDLE_SECONDS = 1.0
GRACE_SECONDS = 1.0
"""How long a caller that is cancelled waits at most for what must not stop half-way."""


def out_of_time(*, sent: bool) -> ConnectionLost:
    cause = RedisTimeoutError("the server did not answer within the time limit")
    return ConnectionLost(cause, sent=sent, replies=[])


class Workers:
    """Threads that run what they are given, as many as there is to do at once.

    What is used here is C through and through, so that a KeyboardInterrupt leaves it whole.
    """

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a child of fork has no threads."""
        self._lock = threading.RLock()
        self._idle = 0
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def start(self, job: Job) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._jobs.put(job)
                return
        try:
            threading.Thread(
                target=self._work, args=(job,), name="bloomlock-worker", daemon=True
            ).start()
        except RuntimeError:  # there are too many threads, or the process is ending
            job()

    def _work(self, job: Job | None) -> None:
        while job is not None:
            job()
            job = None  # what it refers to is not to live on here
            with self._lock:
                self._idle += 1
            job = self._next()

    def _next(self) -> Job | None:
        try:
            return self._jobs.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            with self._lock:
                # The giver of a job since then counts on the thread that was idle.
                with contextlib.suppress(queue.Empty):
                    return self._jobs.get_nowait()
                self._idle -= 1
                return None


WORKERS = Workers()
os.register_at_fork(after_in_child=WORKERS.start_over)


class Line:
    """What is asked of one server for one token, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._jobs: deque[Job] = deque()
        self._runs = False

    def append(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            runs = self._runs
        if not runs:
            WORKERS.start(self._run)

    def _run(self) -> None:
        with self._lock:
            if self._runs:
                return
            self._runs = True
        while True:
            with self._lock:
                if not self._jobs:
                    self._runs = False
                    return
                job = self._jobs.popleft()
            job()


def _line_of(line: list[Any]) -> Line:
    if line[0] is None:
        line[0] = Line()
    made: Line = line[0]
    return made


class _Awaited(Generic[T]):
    def __init__(self, work: Callable[[], T], late: Callable[[T], None]) -> None:
        self._work = work
        self._late = late
        self._answer: T
        self._failed: BaseException | None = None
        self._is_over: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Who takes its element first decides whether the result is awaited.
        self._awaited: list[None] = [None]

    def run(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            self._failed = error
        if self._take():
            self._is_over.put(None)
        else:
            self._give_late()

    def result(self, seconds: float) -> T:
        try:
            self._is_over.get(timeout=seconds)
        except BaseException as error:
            is_over = not self._take()
            if not isinstance(error, queue.Empty):
                # A KeyboardInterrupt, which may come just when the result is there.
                if is_over:
                    self._give_late()
                raise
            if not is_over:
                raise out_of_time(sent=True) from None
        if self._failed is not None:
            raise self._failed
        return self._answer

    def _take(self) -> bool:
        try:
            self._awaited.pop()
        except IndexError:
            return False
        return True

    def _give_late(self) -> None:
        if self._failed is None:
            self._late(self._answer)


class Background:
    """Carries out for threads what may outlast its caller."""

    def within(
        self, seconds: float, line: list[Any], work: Callable[[], T], late: Callable[[T], None]
    ) -> T:
        """Return what `work` returns; ConnectionLost when time is up, while it goes on.

        It comes after what goes on in `line` (see Limit); `late` gets a result that came too late.
        """
        awaited = _Awaited(work, late)
        _line_of(line).append(awaited.run)
        return awaited.result(seconds)

    def run_behind(self, run: Callable[[Core[None]], None], step: Behind) -> None:
        done: queue.SimpleQueue[None] = queue.SimpleQueue()

        def job() -> None:
            try:
                run(step.core)
            except Exception:
                logger.exception(FAILED)
            finally:
                done.put(None)

        _line_of(step.line).append(job)
        with contextlib.suppress(queue.Empty):
            done.get(timeout=max(0.0, step.seconds))

    def fan_out(self, runtimes: Sequence[Runtime], step: FanOut) -> list[Any]:
        """Run a core by each of the runtimes; one that does not end in time keeps its thread."""
        began = boot_clock()
        answers: list[Any] = [None] * len(step.cores)
        arrived: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

        def run_at(server: int, core: Core[Any]) -> None:
            try:
                arrived.put((server, runtimes[server].run(core)))
            except Exception as error:  # noqa: BLE001 - an answer of the FanOut
                arrived.put((server, error))

        for server, core in enumerate(step.cores):
            _line_of(step.lines[server]).append(partial(run_at, server, core))
        until = step.until
        for _ in answers:
            now = boot_clock()
            if until == step.until and step.is_enough(answers):
                until = step.end_of_grace(began, now)
            try:
                server, answer = arrived.get(timeout=max(0.0, until - now))
            except queue.Empty:
                break
            answers[server] = answer
        return answers


class AsyncBackground:
    """Carries out in tasks what may outlast its caller: a loop keeps its tasks by weak references.

    What a Limit, Behind or FanOut names as its line is the last task of it.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name="bloomlock-behind")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self, seconds: float) -> None:
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def within(
        self,
        seconds: float,
        line: list[Any],
        work: Callable[[], Coroutine[Any, Any, T]],
        late: Callable[[T], Coroutine[Any, Any, None]],
    ) -> T:
        """Return what `work` returns; ConnectionLost when time is up, while it goes on.

        It goes on also if the caller is cancelled: what is to be given back is given back after it.
        """

        def give_late(task: asyncio.Task[T]) -> None:
            if not task.cancelled() and task.exception() is None:
                self.start(late(task.result()))

        task: asyncio.Task[T] = self.start(work())
        line[0] = task
        try:
            await asyncio.wait((task,), timeout=seconds)
        finally:
            if not task.done():
                task.add_done_callback(give_late)
        if not task.done():
            raise out_of_time(sent=True)
        return task.result()

    async def run_behind(self, run: Callable[[Core[None]], Awaitable[None]], step: Behind) -> None:
        async def run_after(before: asyncio.Task[Any] | None) -> None:
            if before is not None:
                await asyncio.wait((before,))
            try:
                await run(step.core)
            except Exception:
                logger.exception(FAILED)

        task = step.line[0] = self.start(run_after(step.line[0]))
        await asyncio.wait((task,), timeout=max(0.0, step.seconds))

    async def fan_out(self, runtimes: Sequence[AsyncRuntime], step: FanOut) -> list[Any]:
        """Run a core by each of the runtimes; one that does not end in time keeps its task."""
        began = boot_clock()
        answers: list[Any] = [None] * len(step.cores)
        servers: dict[asyncio.Task[Any], int] = {}

        async def run_at(server: int, before: asyncio.Task[Any] | None) -> Any:
            if before is not None:
                await asyncio.wait((before,))
            try:
                async with asyncio.timeout(step.background_s):
                    return await runtimes[server].run(step.cores[server])
            except Exception as error:  # noqa: BLE001 - an answer of the FanOut
                return error

        for server, line in enumerate(step.lines):
            task = line[0] = self.start(run_at(server, line[0]))
            servers[task] = server
        out, until = set(servers), step.until
        while out:
            now = boot_clock()
            if until == step.until and step.is_enough(answers):
                until = step.end_of_grace(began, now)
            done, out = await asyncio.wait(
                out, timeout=max(0.0, until - now), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for task in done:
                if not task.cancelled():
                    answers[servers[task]] = task.result()
        return answers


async def finish(work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Await something to its end, however often the caller is cancelled.

    With `seconds` the work goes on alone when the caller waited that long after it was cancelled.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    until = float("inf")
    while not task.done():
        left = until - loop.time()
        if left <= 0 and cancelled is not None:
            _GO_ON.add(task)
            task.add_done_callback(_forget)
            raise cancelled
        try:
            await asyncio.wait((task,), timeout=left if left < float("inf") else None)
        except asyncio.CancelledError as error:
            if cancelled is None and seconds is not None:
                until = loop.time() + seconds
            cancelled = error
    if task.cancelled():
        raise asyncio.CancelledError
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()


_GO_ON: set[asyncio.Task[Any]] = set()


def _forget(task: asyncio.Task[Any]) -> None:
    _GO_ON.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("what went on after its caller was cancelled failed: %s", error)
