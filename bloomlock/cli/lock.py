"""`bloomlock lock`: hold a lock for as long as a command runs, across any number of machines."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from redis.exceptions import RedisError

from bloomlock import AsyncFairLock, AsyncLock, AsyncReadWriteLock
from bloomlock.errors import LockNotOwnedError

from .child import (
    LOST,
    SIGNAL_STATUS,
    Child,
    ChildCommand,
    Outcome,
    Supervisor,
    find_program,
    seconds,
)
from .errors import Stopped, warn
from .options import examples, name_argument, url_option

if TYPE_CHECKING:
    from collections.abc import Sequence

FENCE = "BLOOMLOCK_FENCE"
NAME = "BLOOMLOCK_LOCK_NAME"


@click.command(
    "lock",
    cls=ChildCommand,
    epilog=examples(
        "bloomlock lock backup -n -- rsync -a /srv/ backup:/srv/",
        "bloomlock lock deploy --timeout 60 -E 99 make deploy",
        "bloomlock lock --shared index -- search-server",
    ),
)
@name_argument
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option("-n", "--nonblock", is_flag=True, help="Do not wait: --timeout 0.")
@click.option(
    "-w",
    "--timeout",
    type=seconds,
    metavar="SECONDS",
    help="How long to wait for the lock.  [default: for ever]",
)
@click.option(
    "-E",
    "--conflict-exit-code",
    "conflict",
    type=click.IntRange(0, 255),
    default=1,
    show_default=True,
    metavar="N",
    help="Exit status if the lock is not obtained in that time.",
)
@click.option("--fair", is_flag=True, help="Strictly in the order of asking.")
@click.option(
    "-s/-x",
    "--shared/--exclusive",
    "shared",
    help="Together with others that say --shared, or alone.  [default: --exclusive]",
)
@click.option(
    "--ttl",
    type=seconds,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the lock stays taken if this machine dies; it is renewed while COMMAND runs.",
)
@click.option(
    "--grace",
    type=seconds,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long after SIGTERM a COMMAND that has lost its lock is sent SIGKILL.",
)
@url_option
@click.option("-v", "--verbose", is_flag=True, help="Say how long it took to get the lock.")
def lock_command(
    name: str, command: tuple[str, ...], *, nonblock: bool, fair: bool, shared: bool, **rest: Any
) -> int:
    """Run COMMAND while holding the lock NAME, which no other process holds meanwhile, anywhere.

    As flock(1), across machines. Options end where COMMAND begins; "--" may stand before it.
    COMMAND finds the number of this grant in BLOOMLOCK_FENCE, higher than those of all grants
    before, and NAME in BLOOMLOCK_LOCK_NAME. What it leaves in the background goes on without the
    lock.

    If the lock is lost (it was deleted, or the server cannot be reached until the lease is
    over), COMMAND is sent SIGTERM, and SIGKILL after --grace. The same if bloomlock is killed.
    The signals HUP, INT, QUIT, TERM, USR1 and USR2 are sent on to COMMAND.

    Exit status: that of COMMAND; 128 + N if signal N ended it; 126 if it cannot be run, 127 if
    there is none such; 1 (see -E) if the lock was not obtained in time; 75 if the lock was lost;
    2 after an error.
    """
    if shared and fair:
        raise click.UsageError("--fair and --shared do not go together")
    if nonblock and rest["timeout"]:
        raise click.UsageError("--nonblock and --timeout do not go together")
    if nonblock:
        rest["timeout"] = 0.0
    kind = "shared" if shared else "fair" if fair else "plain"
    job = Job(name, command, kind=kind, **rest)
    # Found before the lock is taken, as far as that can be known without trying.
    program = find_program(command[0])
    outcome = asyncio.run(_Holding(job, program).run())
    if outcome.signal is not None:
        raise Stopped(outcome.signal)
    return outcome.status


class Job(NamedTuple):
    """What the user asked for; `kind` is "plain", "fair" or "shared"."""

    name: str
    command: Sequence[str]
    url: str | None
    kind: str
    ttl: float
    timeout: float | None
    grace: float
    conflict: int
    verbose: bool


class _Holding(Supervisor):
    """One run."""

    def __init__(self, job: Job, program: str) -> None:
        super().__init__()
        self._job = job
        self._program = program
        self._lock = _make_lock(job)

    async def run(self) -> Outcome:
        """Take the lock, run the command, release the lock."""
        self.handle_signals()
        try:
            obtained = await self._acquire()
            if self.received:
                return Outcome(SIGNAL_STATUS + self.received[0], self.received[0])
            return await self._run_child() if obtained else Outcome(self._job.conflict)
        finally:
            await self._lock.close()

    async def _acquire(self) -> bool:
        """Wait for the lock; a signal ends the wait, and leaves nothing behind on the server."""
        start = time.monotonic()
        if self._job.timeout == 0:
            acquiring = self._lock.acquire(blocking=False)
        else:
            acquiring = self._lock.acquire(timeout=self._job.timeout or -1)
        obtained = bool(await self.until_signal(acquiring))
        if obtained and self.received:
            await self._release()
        elif self._job.verbose:
            what = f"obtained, fence {self._lock.fence}," if obtained else "not obtained"
            warn(f"lock {self._job.name!r}: {what} after {time.monotonic() - start:.3f} s")
        return obtained

    async def _run_child(self) -> Outcome:
        lost = False
        try:
            # The lock is not renewed when the guard acts: others may have it after 2/3 of the ttl.
            grace = min(self._job.grace, self._job.ttl / 2)
            child = Child(self._program, self._job.command, self._environment(), grace)
            self.child = child
            lost = await self._watch(child)
        finally:
            held = await self._release()
        if lost or not held:
            return Outcome(LOST)  # the log says why
        return self.outcome_of(child)

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


def _make_lock(job: Job) -> AsyncLock:
    if job.kind == "shared":
        return AsyncReadWriteLock(job.name, job.url, job.ttl).read
    return (AsyncFairLock if job.kind == "fair" else AsyncLock)(job.name, job.url, job.ttl)
