"""Standard output for lines of bytes: written at once, and watched for a reader that has gone."""

from __future__ import annotations

import errno
import os
import select
import sys
from typing import TYPE_CHECKING

from .failures import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence


class Output:
    """Writes lines to standard output without a buffer of its own.

    Args:
        delimiter: What ends each line.

    Raises:
        Failure: If standard output is closed.
    """

    def __init__(self, delimiter: bytes = b"\n") -> None:
        """Take standard output."""
        if sys.stdout is None:
            raise Failure("standard output is closed")
        self._descriptor = sys.stdout.fileno()
        self._delimiter = delimiter

    def check(self) -> None:
        """Raise BrokenPipeError if nobody reads any more.

        Asked before items are marked as seen, so that lines nobody will get are not.
        """
        poll = select.poll()
        poll.register(self._descriptor, 0)
        events = [event for _, event in poll.poll(0)]
        if any(event & (select.POLLERR | select.POLLHUP) for event in events):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines and return when the system has all of them.

        Raises:
            BrokenPipeError: If nobody reads.
            Failure: If they cannot be written, because the disk is full for instance.
        """
        if not lines:
            return
        left = memoryview(self._delimiter.join([*lines, b""]))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except BrokenPipeError:
                raise
            except OSError as error:
                raise Failure(
                    f"cannot write to standard output: {error.strerror}; lines that are marked as "
                    f"seen and were not written: at most {len(lines)}"
                ) from error
