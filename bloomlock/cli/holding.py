"""Hold a lock for as long as a command runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import RedisError

from bloomlock import AsyncFairLock, AsyncLock, AsyncReadWriteLock, LockNotOwnedError

from .child import Child, find_program
from .failures import die, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

LOST = 75
"""Exit status if the lock was lost: EX_TEMPFAIL of sysexits.h, try again."""
FENCE = "BLOOMLOCK_FENCE"
NAME = "BLOOMLOCK_LOCK_NAME"

_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Job(NamedTuple):
    """What is asked for.

    Attributes:
        name: Of the lock.
        command: What to run.
        url: Of the server, or None for the default one.
        kind: "plain", "fair" or "shared".
        ttl: Seconds that the lock outlives this process.
        timeout: Seconds to wait for the lock, or None for ever.
        grace: Seconds between SIGTERM and SIGKILL.
        conflict: Exit status if the lock was not to be had.
        verbose: Whether to say how long it took.
    """

    name: str
    command: Sequence[str]
    url: str | None
    kind: str
    ttl: float
    timeout: float | None
    grace: float
    conflict: int
    verbose: bool


class Outcome(NamedTuple):
    """How it ended.

    Attributes:
        status: The exit status.
        signal: What stopped the wait or, sent to this process too, the command; or None.
    """

    status: int
    signal: int | None = None


def run_under_lock(job: Job) -> Outcome:
    """Take the lock, run the command, give the lock back.

    Raises:
        CannotRunError: If the command cannot be run; found out before the lock is taken, except
            for what only trying shows.
        BloomlockError: As the locks.
        redis.exceptions.RedisError: The same.
    """
    program = find_program(job.command[0])
    return asyncio.run(_Holding(job, program).run())


class _Holding:
    """One run. In an event loop, because there a signal cannot strike in the middle of a step."""

    def __init__(self, job: Job, program: str) -> None:
        self._job = job
        self._program = program
        self._lock = _make_lock(job)
        self._task: asyncio.Task[Any] | None = None
        self._child: Child | None = None
        self._received: list[int] = []

    async def run(self) -> Outcome:
        """Do it all."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a background job
                loop.add_signal_handler(number, self._receive, number)
        loop.add_signal_handler(signal.SIGCHLD, self._look)
        try:
            if not await self._acquire():
                return Outcome(self._job.conflict)
            return await self._run()
        except asyncio.CancelledError:
            return Outcome(_SIGNAL_STATUS + self._received[0], self._received[0])
        finally:
            await self._lock.close()

    async def _acquire(self) -> bool:
        start = time.monotonic()
        timeout = self._job.timeout
        if timeout is None:
            obtained = await self._lock.acquire()
        elif timeout > 0:
            obtained = await self._lock.acquire(timeout=timeout)
        else:
            obtained = await self._lock.acquire(blocking=False)
        if self._job.verbose:
            verb = "obtained" if obtained else "not obtained"
            warn(f"lock {self._job.name!r} {verb} after {time.monotonic() - start:.3f} s")
        return obtained

    async def _run(self) -> Outcome:
        lost = False
        try:
            child = self._child = Child(
                self._program, self._job.command, self._environment(), self._guard_grace()
            )
            await self._until_ended_or_lost(child)
        finally:
            lost = not await self._release()
        if lost:
            warn(f"lock {self._job.name!r} was lost; the command ended with status {child.status}")
            return Outcome(LOST)
        return Outcome(child.status, child.killer if child.killer in self._received else None)
