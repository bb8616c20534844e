"""How many lines make a batch.

In the process a batch is what the processor's caches like. On a server, where a kill -9 between
answer and output loses the batch, the first ones are small, and they grow while more lines are
waiting and answers come quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bloomlock import BloomFilter

MOST_LINES = 2**18
"""What the library takes as one batch at most."""

FEWEST_LINES = 2**13
LINES_IN_MEMORY = 2**13
FIRST_BITS = 10_000

QUICK_SECONDS = 1.0
SLOW_SECONDS = 2.0
"""A signal is heard between two batches."""


class BatchSizer:
    """The size of the batches, now.

    Args:
        first: Lines of the first batch.
        most: Lines of the largest.
        most_bytes: Bytes after which a batch is full, however few lines they are.

    Attributes:
        lines: Lines of the next batch at most.
        held_bytes: Bytes that were read since the last batch.

    >>> pace = Pace(100, 300)
    >>> for count in (99, 100, 200, 300):
    ...     pace.answered(count, 0.1)
    ...     pace.lines
    100
    200
    300
    300
    """

    def __init__(self, first: int, most: int, most_bytes: int = 8 * 1024 * 1024) -> None:
        """Begin with the first batch."""
        self.lines = first
        self.most = most
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._first = first

    def answered(self, count: int, seconds: float) -> None:
        """Note that a batch of `count` lines was answered, and written, in so many seconds."""
        if seconds > SLOW_SECONDS:
            self.lines = max(self._first, self.lines // 2)
        elif count >= self.lines and seconds < QUICK_SECONDS:
            self.lines = min(2 * self.lines, self.most)


def pace_in_memory() -> BatchSizer:
    """Return the pace of a filter in this process, where nothing is at stake."""
    return BatchSizer(LINES_IN_MEMORY, LINES_IN_MEMORY)


def pace_on_server(bloom: BloomFilter) -> BatchSizer:
    """Return the pace of a filter on a server, where a batch is at stake at any moment."""
    return BatchSizer(max(1, FIRST_BITS // bloom.num_hashes), most_lines_at_once(bloom))


def pace_of_load(bloom: BloomFilter) -> BatchSizer:
    """Return the pace where nothing is at stake and a bitmap goes one way only."""
    return BatchSizer(FEWEST_LINES, min(2 * most_lines_at_once(bloom), MOST_LINES))


def most_lines_at_once(bloom: BloomFilter) -> int:
    """Return how many lines make a batch that goes to the server as one bitmap.

    That is where the bitmap, there and back, takes fewer bytes than the bits of each item: with
    the default strategy from num_bits / (168 num_hashes) items on, a ninetieth of the capacity.
    """
    return min(max(bloom.num_bits // (144 * bloom.num_hashes), FEWEST_LINES), MOST_LINES)
