"""One command as a child process, for as long as a lock or a claim is held.

With no terminal around, the command gets a process group of its own and signals go to all of it:
ending `sh -c "fetch; load"` has to end what the shell is running, too. At a terminal it stays in
the group of this process, because only there it can read from the terminal and be stopped by
Ctrl-Z; signals then go to the command alone. Ctrl-C reaches both of them there, by the terminal,
so it is not sent on: a second one means "at once" to many programs.

If this process is killed, a guard sends the command SIGTERM, and SIGKILL a grace later.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bloomlock.server import ProcessGuard

from .errors import Failure, Stopped, die, warn
from .options import status_option, time_option, url_option

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from .options import F

SIGNAL_STATUS = 128
BUSY = 75
"""Exit status if a lock or a claim is not to be had, or lost: EX_TEMPFAIL of sysexits.h."""
FENCE = "BLOOMLOCK_FENCE"
_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
_PAUSE = 0.05

command_argument = click.argument(
    "command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED
)
# As of flock(1), ssh(1) and the like: in `bloomlock lock logs grep -n error` the -n is grep's.
OPTIONS_FIRST = {"allow_interspersed_args": False}


def holding_options(default_lease: float, default_wait: str) -> Callable[[F], F]:
    options = (
        time_option("-w", "--wait", what=f"How long to wait.  [default: {default_wait}]"),
        time_option("--lease", default=default_lease, what="Taken so long after a crash."),
        time_option("--grace", default=10.0, what="From SIGTERM to SIGKILL."),
        status_option("-E", "--busy-exit-code", "busy", default=BUSY, what="If it is taken."),
        click.option("-v", "--verbose", is_flag=True, help="Say what was waited for."),
        url_option,
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@dataclass(kw_only=True)
class Hold(ABC):
    """What is held while the command runs, and the options of `holding_options`."""

    lease: float
    grace: float
    wait: float | None
    busy: int
    verbose: bool

    @abstractmethod
    async def take(self) -> int | None:
        """Wait for it; return None if it is held now, else the exit status."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return variables for the command."""

    @abstractmethod
    def wait_lost(self) -> Awaitable[object]:
        """Return an awaitable that ends when it is lost."""

    @abstractmethod
    async def give_back(self, status: int | None, why: str | None) -> int:
        """Give it back; return the exit status.

        `status` is that of the command, None if it did not run. `why` says why its work failed,
        None if it did not, or if a signal to this process ended it.
        """

    @abstractmethod
    async def close(self) -> None: ...


def supervise(holding: Callable[[], Coroutine[Any, Any, Hold]], words: Sequence[str]) -> int:
    """Run a command while something is held; return the exit status.

    No signal strikes in the middle of a step: it ends the wait for the hold, or goes to the
    command.

    Raises:
        Stopped: A signal ended the wait, or the command and this process.
    """
    command = list(words[1:] if words[0] == "--" else words)
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'")
    # Found before anything is held, as far as that can be known without trying.
    program = _find_program(command[0])

    async def run() -> int:
        hold = await holding()
        try:
            return await _Run(hold, program, command).run()
        finally:
            await hold.close()

    return asyncio.run(run())


class CannotRunError(Failure):
    """A command cannot be started; the exit status is that of a shell."""

    def __init__(self, command: str, why: str, *, is_missing: bool = False) -> None:
        super().__init__(f"cannot run {command!r}: {why}")
        self.status = 127 if is_missing else 126


def _find_program(command: str) -> str:
    if command.startswith("-"):
        raise click.UsageError(f"options stand before the names, and {command!r} does not")
    found = shutil.which(command)
    if found is not None:
        return found
    folders = [""] if os.sep in command else os.get_exec_path()
    if not any(Path(folder, command).exists() for folder in folders):
        raise CannotRunError(command, "it is not found", is_missing=True)
    raise CannotRunError(command, "it is no program, or not permitted")


class _Run:
    def __init__(self, hold: Hold, program: str, command: Sequence[str]) -> None:
        self._hold = hold
        self._program = program
        self._command = command
        self._received: list[int] = []
        self._waiting: asyncio.Task[int] | None = None
        self._process: Process | None = None
        self._has_group = _foreground_group() is None

    def _receive(self, number: int) -> None:
        self._received.append(number)
        if self._process is not None:
            self._forward(number)
        elif self._waiting is None:
            return
        elif len(self._received) == 1:
            self._waiting.cancel()
        else:
            die(number)  # the second signal: not even the server is waited for

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a background job
                loop.add_signal_handler(number, self._receive, number)
        # In this very task: a lock is given back when the task that took it ends.
        self._waiting = asyncio.current_task()
        try:
            status = await self._hold.take()
        except asyncio.CancelledError:
            if not self._received:
                raise
            raise Stopped(self._received[0]) from None
        finally:
            self._waiting = None
        if status is not None:
            return status
        if self._received:
            await self._hold.give_back(None, None)
            raise Stopped(self._received[0])
        try:
            returned = await self._run_command()
        except BaseException as error:
            await self._hold.give_back(None, str(error) if isinstance(error, Exception) else None)
            raise
        if returned >= 0:
            why = f"exit status {returned}" if returned else None
            return await self._hold.give_back(returned, why)
        killer = -returned
        ended_by_us = killer in self._received
        # A signal to this process is no fault of the work.
        why = None if ended_by_us else f"ended by {signal.Signals(killer).name}"
        status = await self._hold.give_back(SIGNAL_STATUS + killer, why)
        if ended_by_us and status == SIGNAL_STATUS + killer:
            raise Stopped(killer)
        return status

    async def _run_command(self) -> int:
        """Return the exit status of the command, or the negative of the signal that ended it."""
        # The lease is not renewed when the guard acts: others may have it after 2/3 of it.
        guard = ProcessGuard(min(self._hold.grace, self._hold.lease / 2))
        try:
            try:
                self._process = await self._execute(guard, self._program, self._command)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                # A script that does not say whose it is; every shell takes it for its own.
                words = ["/bin/sh", self._program, *self._command[1:]]
                self._process = await self._execute(guard, words[0], words)
            ended = asyncio.ensure_future(self._process.wait())
            lost = asyncio.ensure_future(self._hold.wait_lost())
            await asyncio.wait((ended, lost), return_when=asyncio.FIRST_COMPLETED)
            lost.cancel()
            if not ended.done():
                warn("ending the command, which has lost what it held")
                await self._end(self._process)
            return await ended
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            why = error.strerror or str(error)
            raise CannotRunError(self._command[0], why, is_missing=is_missing) from error
        finally:
            guard.dismiss()

    async def _execute(self, guard: ProcessGuard, program: str, words: Sequence[str]) -> Process:
        def watch() -> None:
            guard.watch(-os.getpid() if self._has_group else os.getpid())

        return await asyncio.create_subprocess_exec(
            *words,
            executable=program,
            env={**os.environ, **self._hold.environment()},
            # What the caller opened for it (`3< file`, `<(...)`) is for it.
            close_fds=False,
            process_group=0 if self._has_group else None,
            # Between fork and exec: afterwards, a command could run that no guard knows.
            preexec_fn=watch,
        )

    def _forward(self, number: int) -> None:
        assert self._process is not None  # noqa: S101 - for the type
        # The terminal has sent the signal of a key to both.
        from_keys = number in _FROM_KEYS and not self._has_group
        if self._process.returncode is None and not (
            from_keys and _foreground_group() == os.getpgrp()
        ):
            self._send(self._process, number)

    async def _end(self, process: Process) -> None:
        self._send(process, signal.SIGTERM)
        # A stopped process hears SIGTERM when it goes on.
        self._send(process, signal.SIGCONT)
        try:
            async with asyncio.timeout(self._hold.grace):
                await process.wait()
                while self._has_group and self._send(process, 0):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            self._send(process, signal.SIGKILL)
            await process.wait()

    def _send(self, process: Process, number: int) -> bool:
        """Return whether the group of the command still has a process."""
        try:
            if self._has_group:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        except ProcessLookupError:
            return False
        except PermissionError:
            # It has become another user, or (macOS) only its zombie is left.
            if process.returncode is None:
                warn(f"not permitted to send a signal to the command, process {process.pid}")
            return False
        return True


def _foreground_group() -> int | None:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return None
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return None
    finally:
        os.close(terminal)
