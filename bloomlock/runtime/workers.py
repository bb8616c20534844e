"""Threads for what must not hold up the caller: a server that is silent, a step with a time limit.

They are daemons and end when they had nothing to do for a second, so they do not hold up the end of
the process, and none stays behind an object that is no more.
"""

from __future__ import annotations

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
    from collections.abc import Callable, Sequence

    from bloomlock.effects import Core, FanOut, Runtime

    Job = Callable[[], None]

T = TypeVar("T")
logger = logging.getLogger("bloomlock.runtime")

IDLE_SECONDS = 1.0


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
        """Run a job in a thread that has nothing to do, or in a new one."""
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


class Line:
    """What is asked of one server for one token, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._jobs: deque[Job] = deque()
        self._runs = False

    def append(self, job: Job) -> None:
        """Run a job after all that were appended before."""
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

    @classmethod
    def of(cls, line: list[Any]) -> Line:
        """Return the line that a Limit or Behind names."""
        if line[0] is None:
            line[0] = cls()
        made: Line = line[0]
        return made


def within(seconds: float, line: list[Any], work: Callable[[], T], late: Callable[[T], None]) -> T:
    """Return what `work` returns; ConnectionLost when time is up, while it goes on.

    It comes after what goes on in `line` (see Limit); `late` gets a result that came too late.
    """
    awaited = _Awaited(work, late)
    Line.of(line).append(awaited.run)
    return awaited.result(seconds)


class _Awaited(Generic[T]):
    """Work whose result is awaited for a while."""

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
        if _take(self._awaited):
            self._is_over.put(None)
        else:
            self._give_late()

    def result(self, seconds: float) -> T:
        try:
            self._is_over.get(timeout=seconds)
        except BaseException as error:
            is_over = not _take(self._awaited)
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

    def _give_late(self) -> None:
        if self._failed is None:
            self._late(self._answer)


def out_of_time(*, sent: bool) -> ConnectionLost:
    """Return what is thrown into a core whose request had no time left."""
    cause = RedisTimeoutError("the server did not answer within the time limit")
    return ConnectionLost(cause, sent=sent, replies=[])


def run_behind(line: list[Any], work: Job, seconds: float) -> None:
    """Run what must not raise after what goes on in a line; wait for its end, but not for long."""
    done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def job() -> None:
        try:
            work()
        except Exception:
            logger.exception("failed to release a lock or claim; it expires by itself")
        finally:
            done.put(None)

    Line.of(line).append(job)
    with contextlib.suppress(queue.Empty):
        done.get(timeout=max(0.0, seconds))


def fan_out(runtimes: Sequence[Runtime], step: FanOut) -> list[Any]:
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
        Line.of(step.lines[server]).append(partial(run_at, server, core))
    num_out, until = len(answers), step.until
    while num_out:
        now = boot_clock()
        if until == step.until and step.is_enough(answers):
            until = step.end_of_grace(began, now)
        try:
            server, answer = arrived.get(timeout=max(0.0, until - now))
        except queue.Empty:
            break
        answers[server] = answer
        num_out -= 1
    return answers


def _take(element: list[None]) -> bool:
    try:
        element.pop()
    except IndexError:
        return False
    return True


WORKERS = Workers()
os.register_at_fork(after_in_child=WORKERS.start_over)
