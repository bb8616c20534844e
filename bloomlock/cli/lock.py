"""`bloomlock lock`: hold a lock for as long as a command runs, across any number of machines."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from redis.exceptions import RedisError

from bloomlock import AsyncFairLock, AsyncLock, AsyncReadWriteLock, LockNotOwnedError

from .child import SIGNAL_STATUS, Child, find_program
from .errors import Stopped, die, warn
from .options import examples, name_argument, url_option

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


def seconds(text: str | float) -> float:
    """Return a number of seconds.

    >>> seconds("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise click.BadParameter(f"it must be a number of seconds, at least 0, not {text!r}")
    return number


class LockCommand(click.Command):
    """A command whose options may stand before or after NAME, but not in COMMAND.

    In `bloomlock lock logs grep -n error` the -n is grep's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the options first."""
        ctx.allow_interspersed_args = False
        options, operands = self._split(ctx, args)
        more, command = self._split(ctx, operands[1:])
        return super().parse_args(ctx, [*options, *more, "--", *operands[:1], *command])

    def _split(self, ctx: click.Context, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the options at the beginning, and the rest."""
        params = self.get_params(ctx)
        options = [param for param in params if param.param_type_name == "option"]
        only_options = click.Command(None, params=options, add_help_option=False)
        _, rest, _ = only_options.make_parser(ctx).parse_args(list(args))
        first = list(args[: len(args) - len(rest)])
        return first[:-1] if first[-1:] == ["--"] else first, rest


@click.command(
    "lock",
    cls=LockCommand,
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


class Outcome(NamedTuple):
    """The exit status, and the signal that stopped the wait, or the command and this process."""

    status: int
    signal: int | None = None


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
        """Wait for the lock; a signal ends the wait, and leaves nothing behind on the server."""
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
            # The lock is not renewed when the guard acts: others may have it after 2/3 of the ttl.
            grace = min(self._job.grace, self._job.ttl / 2)
            child = Child(self._program, self._job.command, self._environment(), grace)
            self._child = child
            lost = await self._watch(child)
        finally:
            held = await self._release()
        if lost or not held:
            return Outcome(LOST)  # the log says why
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
            die(number)  # the second signal: not even the server is waited for

    def _look(self) -> None:
        if self._child is not None:
            self._child.look()


def _make_lock(job: Job) -> AsyncLock:
    if job.kind == "shared":
        return AsyncReadWriteLock(job.name, job.url, job.ttl).read
    return (AsyncFairLock if job.kind == "fair" else AsyncLock)(job.name, job.url, job.ttl)
