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
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from bloomlock.server import ProcessGuard

from .errors import Failure, warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SIGNAL_STATUS = 128
_SHELL = "/bin/sh"
_FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
_PAUSE = 0.05


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
