"""From lines to answers to lines: what dedup, add and exists have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .answers import batch_size
from .lines import read_lines
from .output import Output
from .progress import Silence, show_progress
from .signals import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock import BloomFilter

    from .answers import Answers
    from .progress import Progress

    Ask = Callable[[BloomFilter, Sequence[bytes]], Answers]


class Work:
    """Lines on their way through a filter.

    Args:
        ask: Adds or tests lines.
        write: Write the lines that are new (True), the others (False), or none (None).
        delimiter: The byte that ends a line.

    Attributes:
        lines: Lines answered so far.
        new: How many of them were new.
    """

    def __init__(self, ask: Ask, *, write: bool | None, delimiter: bytes = b"\n") -> None:
        """Read nothing yet."""
        self.lines = 0
        self.new = 0
        self._ask = ask
        self._write = write
        self._delimiter = delimiter
        self._output = None if write is None else Output(delimiter)

    def do_files(self, bloom: BloomFilter, files: Sequence[str], total: int | None = None) -> None:
        """Work through the lines of files, of `total` bytes; "-" is standard input."""
        with Patience() as patience, show_progress(total) as progress:
            batches = read_lines(
                files,
                batch_size(bloom),
                patience,
                delimiter=self._delimiter,
                on_read=progress.read,
            )
            self._do(bloom, batches, patience, progress)

    def do_items(self, bloom: BloomFilter, items: Sequence[bytes]) -> None:
        """Work through items that are at hand."""
        with Patience() as patience:
            self._do(bloom, [items], patience, Silence())

    def _do(
        self,
        bloom: BloomFilter,
        batches: Iterable[Sequence[bytes]],
        patience: Patience,
        progress: Progress,
    ) -> None:
        for batch in batches:
            # Who wants this to end is heard before anything of a batch is sent, or after all of
            # it is written.
            patience.check()
            if self._output:
                self._output.check()
            new, error = self._ask(bloom, batch)
            if self._output:
                chosen = zip(batch, new, strict=False)
                self._output.write([line for line, is_new in chosen if is_new is self._write])
            self.lines += len(new) - new.count(None)
            self.new += new.count(True)
            progress.answered(self.lines, self.new)
            if error is not None:
                raise error
        patience.check()
