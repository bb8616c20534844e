"""What every strategy does: turn the offsets of items of one shard into requests and answers.

A row holds the k bit offsets of one item. A strategy answers, for each row, whether any of its
bits was 0 ("missing"): an update that finds a bit missing has added a new item.

Bit offsets become text in commands without a loop over bits. A command that tests or sets a bit is
the same text for every bit but for the offset. So the text is laid out once as a row of bytes,
repeated for all offsets, and the digits are filled in by columns; the few offsets that have fewer
digits get a filler that is cut out in the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from redis.exceptions import ResponseError

from bloomlock.arrays import np
from bloomlock.commands import encode_command
from bloomlock.descriptor import (
    DISCARDED,
    HEADER_BYTES,
    unflagged,
)
from bloomlock.errors import FilterMismatchError
from bloomlock.parallel import in_parallel
from bloomlock.refusals import is_missing
from bloomlock.sizing import FIRST_BYTE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.hashing import Hasher
    from bloomlock.slices import SliceState

    Rows = npt.NDArray[np.uint64]
    Flags = npt.NDArray[np.bool_]
    Offsets = npt.NDArray[np.uint64]
    Table = npt.NDArray[np.uint8]

BITS_PER_TRIP = 10_000
"""Bits touched by one round trip of a batch, where that is one request: 625 items at 1e-6."""


class Shard(NamedTuple):
    """One Redis string of a filter, as the caller believes it to be.

    Attributes:
        key: Its key.
        header: The header it should have.
        digits: Decimal digits of its last offset.
        bits: Bits of its bitmap, header not counted.
        slices: What is known of its slices; None: it is one bitmap.
    """

    key: str
    header: int
    digits: int
    bits: int = 0
    slices: SliceState | None = None

    @property
    def headers(self) -> list[bytes]:
        """What the first bytes of its string may be: without the flag of discards, and with it."""
        allowed = (self.header, self.header | DISCARDED)
        return [header.to_bytes(HEADER_BYTES, "big") for header in allowed]

    def has(self, header: int) -> bool:
        """Return whether it may have a header."""
        return unflagged(header) == self.header


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


if TYPE_CHECKING:
    Answered = Sequence[tuple[Sequence[int], list[Segment]]]


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
        few_bits: Bits of the largest batch that goes through `few`.
    """

    name: str
    is_atomic: bool = True
    is_exclusive: ClassVar[bool] = False
    is_forbidden: bool = False
    may_share_calls: bool = True
    has_answers: bool = True
    has_free_repeats: bool = False
    bits_per_exchange: ClassVar[int] = BITS_PER_TRIP
    few_bits: ClassVar[int] = 0

    def check_server(self, key: str) -> Core[None]:  # noqa: ARG002 - what needs nothing asks nothing
        """Raise ConfigurationError if the server that has a key lacks what the strategy needs."""
        yield from ()

    def check_filter(self, name: str, stored: Descriptor) -> None:
        """Raise FilterMismatchError if the strategy cannot read the filter of that name."""
        if stored.native:
            raise FilterMismatchError(
                f"filter {name!r} was created with strategy 'native', and no other can read it"
            )

    def few_items(self, hasher: Hasher) -> int:
        """Return how many items of a batch go through `few_each` at most."""
        return self.few_bits // hasher.num_hashes

    def few_each(
        self, shards: Sequence[Shard], hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[Answered]:
        """Test few items of any shards without arrays, and set their bits if `write`.

        Args:
            shards: All shards of the filter.
            hasher: Places the items.
            items: Encoded, and different.
            write: Set the bits as well.

        Returns:
            Where items stand, and the answers to these; together all items.
        """
        parts = [
            (indices, self.few(shards[number], rows, write=write))
            for number, (indices, rows) in hasher.locate_each(items).items()
        ]
        if len(parts) == 1:
            [(indices, core)] = parts
            return [(indices, (yield from core))]
        most = self.shards_at_once(shards[0], write=write)
        answers = yield from in_parallel([core for _, core in parts], most)
        return [(part[0], answer) for part, answer in zip(parts, answers, strict=True)]

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
        """Test or set few rows, without an array; as `many`."""
        return (yield from self.many(shard, np.array(rows, np.uint64), write=write))

    def any_number(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """Test or set rows by `few` if they are few, else by `many`."""
        if rows.size <= self.few_bits:
            return self.few(shard, rows.tolist(), write=write)
        return self.many(shard, rows, write=write)

    def shards_at_once(self, shard: Shard, *, write: bool) -> int | None:  # noqa: ARG002
        """Return to how many shards like this one a batch may go at once; None: to all."""
        return None

    def one(self, shard: Shard, offsets: list[int], *, write: bool) -> Core[Segment]:
        """Test the bits of one item, and set them if `write`; as `many`."""
        row = np.array([offsets], np.uint64)
        (segment,) = yield from self.many(shard, row, write=write)
        return segment


class WithFallback(Strategy):
    """A strategy for batches that a server may refuse, and the one that takes its place then.

    Args:
        first: What is tried. An error that the server answers means that it did nothing.
        fallback: What is done instead.
    """

    def __init__(self, first: Strategy, fallback: Strategy) -> None:
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

    def shards_at_once(self, shard: Shard, *, write: bool) -> int | None:
        """See Strategy.shards_at_once."""
        return self._first.shards_at_once(shard, write=write)

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


FILLER = b"\xff"
"""No byte of UTF-8, so it cannot be part of a key."""

FEW = 100
"""So few offsets are quicker formatted one by one."""

_MOST_DIGITS = 12


def header_from_bytes(data: bytes) -> int:
    """Return the header from `GETRANGE key 0 7`; a string too short has none."""
    return int.from_bytes(data, "big") if len(data) == HEADER_BYTES else 0


def plain_header(data: bytes) -> int:
    """Return the same without the flags that this version knows."""
    return unflagged(header_from_bytes(data))


def header_command(key: str) -> bytes:
    """Return the command that reads the header of a shard."""
    return encode_command("GETRANGE", key, 0, HEADER_BYTES - 1)


def start_command(key: str) -> bytes:
    """Return the command that reads header and state of a shard."""
    return encode_command("GETRANGE", key, 0, FIRST_BYTE - 1)


def encode_offsets(offsets: Offsets, before: bytes, after: bytes) -> Table:
    r"""Return for each offset `before`, the offset as an argument in RESP, and `after`.

    Args:
        offsets: N numbers below 2^32.
        before: What comes first; without the filler.
        after: What comes last; without the filler.

    Returns:
        N rows of bytes, all of the same length; `unfilled` makes text of any of them.

    Cost: 20 nanoseconds for an offset.

    >>> unfilled(encode_offsets(np.array([7, 1234], np.uint64), b"GET\r\n", b""))
    b'GET\r\n$1\r\n7\r\nGET\r\n$4\r\n1234\r\n'
    """
    most = len(str(offsets.max(initial=0)))
    length = b"$%d" % most
    start = len(before) + len(length) + 2
    template = before + length + b"\r\n" + FILLER * most + b"\r\n" + after
    table = np.empty((len(offsets), len(template)), np.uint8)
    table[:] = np.frombuffer(template, np.uint8)
    table[:, start : start + most] = _digits(offsets)[:, _MOST_DIGITS - most :]
    short = np.flatnonzero(offsets < _powers()[most - 1])
    counts = _count_digits(offsets[short])
    for count in range(1, most):
        rows = short[counts == count]
        shorter = (b"$%d" % count).rjust(len(length), FILLER)
        table[rows, len(before) : len(before) + len(length)] = np.frombuffer(shorter, np.uint8)
        table[rows, start : start + most - count] = FILLER[0]
    return table


def unfilled(table: Table) -> bytes:
    """Return the rows one after the other, without the filler."""
    return table.tobytes().replace(FILLER, b"")


def encode_each(offsets: Offsets, before: bytes, after: bytes) -> list[bytes]:
    r"""Return the text of each offset by itself; see `encode_offsets`.

    >>> encode_each(np.array([7, 1234], np.uint64), b"GET\r\n", b"")
    [b'GET\r\n$1\r\n7\r\n', b'GET\r\n$4\r\n1234\r\n']
    """
    if len(offsets) < FEW:
        decimals = [b"%d" % offset for offset in offsets.tolist()]
        return [b"%b$%d\r\n%b\r\n%b" % (before, len(d), d, after) for d in decimals]
    texts = np.empty(len(offsets), object)
    counts = _count_digits(offsets)
    for count in np.unique(counts):
        rows = counts == count
        table = encode_offsets(offsets[rows], before, after)
        texts[rows] = table.view(f"S{table.shape[1]}").ravel().tolist()
    each: list[bytes] = texts.tolist()
    return each


def _count_digits(offsets: Offsets) -> npt.NDArray[np.intp]:
    return np.maximum(np.searchsorted(_powers(), offsets, side="right"), 1)


@cache
def _powers() -> Offsets:
    return np.array([10**power for power in range(_MOST_DIGITS)], np.uint64)


@cache
def _four_digits() -> npt.NDArray[np.uint32]:
    text = b"".join(b"%04d" % number for number in range(10_000))
    return np.frombuffer(text, np.uint32)


def _digits(offsets: Offsets) -> Table:
    """Return each number as twelve digits."""
    table = _four_digits()
    words = np.empty((len(offsets), 3), np.uint32)
    # 32 bits hold every offset and divide in half the time.
    rest = offsets.astype(np.uint32)
    for column in (2, 1, 0):
        higher = rest // np.uint32(10_000)
        words[:, column] = table[rest - higher * np.uint32(10_000)]
        rest = higher
    return words.view(np.uint8)
