"""What every strategy does: turn the offsets of some items of one shard into one exchange.

A row holds the k bit offsets of one item. A strategy answers, for each row, whether any of its
bits was 0 ("missing"): for an update that makes the item new, for a test it makes it not seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bloomlock.effects import Core, Replies, Request, collect

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Rows = npt.NDArray[np.uint64]
    Flags = npt.NDArray[np.bool_]

OPERATIONS_PER_COMMAND = 1000
"""Bits touched by one command of a batch: about 0.2 ms of the server's time."""

BITS_PER_TRIP = 10_000
"""Bits touched by one round trip of a batch, where that is one request: 625 items at 1e-6."""


class Shard(NamedTuple):
    """One Redis string of a filter, as the caller believes it to be.

    Attributes:
        key: Its key.
        header: The header it should have.
        digits: Decimal digits of its last offset.
        bits: Bits of its bitmap, header not counted.
        block_bits: The bits of an item lie in one block of so many; 0: anywhere.
    """

    key: str
    header: int
    digits: int
    bits: int = 0
    block_bits: int = 0


class Segment(NamedTuple):
    """The answer to some consecutive rows that share one fate.

    Attributes:
        rows: How many rows.
        header: The shard's header as it was when the rows were answered.
        missing: For each row whether any of its bits was 0; None: the command saw another
            header than the expected one and did nothing.
        error: The server's error (nothing was done, for certain) or ConnectionLost (not known, if
            its request was sent), else None.
    """

    rows: int
    header: int = 0
    missing: Sequence[bool] | Flags | None = None
    error: Exception | None = None


class Strategy(ABC):
    """How one update reaches Redis.

    Attributes:
        name: What users call it.
        whole: Whether all bits of an item and the header are read and set at one instant. If
            not, the bits may be spread over two generations, and a header that is not
            the expected one tells nothing about them.
        exclusive: Whether others are kept out while an item is added, so that no other way may
            take this one's place.
        bits_per_exchange: Bits of one exchange at most.
        bytes_per_bit: What a bit takes on the wire, both directions together, in a batch.
    """

    name: ClassVar[str]
    whole: ClassVar[bool] = True
    exclusive: ClassVar[bool] = False
    bits_per_exchange: ClassVar[int] = BITS_PER_TRIP
    bytes_per_bit: ClassVar[int] = 80

    @abstractmethod
    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """Test the bits of every row, and set them if `write`.

        Args:
            shard: Where the bits are.
            rows: n rows of k offsets.
            write: Set the bits as well.

        Returns:
            Segments that together cover all rows in order.
        """

    def exchange_one(self, shard: Shard, offsets: Sequence[int], *, write: bool) -> Core[Segment]:
        """Do the same for one item."""
        (segment,) = yield from self.exchange(shard, np.array([offsets], np.uint64), write=write)
        return segment


class SingleTrip(Strategy):
    """A strategy that takes one request and nothing else for one item."""

    @abstractmethod
    def encode_one(self, shard: Shard, offsets: Sequence[int], write: bool) -> list[bytes]:
        """Return the commands for one item."""

    @abstractmethod
    def decode_one(self, replies: Replies) -> Segment:
        """Return the answer for one item; a reply may be an error."""

    def exchange_one(self, shard: Shard, offsets: Sequence[int], *, write: bool) -> Core[Segment]:
        """See Strategy.exchange_one."""
        request = Request(shard.key, self.encode_one(shard, offsets, write))
        return self.decode_one((yield from collect(request, repeatable=not write)))


def rows_per_command(num_hashes: int) -> int:
    """Return how many items one command of a batch carries."""
    return max(1, OPERATIONS_PER_COMMAND // num_hashes)


def any_missing(bits: npt.NDArray[Any], num_hashes: int) -> Flags:
    """Tell for each k bits whether one of them is 0.

    >>> any_missing(np.array([1, 1, 0, 1]), 2).tolist()
    [False, True]
    """
    missing: Flags = bits.reshape(-1, num_hashes).min(axis=1) == 0
    return missing
