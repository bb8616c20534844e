"""A command as a child process, which a guard ends if this process cannot.

With no terminal around, the command gets a process group of its own and signals go to all of it:
ending `sh -c "fetch; load"` has to end what the shell is running, too. At a terminal it stays in
the group of this process, because only there it can read from the terminal and be stopped by
Ctrl-Z; signals then go to the command alone. Ctrl-C reaches both of them there, by the terminal,
so it is not sent on: a second one means "at once" to many programs.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from bloomlock.server import ProcessGuard

from .errors import Failure, die, warn

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

T = TypeVar("T")

SIGNAL_STATUS = 128
LOST = 75
"""Exit status if a lock or a claim is lost, or not to be had: EX_TEMPFAIL of sysexits.h."""
_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SHELL = "/bin/sh"
_FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
_PAUSE = 0.05


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


class ChildCommand(click.Command):
    """A command whose options may stand before or after its names, but not in COMMAND.

    In `bloomlock lock logs grep -n error` the -n is grep's.

    Attributes:
        num_names: Operands before COMMAND.
    """

    num_names = 1

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the options first."""
        ctx.allow_interspersed_args = False
        options, operands = self._split(ctx, args)
        names = operands[: self.num_names]
        more, command = self._split(ctx, operands[self.num_names :])
        return super().parse_args(ctx, [*options, *more, "--", *names, *command])

    def _split(self, ctx: click.Context, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the options at the beginning, and the rest."""
        params = self.get_params(ctx)
        options = [param for param in params if param.param_type_name == "option"]
        only_options = click.Command(None, params=options, add_help_option=False)
        _, rest, _ = only_options.make_parser(ctx).parse_args(list(args))
        first = list(args[: len(args) - len(rest)])
        return first[:-1] if first[-1:] == ["--"] else first, rest


class CannotRunError(Failure):
    """A command cannot be started; the exit status is that of a shell."""

    exit_code = 126

    def __init__(self, command: str, why: str) -> None:
        super().__init__(f"cannot run {command!r}: {why}")


class NotFoundError(CannotRunError):
    """There is no such command."""

    exit_code = 127


def find_program(command: str) -> str:
    """Return the path of the program that a shell would run."""
    found = shutil.which(command)
    if found is not None:
        return found
    if os.sep in command:
        if Path(command).is_dir():
            raise CannotRunError(command, "it is a directory")
        if not Path(command).exists():
            raise NotFoundError(command, "there is no such file")
    elif not any(Path(folder, command).is_file() for folder in os.get_exec_path()):
        raise NotFoundError(command, "command not found")
    raise CannotRunError(command, "permission denied")


class Child:
    """A command that runs. Needs a running event loop that calls `look` at each SIGCHLD.

    If this process is killed, the command gets SIGTERM, and SIGKILL `grace` seconds later.
    """

    def __init__(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str], grace: float
    ) -> None:
        self._ended = asyncio.Event()
        self._alone = not _has_terminal()
        self._guard = ProcessGuard(grace)
        try:
            self._process = self._start(program, arguments, environment)
        except BaseException:
            self._guard.dismiss()
            raise
        self.look()

    def look(self) -> None:
        """Notice that it has ended, if it has."""
        if not self._ended.is_set() and self._process.poll() is not None:
            self._guard.dismiss()
            self._ended.set()

    async def wait(self) -> None:
        """Wait for its end."""
        await self._ended.wait()

    @property
    def status(self) -> int:
        """The exit status of one that has ended, as a shell gives it."""
        return SIGNAL_STATUS - self._process.returncode if self.killer else self._process.returncode

    @property
    def killer(self) -> int | None:
        """The signal that ended it, or None if it ended by itself."""
        return -self._process.returncode if self._process.returncode < 0 else None

    def forward(self, number: int) -> None:
        """Send on a signal that this process got, unless the command has it already."""
        if not self._ended.is_set() and not (
            number in _FROM_KEYS and not self._alone and _is_in_foreground()
        ):
            self._send(number)

    async def end(self, grace: float) -> None:
        """Send SIGTERM, after `grace` seconds SIGKILL; returns when it has ended."""
        self._send(signal.SIGTERM)
        # A stopped process hears SIGTERM when it goes on.
        self._send(signal.SIGCONT)
        try:
            async with asyncio.timeout(grace):
                await self.wait()
                while self._alone and self._send(0):  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            self._send(signal.SIGKILL)
            await self.wait()

    def _send(self, number: int) -> bool:
        """Return whether there was a process to send it to, where it is a group."""
        try:
            if self._alone:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
        except ProcessLookupError:
            return False
        except PermissionError:
            # It has become another user, or (macOS) only its zombie is left.
            if not self._ended.is_set():
                warn(f"not permitted to send a signal to the command, process {self._process.pid}")
            return False
        return True

    def _start(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        try:
            try:
                return self._execute(program, arguments, environment)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                # A script that does not say whose it is; every shell takes it for its own.
                script = [_SHELL, program, *arguments[1:]]
                return self._execute(_SHELL, script, environment)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            kind = NotFoundError if missing else CannotRunError
            raise kind(arguments[0], error.strerror or str(error)) from error

    def _execute(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - running what the user says is what it is for
            arguments,
            executable=program,
            env=environment,
            # What the caller opened for it (`3< file`, `<(...)`) is for it.
            close_fds=False,
            process_group=0 if self._alone else None,
            # Between fork and exec: afterwards, a command could run that no guard knows.
            preexec_fn=self._name_to_guard,  # noqa: PLW1509
        )

    def _name_to_guard(self) -> None:
        self._guard.watch(-os.getpid() if self._alone else os.getpid())


class Outcome(NamedTuple):
    """The exit status, and the signal that stopped the wait, or the command and this process."""

    status: int
    signal: int | None = None


class Supervisor:
    """Runs a command, in an event loop, where no signal strikes in the middle of a step.

    Attributes:
        received: Signals that this process got.
        child: The command, when it runs.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.child: Child | None = None
        self._waiting: asyncio.Task[Any] | None = None

    def handle_signals(self) -> None:
        """Send signals on to the command, or let them end the wait for it to begin."""
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a background job
                loop.add_signal_handler(number, self._receive, number)
        loop.add_signal_handler(signal.SIGCHLD, self._look)

    async def until_signal(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """Wait for what must be had before the command begins; None if a signal ended that."""
        self._waiting = asyncio.current_task()
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self.received:
                raise
            return None
        finally:
            self._waiting = None

    def outcome_of(self, child: Child) -> Outcome:
        """Return the outcome of a command that has ended."""
        return Outcome(child.status, child.killer if child.killer in self.received else None)

    def _receive(self, number: int) -> None:
        self.received.append(number)
        if self.child is not None:
            self.child.forward(number)
        elif self._waiting is None:
            return
        elif self.received == [number]:
            self._waiting.cancel()
        else:
            die(number)  # the second signal: not even the server is waited for

    def _look(self) -> None:
        if self.child is not None:
            self.child.look()


def _has_terminal() -> bool:
    return _foreground_group() is not None


def _is_in_foreground() -> bool:
    return _foreground_group() == os.getpgrp()


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
