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
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.clock import boot_clock
from bloomlock.effects import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from bloomlock.effects import FanOut

    Job = Callable[[], None]

T = TypeVar("T")
logger = logging.getLogger("bloomlock.runtime")

IDLE_SECONDS = 1.0
GRACE_SECONDS = 0.9
"""How long a caller that is cancelled waits at most for what must not stop half-way."""


def out_of_time(*, sent: bool) -> ConnectionLost:
    cause = RedisTimeoutError("the server did not answer within the time limit")
    return ConnectionLost(cause, sent=sent, replies=[])


class Workers:
    """Threads that run jobs; one that is idle waits for the next job in a queue of its own.

    All changes of the list are atomic, so a KeyboardInterrupt leaves it whole.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Job]] = []

    def start_over(self) -> None:
        """Forget all threads: a child of fork has none."""
        self._idle.clear()

    def start(self, job: Job) -> None:
        with contextlib.suppress(IndexError):
            self._idle.pop().put(job)
            return
        try:
            threading.Thread(
                target=self._work, args=(job,), name="bloomlock-worker", daemon=True
            ).start()
        except RuntimeError:  # there are too many threads, or the process is ending
            job()

    def _work(self, job: Job) -> None:
        jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        while True:
            job()
            del job  # what it refers to is not to live on here
            self._idle.append(jobs)
            try:
                job = jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(jobs)
                except ValueError:
                    job = jobs.get()  # A caller has just taken this thread.
                else:
                    return


WORKERS = Workers()
os.register_at_fork(after_in_child=WORKERS.start_over)


class SerialQueue:
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


class Background:
    def fan_out(self, calls: Sequence[Callable[[], Any]], step: FanOut) -> list[Any]:
        """Make calls, each in its queue of the step; return what came of them, None if too late."""
        began = boot_clock()
        answers: list[Any] = [None] * len(calls)
        arrived: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

        def job(index: int, call: Callable[[], Any]) -> None:
            try:
                arrived.put((index, call()))
            except Exception as error:  # noqa: BLE001 - an answer
                arrived.put((index, error))

        for index, (call, slot) in enumerate(zip(calls, step.queues, strict=True)):
            slot[0] = slot[0] or SerialQueue()
            slot[0].append(partial(job, index, call))
        until = step.until
        for _ in answers:
            now = boot_clock()
            if until == step.until and step.is_enough(answers):
                until = step.end_of_grace(began, now)
            try:
                index, answer = arrived.get(timeout=max(0.0, until - now))
            except queue.Empty:
                break
            answers[index] = answer
        return answers


class AsyncBackground:
    """Carries out in tasks what may outlast its caller; the queue of a step is its last task."""

    def __init__(self) -> None:
        # A loop keeps its tasks by weak references.
        self._tasks: set[asyncio.Task[Any]] = set()

    async def end(self, seconds: float) -> None:
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def fan_out(
        self, calls: Sequence[Callable[[], Coroutine[Any, Any, Any]]], step: FanOut
    ) -> list[Any]:
        """Make calls as Background.fan_out does; they go on also if the caller is cancelled."""
        began = boot_clock()
        answers: list[Any] = [None] * len(calls)
        indices: dict[asyncio.Task[Any], int] = {}

        async def job(
            call: Callable[[], Coroutine[Any, Any, Any]], before: asyncio.Task[Any] | None
        ) -> Any:
            if before is not None:
                await asyncio.wait((before,))
            try:
                async with asyncio.timeout(step.background_s):
                    return await call()
            except Exception as error:  # noqa: BLE001 - an answer
                return error

        for index, (call, slot) in enumerate(zip(calls, step.queues, strict=True)):
            task = slot[0] = asyncio.create_task(job(call, slot[0]), name="bloomlock-run-after")
            indices[task] = index
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        out, until = set(indices), step.until
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
                    answers[indices[task]] = task.result()
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
            keep(task).add_done_callback(_report)
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


_TASKS: set[asyncio.Task[Any]] = set()


def keep(task: asyncio.Task[T]) -> asyncio.Task[T]:
    # A loop keeps its tasks by weak references.
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
    return task


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("what went on after its caller was cancelled failed: %s", error)
