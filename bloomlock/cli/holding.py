"""`bloomlock lock` and `once`: a command runs while a lock or a claim is held, on any machine.

If this process is killed, a guard sends the command SIGTERM, and SIGKILL a grace later.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import click
from redis.exceptions import RedisError

from bloomlock import AsyncBloomFilter, AsyncLock, AsyncReadWriteLock, ClaimState
from bloomlock.errors import ClaimError, FilterMismatchError, LockNotOwnedError
from bloomlock.server import ProcessGuard

from . import options
from .options import example
from .output import BUSY, CANNOT_RUN, NO, NOT_FOUND, SIGNALLED, Failure, Stopped, die, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from .options import F

# As of flock(1), ssh(1) and the like: in `bloomlock lock logs grep -n error` the -n is grep's.
_OPTIONS_FIRST = {"allow_interspersed_args": False}
_STATUS = click.IntRange(0, 255)
_FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED = (*_FROM_KEYS, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PAUSE = 0.05
_command_argument = click.argument(
    "command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED
)


def _holding_options(default_lease: float, default_wait: str) -> Callable[[F], F]:
    return options.several(
        options.time_option("-w", "--wait", what=f"How long to wait.  [default: {default_wait}]"),
        options.time_option("--lease", default=default_lease, what="Taken so long after a crash."),
        options.time_option("--grace", default=10.0, what="From SIGTERM to SIGKILL."),
        options.value_option(
            "-E", "--busy-exit-code", "busy", kind=_STATUS, default=BUSY, what="If it is taken."
        ),
        options.url_option,
    )


@click.command(
    "lock",
    context_settings=_OPTIONS_FIRST,
    epilog=example("bloomlock lock -n backup rsync -a /srv/ backup:/srv/"),
)
@options.name_argument
@_command_argument
@click.option("-n", "--nonblock", is_flag=True, help="Do not wait: --wait 0.")
@click.option("-s", "--shared", is_flag=True, help="Together with others that say --shared.")
@_holding_options(30.0, "for ever")
def lock_command(
    name: str, *, nonblock: bool, shared: bool, wait: float | None, **given: Any
) -> int:
    """Run COMMAND while holding the lock NAME, as flock(1), across machines.

    If the lock is lost, or bloomlock is killed, COMMAND is ended. The exit status
    is that of COMMAND, else see `bloomlock -h`.
    """
    busy, where = given.pop("busy"), (name, given.pop("client"), given["lease"])

    async def hold(running: Command) -> int:
        lock = AsyncReadWriteLock(*where).read if shared else AsyncLock(*where)
        try:
            if not await lock.acquire(timeout=0.0 if nonblock else wait):
                return int(busy)
            try:
                status = await running.run(lock.fence, lock.lost.wait())
            finally:
                was_held = await _release(lock, name)
            return status if was_held else BUSY
        finally:
            await lock.close()

    return supervise(hold, **given)


async def _release(lock: AsyncLock, name: str) -> bool:
    """Return whether it was held all the time that the command ran."""
    try:
        await lock.release()
    except LockNotOwnedError:
        return False  # the log says why
    except (RedisError, OSError) as error:
        if lock.lost.is_set():
            return False
        warn(f"lock {name!r} stays taken until its lease ends: {error}")
    return True


@click.command(
    "once",
    context_settings=_OPTIONS_FIRST,
    epilog=example('bloomlock once welcomed "$user" send-mail "$user"'),
)
@options.name_argument
@click.argument("item", metavar="KEY")
@_command_argument
@options.value_option("--done-exit-code", "done", kind=_STATUS, default=0, what="If KEY was done.")
@options.key_option
@_holding_options(60.0, "not at all")
def once_command(
    name: str, item: str, *, key: bytes | None, wait: float | None, lease: float, **given: Any
) -> int:
    """Run COMMAND unless KEY is done: in the filter NAME, which keeps the done ones.

    KEY is done when COMMAND exits with status 0. At the filter's error rate a new
    KEY looks done. The exit status is that of COMMAND, else see `bloomlock -h`.
    """
    client, statuses = given.pop("client"), {ClaimState.SEEN: given.pop("done")}
    statuses |= {ClaimState.BUSY: given.pop("busy"), ClaimState.FAILED: NO}

    async def hold(running: Command) -> int:
        try:
            opened = await AsyncBloomFilter.open(name, client=client)
        except FilterMismatchError:
            if key is None:
                raise
            opened = await AsyncBloomFilter.open(name, client=client, key=key)
        async with opened as bloom:
            claim = await bloom.claim(os.fsencode(item), lease, wait=wait)
            if not claim:
                return int(statuses[claim.state])
            # A claim that is lost shows when it is committed: the work may be done all the same.
            never = asyncio.Event().wait()
            try:
                async with claim:
                    if status := await running.run(claim.fence, never):
                        await claim.abandon()  # no failed attempt
            except ClaimError as error:
                warn(str(error))
                return BUSY
        return status

    return supervise(hold, lease=lease, **given)


def supervise(
    hold: Callable[[Command], Coroutine[Any, Any, int]],
    command: Sequence[str],
    lease: float,
    grace: float,
) -> int:
    """Run `hold`, which takes something, runs the command and gives it back; return its status.

    A signal cancels `hold` as long as the command has not begun, and goes to the command then.
    Stopped is raised if one ended the wait, or the command and this process.
    """
    running = Command(command[command[0] == "--" :], lease, grace)

    async def run() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a background job
                loop.add_signal_handler(number, running.receive, number, task)
        try:
            return await hold(running)
        except asyncio.CancelledError:
            raise Stopped(running.received[0]) from None

    status = asyncio.run(run())
    if status - SIGNALLED in running.received:
        raise Stopped(status - SIGNALLED)
    return status


class Command:
    """A command that is run once, while something is held; `received` has the signals that came."""

    def __init__(self, words: Sequence[str], lease: float, grace: float) -> None:
        if not words:
            raise click.UsageError("Missing argument 'COMMAND...'")
        if words[0].startswith("-"):
            raise click.UsageError(f"options stand before the names, and {words[0]!r} does not")
        self.received: list[int] = []
        self._words = words
        self._lease = lease
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        # Without a terminal the command gets a process group, and signals go to all of it: ending
        # `sh -c "fetch; load"` has to end what the shell runs, too. At a terminal it stays in the
        # group of this process, because only there it can read from the terminal and be stopped
        # by Ctrl-Z.
        self._has_group = not any(map(os.isatty, range(3)))

    def receive(self, number: int, task: asyncio.Task[Any] | None) -> None:
        self.received.append(number)
        if self._process is not None:
            # At a terminal a key has sent its signal to both; a second one means "at once" to many.
            is_ours = self._has_group or number not in _FROM_KEYS
            if is_ours and self._process.returncode is None:
                self._send(self._process, number)
        elif task is not None and len(self.received) == 1:
            task.cancel()
        else:
            die(number)  # the second signal: not even the server is waited for

    async def run(self, fence: object, lost: Coroutine[Any, Any, object]) -> int:
        """Run it, and end it when `lost` ends; return its exit status."""
        losing = asyncio.ensure_future(lost)
        # The lease is not renewed when the guard acts: others may have it after 2/3 of it.
        guard = ProcessGuard(min(self._grace, self._lease / 2))
        try:
            if self.received:  # what it waited for came first, and the cancellation was dropped
                raise Stopped(self.received[0])
            # Not by asyncio: a signal that comes while it starts would not find it.
            self._process = process = subprocess.Popen(  # noqa: ASYNC220, S603 - as said
                self._words,
                env={**os.environ, "BLOOMLOCK_FENCE": str(fence)},
                # What the caller opened for it (`3< file`, `<(...)`) is for it.
                close_fds=False,
                process_group=0 if self._has_group else None,
                # Between fork and exec: afterwards, a command could run that no guard knows.
                preexec_fn=lambda: guard.watch(  # noqa: PLW1509 - it writes, and no more
                    -os.getpid() if self._has_group else os.getpid()
                ),
            )
            ended = asyncio.ensure_future(asyncio.to_thread(process.wait))
            await asyncio.wait((ended, losing), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                warn("ending the command, which has lost what it held")
                await self._end(process, ended)
            returned = await ended
        except OSError as error:
            status = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
            why = error.strerror or error
            raise Failure(f"cannot run {self._words[0]!r}: {why}", status) from error
        finally:
            losing.cancel()
            guard.dismiss()
        return returned if returned >= 0 else SIGNALLED - returned

    async def _end(self, process: subprocess.Popen[bytes], ended: asyncio.Future[int]) -> None:
        self._send(process, signal.SIGTERM)
        # A stopped process hears SIGTERM when it goes on.
        self._send(process, signal.SIGCONT)
        try:
            async with asyncio.timeout(self._grace):
                await asyncio.shield(ended)
                while self._has_group and self._send(process, 0):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            self._send(process, signal.SIGKILL)

    def _send(self, process: subprocess.Popen[bytes], number: int) -> bool:
        """Return whether the group of the command still has a process."""
        try:
            os.kill(-process.pid if self._has_group else process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            # It has become another user, or (macOS) only its zombie is left.
            if process.returncode is None:
                warn(f"not permitted to send a signal to the command, process {process.pid}")
            return False
        return True
