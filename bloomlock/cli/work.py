"""From lines to answers to lines: what dedup, add and exists have in common."""

from __future__ import annotations

import time
from itertools import compress
from typing import TYPE_CHECKING, Generic, TypeVar

from bloomlock import BloomFilter, MemoryBloomFilter

from .lines import read_lines
from .output import Output
from .progress import NullProgress, show_progress
from .signals import SignalGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .answers import Answers
    from .pace import BatchSizer
    from .progress import Progress

Filter = TypeVar("Filter", BloomFilter, MemoryBloomFilter)


class LineFilter(Generic[Filter]):
    """Lines on their way through a filter.

    Args:
        ask: Adds or tests lines.
        write: Write the lines that are new (True), the others (False), or none (None).
        delimiter: The byte that ends a line.

    Attributes:
        lines: Lines answered so far.
        new: How many of them were new.
    """

    def __init__(
        self,
        ask: Callable[[Filter, Sequence[bytes]], Answers],
        *,
        write: bool | None,
        delimiter: bytes = b"\n",
    ) -> None:
        """Read nothing yet."""
        self.lines = 0
        self.new = 0
        self._ask: Callable[[Filter, Sequence[bytes]], Answers] = ask
        self._write = write
        self._delimiter = delimiter
        self._output = None if write is None else Output(delimiter)

    def do_files(
        self, bloom: Filter, files: Sequence[str], pace: BatchSizer, total: int | None = None
    ) -> None:
        """Work through the lines of files, of `total` bytes; "-" is standard input."""
        with SignalGuard() as patience, show_progress(total) as progress:
            batches = read_lines(
                files, pace, patience, delimiter=self._delimiter, on_read=progress.read
            )
            for batch in batches:
                start = time.monotonic()
                self._do(bloom, batch, patience, progress)
                pace.answered(len(batch), time.monotonic() - start)
            patience.check()

    def do_items(self, bloom: Filter, items: Sequence[bytes]) -> None:
        """Work through items that are at hand."""
        with SignalGuard() as patience:
            self._do(bloom, items, patience, NullProgress())
            patience.check()

    def _do(
        self, bloom: Filter, batch: Sequence[bytes], patience: SignalGuard, progress: Progress
    ) -> None:
        # Who wants this to end is heard before anything of a batch is sent, or after all of
        # it is written.
        patience.check()
        if self._output:
            self._output.check()
        new, error = self._ask(bloom, batch)
        if self._output:
            chosen = new if self._write else [is_new is False for is_new in new]
            self._output.write(list(compress(batch, chosen)))
        self.lines += len(new) - new.count(None)
        self.new += new.count(True)
        progress.answered(self.lines, self.new)
        if error is not None:
            raise error
