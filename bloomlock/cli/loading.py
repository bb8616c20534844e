"""Lines into a filter in bulk, each mark of the journal after what it says has happened."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from bloomlock import OutcomeUnknownError, PartialResultError

from .files import opened
from .journal import Mark
from .lines import read_file
from .pace import pace_of_load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock import BloomFilter

    from .journal import Journal
    from .progress import Progress
    from .signals import SignalGuard


class Loading:
    """Adds the lines of one file after the other.

    Args:
        bloom: The filter.
        patience: Notices signals.
        progress: Is told how far it is.
        delimiter: The byte that ends a line.

    Attributes:
        lines: Lines that were read and added.
        before: Lines that an earlier load had added.
    """

    def __init__(
        self, bloom: BloomFilter, patience: SignalGuard, progress: Progress, delimiter: bytes
    ) -> None:
        """Read nothing yet."""
        self.lines = 0
        self.before = 0
        self._bloom = bloom
        self._patience = patience
        self._progress = progress
        self._delimiter = delimiter
        self._pace = pace_of_load(bloom)

    def load(self, file: str, journal: Journal | None) -> None:
        """Add the lines of a file that are not in the filter for certain.

        Args:
            file: Its name; "-" is standard input.
            journal: Knows how far it was loaded before, and is told how far it is; None: nobody.
        """
        with opened(file) as descriptor:
            found = os.fstat(descriptor)
            mark = Mark()
            if journal is not None:
                # The file that is open, which need not be the one that was there at the start.
                mark = journal.begin(found)
                os.lseek(descriptor, mark.offset, os.SEEK_SET)
                self._progress.read(mark.offset)
                self.before += mark.lines
            batches = read_file(
                descriptor,
                file,
                self._pace,
                self._patience,
                delimiter=self._delimiter,
                on_read=self._progress.read,
            )
            try:
                for batch in batches:
                    self._patience.check()
                    for added in self._add(batch):
                        mark = self._beyond(mark, added, found.st_size)
                        if journal is not None:
                            journal.advance(mark)
                self._patience.check()
            finally:
                if journal is not None:
                    journal.flush()

    def _add(self, lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """Add lines; yield those that certainly were added, also before an error."""
        start, count, repeated = time.monotonic(), len(lines), False
        while lines:
            failure: Exception | None = None
            try:
                self._bloom.update(lines)
                added = len(lines)
            except PartialResultError as error:  # raised below, unless once more may do
                added = error.added
                failure = error
            self.lines += added
            yield lines[:added]
            lines = lines[added:]
            # What may be in is added once more: it is a set.
            if failure is not None and (repeated or not isinstance(failure, OutcomeUnknownError)):
                raise failure
            repeated = failure is not None
        self._progress.answered(self.before + self.lines, None)
        self._pace.answered(count, time.monotonic() - start)

    def _beyond(self, mark: Mark, lines: Sequence[bytes], size: int) -> Mark:
        """Return the mark after some more lines of a file of `size` bytes."""
        offset = mark.offset + sum(map(len, lines)) + len(lines) * len(self._delimiter)
        # The last line may have no end.
        return Mark(min(offset, size), mark.lines + len(lines))
