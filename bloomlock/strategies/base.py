"""What every strategy does: turn the offsets of items of one shard into requests and answers.

A row holds the k bit offsets of one item. A strategy answers, for each row, whether any of its
bits was 0 ("missing"): an update that finds a bit missing has added a new item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from redis.exceptions import ResponseError

from bloomlock.effects import is_missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.effects import Core

    Rows = npt.NDArray[np.uint64]
    Flags = npt.NDArray[np.bool_]

BITS_PER_TRIP = 10_000
"""Bits touched by one round trip of a batch, where that is one request: 625 items at 1e-6."""


class Shard(NamedTuple):
    """One Redis string of a filter, as the caller believes it to be.

    Attributes:
        key: Its key.
        header: The header it should have.
        digits: Decimal digits of its last offset.
        bits: Bits of its bitmap, header not counted.
        block_bits: Length of the block that holds all bits of an item; 0: they lie anywhere.
    """

    key: str
    header: int
    digits: int
    bits: int = 0
    block_bits: int = 0


class Segment(NamedTuple):
    """The answer to some consecutive rows that were handled together.

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
    """How the bits of items reach Redis: the update of a filter, or one batch of it.

    Attributes:
        name: As in `strategy=`.
        is_atomic: Whether all bits of an item and the header are read and set at one instant. If
            not, the bits may be spread over two generations, and a header that is not
            the expected one says nothing about them.
        is_exclusive: Whether other clients are kept out while an item is added, so that no other
            strategy may take a batch over.
        is_forbidden: Whether the server refuses it for good.
        may_share_calls: Whether concurrent single calls gain by going out as one batch.
        has_answers: Whether an update returns which items are new.
        has_free_repeats: Whether an item that is repeated in a batch costs nothing more.
        bits_per_exchange: Bits of one exchange at most.
        bytes_per_bit: What a bit takes on the wire, both directions together, in a batch.
        few_bits: Batches of at most so many bits go through `few`.
    """

    name: ClassVar[str]
    is_atomic: bool = True
    is_exclusive: ClassVar[bool] = False
    is_forbidden: bool = False
    may_share_calls: bool = True
    has_answers: bool = True
    has_free_repeats: bool = False
    bits_per_exchange: ClassVar[int] = BITS_PER_TRIP
    bytes_per_bit: ClassVar[int] = 80
    few_bits: ClassVar[int] = 0

    @abstractmethod
    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """Test the bits of every row, and set them if `write`.

        Args:
            shard: Where the bits are.
            rows: n rows of k offsets.
            write: Set the bits as well.

        Returns:
            Segments that together cover all rows in order.
        """

    def few(
        self, shard: Shard, rows: Sequence[Sequence[int]], *, write: bool
    ) -> Core[list[Segment]]:
        """Do the same without an array."""
        return (yield from self.many(shard, np.array(rows, np.uint64), write=write))

    def one(self, shard: Shard, offsets: Sequence[int], *, write: bool) -> Core[Segment]:
        """Do the same for one item."""
        (segment,) = yield from self.few(shard, [offsets], write=write)
        return segment


class WithFallback(Strategy):
    """A strategy for batches that a server may refuse, and the one that takes its place then.

    Args:
        first: What is tried. An error that the server answers means that it did nothing.
        fallback: What is done instead.
    """

    def __init__(self, first: Strategy, fallback: Strategy) -> None:
        """Assume that the first is allowed."""
        self._first = first
        self._fallback = fallback
        self.is_atomic = first.is_atomic and fallback.is_atomic
        self.is_forbidden = False
        self.has_answers = first.has_answers
        self.has_free_repeats = first.has_free_repeats

    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.many."""
        segments = yield from self._first.many(shard, rows, write=write)
        refused = [s.error for s in segments if isinstance(s.error, ResponseError)]
        if not refused:
            return segments
        self.is_forbidden = any(map(is_missing, refused))
        if len(refused) == len(segments):
            return (yield from self._fall_back(shard, rows, write))
        answered: list[Segment] = []
        start = 0
        for segment in segments:
            mine = rows[start : start + segment.rows]
            start += segment.rows
            if isinstance(segment.error, ResponseError):
                answered += yield from self._fall_back(shard, mine, write)
            else:
                answered.append(segment)
        return answered

    def _fall_back(self, shard: Shard, rows: Rows, write: bool) -> Core[list[Segment]]:
        size = max(1, self._fallback.bits_per_exchange // rows.shape[1])
        segments: list[Segment] = []
        for start in range(0, len(rows), size):
            segments += yield from self._fallback.many(
                shard, rows[start : start + size], write=write
            )
        return segments


def any_missing(bits: npt.NDArray[Any], num_hashes: int) -> Flags:
    """Return for each k bits whether one of them is 0.

    >>> any_missing(np.array([1, 1, 0, 1]), 2).tolist()
    [False, True]
    """
    missing: Flags = bits.reshape(-1, num_hashes).min(axis=1) == 0
    return missing


def error_of(reply: object) -> Exception:
    """Return the error that stands in place of a reply, or one that says what stands there."""
    return reply if isinstance(reply, Exception) else TypeError(reply)
