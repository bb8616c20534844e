"""From lines to answers to lines, batch by batch: what dedup, add and exists have in common.

No line may be lost: one that the server may have marked as seen counts as new if the answer did
not arrive, because no other client will be answered that it is new.
"""

from __future__ import annotations

import time
from itertools import compress
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from redis.exceptions import RedisError

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.errors import (
    BloomlockError,
    CapacityError,
    FilterLostError,
    OutcomeUnknownError,
    PartialResultError,
)

from .errors import warn
from .progress import Progress, show_progress
from .streams import BatchSizer, Output, SignalGuard, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Filter = TypeVar("Filter", BloomFilter, MemoryBloomFilter)

_MOST_LINES = 2**18  # what the library takes as one batch at most
_FEWEST_LINES = 2**13
_LINES_IN_MEMORY = 2**13  # what the processor's caches like
_FIRST_BITS = 10_000


def sizer_in_memory() -> BatchSizer:
    """Return the sizer for a filter in this process, where nothing is at stake."""
    return BatchSizer(_LINES_IN_MEMORY, _LINES_IN_MEMORY)


def sizer_on_server(bloom: BloomFilter) -> BatchSizer:
    """Return the sizer for a filter on a server, where a batch is at stake at any moment."""
    return BatchSizer(max(1, _FIRST_BITS // bloom.num_hashes), _bitmap_lines(bloom))


def sizer_of_load(bloom: BloomFilter) -> BatchSizer:
    """Return the sizer where nothing is at stake and a bitmap goes one way only."""
    return BatchSizer(_FEWEST_LINES, min(2 * _bitmap_lines(bloom), _MOST_LINES))


def _bitmap_lines(bloom: BloomFilter) -> int:
    """Return how many lines make a batch that goes to the server as one bitmap.

    That is where the bitmap, there and back, takes fewer bytes than the bits of each item: with
    the default strategy from num_bits / (168 num_hashes) items on, a 25th of the capacity.
    """
    return min(max(bloom.num_bits // (144 * bloom.num_hashes), _FEWEST_LINES), _MOST_LINES)


class Answers(NamedTuple):
    """What is known about the lines of one batch.

    Attributes:
        new: For each line whether it is new, None if it was not marked as seen at all; lines past
            its end neither.
        error: What stopped the batch; to be raised once the new lines are written.
    """

    new: Sequence[bool | None]
    error: Exception | None = None


def add_lines_in_memory(bloom: MemoryBloomFilter, lines: Sequence[bytes]) -> Answers:
    """Add lines to a filter in this process; CapacityError is returned, not raised."""
    try:
        return Answers(bloom.add_many(lines))
    except CapacityError as error:
        return Answers(error.results, error)


def add_lines(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    """Add lines; errors are returned, not raised."""
    new: list[bool | None] = []
    while len(new) < len(lines):
        try:
            new += _add(bloom, lines[len(new) :])
        except FilterLostError as error:
            # They may have been the first of the generation that follows.
            return Answers(new + _unknown_is_new(lines[len(new) :], error.results), error)
        except OutcomeUnknownError as error:
            asked = lines[len(new) :]
            new += _unknown_is_new(asked, error.results)
            pairs = zip(asked, error.results, strict=False)
            unknown = dict.fromkeys(line for line, known in pairs if known is None)
            if failure := _mark(bloom, list(unknown), error):
                return Answers(new, failure)
        except PartialResultError as error:
            return Answers(new + error.results, error)
        except (BloomlockError, RedisError, OSError) as error:
            return Answers(new, error)
    return Answers(new)


def _add(bloom: BloomFilter, lines: Sequence[bytes]) -> list[bool]:
    # One line needs nothing of what batches import.
    return [bloom.add(lines[0])] if len(lines) == 1 else bloom.add_many(lines)


def _mark(bloom: BloomFilter, unknown: list[bytes], error: Exception) -> Exception | None:
    """Mark lines that will be written whatever the answer, so that no other client gets them.

    Returns why that was not possible: a server that is stuck would make a new line of every
    one that follows.
    """
    if not unknown:
        return error
    warn(f"{error}; {len(unknown)} lines count as new, though others may have had them")
    try:
        _add(bloom, unknown)
    except (BloomlockError, RedisError, OSError) as failure:
        return failure
    return None


def _unknown_is_new(lines: Sequence[bytes], results: Sequence[bool | None]) -> list[bool | None]:
    """Return the answers with unknown lines as new ones, each once.

    >>> _unknown_is_new([b"a", b"b", b"a", b"c"], [None, True, None, False])
    [True, True, False, False]
    """
    met: set[bytes] = set()
    new: list[bool | None] = []
    for line, result in zip(lines, results, strict=False):
        new.append(line not in met if result is None else result)
        if result is None:
            met.add(line)
    return new


def test_lines(bloom: BloomFilter, lines: Sequence[bytes]) -> Answers:
    """Test lines without adding them; nothing is at stake, so errors are raised."""
    seen = [bloom.exists(lines[0])] if len(lines) == 1 else bloom.exists_many(lines)
    return Answers([not each for each in seen])


def discard_lines(
    bloom: BloomFilter, lines: Sequence[bytes], *, take: Callable[[bytes], bytes] | None
) -> Answers:
    """Forget lines, or what is taken of each; those that were there count as new.

    Nothing is written for a line, and to forget it again is harmless, so errors are raised.
    """
    items = lines if take is None else list(map(take, lines))
    return Answers([bloom.discard(items[0])] if len(items) == 1 else bloom.discard_many(items))


class LineFilter(Generic[Filter]):
    """Lines on their way through a filter; the new ones (`write`), the others, or none are written.

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
        self.lines = 0
        self.new = 0
        self._ask: Callable[[Filter, Sequence[bytes]], Answers] = ask
        self._write = write
        self._delimiter = delimiter
        self._output = None if write is None else Output(delimiter)

    def do_files(
        self, bloom: Filter, files: Sequence[str], sizer: BatchSizer, total: int | None = None
    ) -> None:
        """Answer the lines of files, of `total` bytes; "-" is standard input."""
        with SignalGuard() as guard, show_progress(total) as progress:
            batches = read_lines(
                files, sizer, guard, delimiter=self._delimiter, on_read=progress.read
            )
            for batch in batches:
                start = time.monotonic()
                self._do(bloom, batch, guard, progress)
                sizer.answered(len(batch), time.monotonic() - start)
            guard.check()

    def do_items(self, bloom: Filter, items: Sequence[bytes]) -> None:
        """Answer items that are at hand."""
        with SignalGuard() as guard:
            self._do(bloom, items, guard, Progress())
            guard.check()

    def _do(
        self, bloom: Filter, batch: Sequence[bytes], guard: SignalGuard, progress: Progress
    ) -> None:
        # A signal, and a reader that has gone, are noticed before anything of a batch is sent, or
        # after all of it is written.
        guard.check()
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
