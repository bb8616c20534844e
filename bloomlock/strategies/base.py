"""What every strategy does: turn the offsets of some items of one shard into one exchange.

A row is the list of bit offsets of one item. A strategy answers, for each row, whether any of its
bits was 0 ("missing"): for an update that makes the item new, for a test it makes it not seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from bloomlock.commands import Core, Replies, Request, collect

if TYPE_CHECKING:
    from collections.abc import Sequence

    Rows = Sequence[Sequence[int]]

OPERATIONS_PER_COMMAND = 1000
"""Bits touched by one command of a batch: about 0.2 ms of the server's time."""


class Shard(NamedTuple):
    """One Redis string of a filter, as the caller believes it to be.

    Attributes:
        key: Its key.
        header: The header it should have.
        digits: Decimal digits of its last offset.
    """

    key: str
    header: int
    digits: int


class Segment(NamedTuple):
    """The answer to some consecutive rows that share one fate.

    Attributes:
        rows: How many rows.
        header: The shard's header as it was when the rows were answered.
        missing: For each row whether any of its bits was 0; None: the command saw another
            header than the expected one and did nothing.
        error: The server's error (nothing was done) or ConnectionLost (not known), else None.
    """

    rows: int
    header: int = 0
    missing: Sequence[bool] | None = None
    error: Exception | None = None


class Strategy(ABC):
    """How one update reaches Redis.

    Attributes:
        name: What users call it.
        whole: Whether all bits of an item and the header are read and set at one instant. If
            not, the bits may be spread over two generations, and a header that is not
            the expected one tells nothing about them.
    """

    name: ClassVar[str]
    whole: ClassVar[bool] = True

    @abstractmethod
    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """Test the bits of every row, and set them if `write`.

        Args:
            shard: Where the bits are.
            rows: Offsets of each item, all rows of the same length k.
            write: Set the bits as well.

        Returns:
            Segments that together cover all rows in order.
        """


class CommandStrategy(Strategy):
    """A strategy that is one round trip: rows to commands, replies to segments."""

    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.exchange."""
        request = Request(shard.key, self.encode(shard, rows, write))
        replies = yield from collect(request, repeatable=not write)
        return self.decode(replies, rows)

    @abstractmethod
    def encode(self, shard: Shard, rows: Rows, write: bool) -> list[bytes]:
        """Return the commands for one exchange."""

    @abstractmethod
    def decode(self, replies: Replies, rows: Rows) -> list[Segment]:
        """Return the segments; a reply may be an error."""


def rows_per_command(num_hashes: int) -> int:
    """Return how many items one command of a batch carries."""
    return max(1, OPERATIONS_PER_COMMAND // num_hashes)


def missing_bits(bits: Sequence[int], num_hashes: int) -> list[bool]:
    """Tell for each k bits whether one of them is 0.

    >>> missing_bits([1, 1, 0, 1], 2)
    [False, True]
    """
    return [0 in bits[start : start + num_hashes] for start in range(0, len(bits), num_hashes)]
