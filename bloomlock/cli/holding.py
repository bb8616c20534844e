"""Hold a lock for as long as a command runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from bloomlock import AsyncFairLock, AsyncLock, AsyncReadWriteLock, LockNotOwnedError

from .child import SIGNAL_STATUS, Child, find_program
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
        ttl: Seconds the lock outlives this process if that is killed.
        timeout: Seconds to wait for the lock, or None for ever.
        grace: Seconds between SIGTERM and SIGKILL.
        conflict: Exit status if the lock was not to be had in time.
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
        signal: What stopped the wait, or the command and was sent to this process, too; or None.
    """

    status: int
    signal: int | None = None


def run_under_lock(job: Job) -> Outcome:
    """Take the lock, run the command, give the lock back.

    Raises:
        CannotRunError: If the command cannot be run; found out before the lock is taken, except
            for what only trying shows.
        BloomlockError: As the locks do.
        redis.exceptions.RedisError: The same.
    """
    program = find_program(job.command[0])
    return asyncio.run(_Holding(job, program).run())


class _Holding:
    """One run. In an event loop, because there no signal strikes in the middle of a step."""

    def __init__(self, job: Job, program: str) -> None:
        self._job = job
        self._program = program
        self._lock = _make_lock(job)
        self._waiting: asyncio.Task[Any] | None = None
        self._child: Child | None = None
        self._received: list[int] = []

    async def run(self) -> Outcome:
        """Do all of it."""
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a background job
                loop.add_signal_handler(number, self._receive, number)
        loop.add_signal_handler(signal.SIGCHLD, self._look)
        try:
            obtained = await self._acquire()
            if self._received:
                return Outcome(SIGNAL_STATUS + self._received[0], self._received[0])
            return await self._run_child() if obtained else Outcome(self._job.conflict)
        finally:
            await self._lock.close()

    async def _acquire(self) -> bool:
        """Wait for the lock; a signal ends that, and leaves nothing behind on the server."""
        start = time.monotonic()
        obtained = False
        self._waiting = asyncio.current_task()
        try:
            if self._job.timeout == 0:
                obtained = await self._lock.acquire(blocking=False)
            else:
                obtained = await self._lock.acquire(timeout=self._job.timeout or -1)
        except asyncio.CancelledError:
            if not self._received:
                raise
        finally:
            self._waiting = None
        if obtained and self._received:
            await self._release()
        elif self._job.verbose:
            what = f"obtained, fence {self._lock.fence}," if obtained else "not obtained"
            warn(f"lock {self._job.name!r}: {what} after {time.monotonic() - start:.3f} s")
        return obtained

    async def _run_child(self) -> Outcome:
        lost = False
        try:
            # Nobody renews the lock when the guard acts: others may have it after 2/3 of the ttl.
            grace = min(self._job.grace, self._job.ttl / 2)
            child = Child(self._program, self._job.command, self._environment(), grace)
            self._child = child
            lost = await self._watch(child)
        finally:
            held = await self._release()
        if lost or not held:
            return Outcome(LOST)  # The lock has said why, in the log.
        return Outcome(child.status, child.killer if child.killer in self._received else None)

    async def _watch(self, child: Child) -> bool:
        """Wait for the end of the command; end it if the lock is lost, and return True then."""
        ended = asyncio.ensure_future(child.wait())
        lost = asyncio.ensure_future(self._lock.lost.wait())
        await asyncio.wait((ended, lost), return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if ended.done():
            return False
        warn("ending the command, which has no lock any more")
        await child.end(self._job.grace)
        await ended
        return True

    async def _release(self) -> bool:
        """Give the lock back; return False if it had been lost."""
        try:
            await self._lock.release()
        except LockNotOwnedError:
            return False
        except (RedisError, OSError) as error:
            # It was held all the time that the command ran, and that is what counts.
            warn(f"lock {self._job.name!r} stays taken for up to {self._job.ttl:g} s: {error}")
        return True

    def _environment(self) -> dict[str, str]:
        environment = os.environ | {NAME: self._job.name}
        environment.pop(FENCE, None)
        if self._lock.fence is not None:
            environment[FENCE] = str(self._lock.fence)
        return environment

    def _receive(self, number: int) -> None:
        self._received.append(number)
        if self._child is not None:
            self._child.forward(number)
        elif self._waiting is None:
            return
        elif self._received == [number]:
            self._waiting.cancel()
        else:
            die(number)  # Who asks twice does not want to wait for the server.

    def _look(self) -> None:
        if self._child is not None:
            self._child.look()


def _make_lock(job: Job) -> AsyncLock:
    if job.kind == "shared":
        return AsyncReadWriteLock(job.name, job.url, job.ttl).read
    return (AsyncFairLock if job.kind == "fair" else AsyncLock)(job.name, job.url, job.ttl)
