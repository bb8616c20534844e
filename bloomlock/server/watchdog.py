"""Ends a private server whose owner can no longer do it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Waits for the end of its input, which comes when no process holds the other end any more.
_SCRIPT = 'read -r _; kill -9 "$1"; if [ -n "$2" ]; then rm -rf -- "$2"; fi'


class Watchdog:
    """A small shell that waits for the death of this process, then kills a child of it.

    Args:
        pid: The child. It must not be waited for without `dismiss`, or the number may by then
            belong to somebody else.
        leftover: A directory to remove after that.
    """

    def __init__(self, pid: int, leftover: Path | None) -> None:
        """Start the shell."""
        read_end, self._write_end = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed script, arguments apart
                ["/bin/sh", "-c", _SCRIPT, "sh", str(pid), str(leftover or "")],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)

    def dismiss(self) -> None:
        """End the shell without what it waits for; can be repeated."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1
