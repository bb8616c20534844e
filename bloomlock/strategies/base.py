"""The base of the strategies: send the items of a shard to Redis and return their answers.

An answer says for each item whether any of its bits was 0 ("missing"). An add that finds a bit
missing has added a new item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from bloomlock.commands import encode_command, in_parallel
from bloomlock.descriptor import DISCARDED, HEADER_BYTES, unflagged
from bloomlock.errors import FilterMismatchError
from bloomlock.hashing import pick
from bloomlock.sizing import FIRST_BYTE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.hashing import Hasher
    from bloomlock.slices import SliceState

    Flags = npt.NDArray[np.bool_]

BITS_PER_TRIP = 10_000
"""Bits touched by one round trip of a batch, where that is one request: 625 items at 1e-6."""


class Shard(NamedTuple):
    """One Redis string of a filter, as this client expects it.

    Attributes:
        header: The expected header.
        bits: Bits of its bitmap, without the header.
    """

    key: str
    header: int
    bits: int
    slices: SliceState

    @property
    def hasher(self) -> Hasher:
        return self.slices.hasher

    @property
    def headers(self) -> list[bytes]:
        """The two possible first bytes of its string: without the flag of discards, and with it."""
        allowed = (self.header, self.header | DISCARDED)
        return [header.to_bytes(HEADER_BYTES, "big") for header in allowed]

    def has(self, header: int) -> bool:
        """Return whether a header is the expected one, with or without the flag."""
        return unflagged(header) == self.header


class Segment(NamedTuple):
    """The answers to consecutive items of one command.

    Attributes:
        rows: The number of items.
        header: The shard's header at the time of the answer.
        missing: For each item whether any of its bits was 0. None: the command found another
            header than the expected one and did nothing.
        error: None, or an error of the server (nothing was done), or ConnectionLost (unknown, if
            its request was sent).
    """

    rows: int
    header: int = 0
    missing: Sequence[bool] | Flags | None = None
    error: Exception | None = None


if TYPE_CHECKING:
    Segments = list[Segment]
    Indices = npt.NDArray[np.intp]
    Answered = Sequence[tuple[Sequence[int] | Indices, Segments]]


class Strategy(ABC):
    """How the bits of items reach Redis.

    Attributes:
        is_atomic: Whether all bits of an item and the header are read and set at one instant. If
            not, the bits may come from two generations, and a header that is not the expected one
            says nothing about them.
        is_exclusive: Whether other clients wait while an item is added.
        bits_per_exchange: The most bits of one exchange.
    """

    name: str
    is_atomic: bool = True
    is_exclusive: ClassVar[bool] = False
    is_forbidden: bool = False
    has_answers: bool = True
    bits_per_exchange: ClassVar[int] = BITS_PER_TRIP

    def check_server(self, key: str) -> Core[None]:  # noqa: ARG002 - others use it
        """Raise ConfigurationError if the server that has a key lacks what the strategy needs."""
        yield from ()

    def check_filter(self, name: str, stored: Descriptor) -> None:
        """Raise FilterMismatchError if the strategy cannot read the filter of that name."""
        if stored.native:
            raise FilterMismatchError(
                f"filter {name!r} was created with strategy 'native', and no other can read it"
            )

    @abstractmethod
    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        """Test items of one shard, and set their bits if `write`; return segments in order."""

    def ask(
        self, shards: Sequence[Shard], items: Sequence[bytes], *, write: bool
    ) -> Core[Answered]:
        """Do the same for any shards; return indices of items, and the answers to these items."""
        if len(shards) == 1 and items:
            segments = yield from self.ask_shard(shards[0], items, write=write)
            return [(range(len(items)), segments)]
        hasher = shards[0].hasher
        by_shard = hasher.by_shard(hasher.digests(items))
        cores = [
            self.ask_shard(shards[number], pick(items, indices.tolist()), write=write)
            for number, indices in by_shard.items()
        ]
        answers = yield from in_parallel(cores, self.shards_at_once(shards[0]))
        return list(zip(by_shard.values(), answers, strict=True))

    def shards_at_once(self, shard: Shard) -> int | None:  # noqa: ARG002
        """Return the number of shards that a batch may go to at once; None: all."""
        return None

    def one(self, shards: Sequence[Shard], item: bytes, *, write: bool) -> Core[Segment]:
        shard = shards[shards[0].hasher.shard_of(item)]
        (segment,) = yield from self.ask_shard(shard, [item], write=write)
        return segment


def error_of(reply: object) -> Exception:
    return reply if isinstance(reply, Exception) else TypeError(reply)


def header_command(key: str) -> bytes:
    return encode_command("GETRANGE", key, 0, HEADER_BYTES - 1)


def start_command(key: str) -> bytes:
    return encode_command("GETRANGE", key, 0, FIRST_BYTE - 1)
