"""The process of a private server."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from bloomlock.errors import ServerError
from bloomlock.server.watchdog import Watchdog

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from pathlib import Path

_PEACE = 5.0


class Child:
    """A child process that cannot outlive this one.

    Args:
        command: Program and arguments.
        directory: Where it works.
        log_file: Where its output is appended.
        leftover: A directory to remove if this process is killed.

    Raises:
        ServerError: It cannot be started.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, log_file: Path, leftover: Path | None
    ) -> None:
        """Start it."""
        self._owner = os.getpid()
        try:
            with log_file.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603 - the caller names the program
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=directory,
                    # Ctrl-C is for this process, which then ends the server in its own time.
                    start_new_session=True,
                    umask=0o077,
                )
            self._watchdog = Watchdog(self._process.pid, leftover)
        except OSError as error:
            raise ServerError(f"{command[0]} cannot be run: {error}") from error

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def owned(self) -> bool:
        """Whether this is the process that started it, and not a fork of that."""
        return self._owner == os.getpid()

    def alive(self) -> bool:
        """Tell whether it lives."""
        if not self.owned:
            return _exists(self._process.pid)
        if self._process.poll() is None:
            return True
        # Its id is free for others from here on.
        self._watchdog.dismiss()
        return False

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for its end, at most 5 s before it is killed."""
        if not self.alive() or not self.owned:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_PEACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._watchdog.dismiss()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
