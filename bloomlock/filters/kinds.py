"""The kinds of filters: how a shard is sized, kept, counted and copied.

A plain filter has a bitmap behind the header, in the same string; one with slices has several.

A filter that the server has itself (BF.*) is a key of its own beside a string of the header alone.
The key carries the generation. It is reserved before the string with the header is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING

from bloomlock import native
from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import (
    DISCARDED,
    HEADER_BYTES,
    generation_of,
    has_discards,
    unflagged,
)
from bloomlock.keys import PREPARED_SECONDS, native_key
from bloomlock.native import EXPANSION
from bloomlock.sizing import FIRST_BYTE, shard_capacity
from bloomlock.slices import slices_in
from bloomlock.strategies.base import header_command, header_from_bytes, start_command

from . import combining
from .counting import Counted, count_bitmaps, count_servers_own, count_slices
from .tombstones import copy_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

COPIED_BYTES_PER_TRIP = 1024 * 1024


class Kind(ABC):
    """What the shards of a filter are.

    Attributes:
        is_counted: Whether the server keeps count of the items.
        is_sorted: Whether the set of tombstones is sorted, by epochs.
    """

    is_counted = False
    is_sorted = False

    @abstractmethod
    def string_bytes(self, descriptor: Descriptor, slices: int = 1) -> int:
        """Return the length of a shard's string; of one that grows, with a number of slices."""

    def keys(self, key: str, header: int) -> tuple[str, ...]:  # noqa: ARG002 - all is in the string
        """Return the keys of a shard with this header, beside its string."""
        return ()

    def reserve(self, key: str, descriptor: Descriptor, seconds: int) -> list[bytes]:  # noqa: ARG002
        """Return the commands that make these keys, empty, for some seconds."""
        return []

    @abstractmethod
    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """Count the items; None if the filter changed meanwhile."""

    def copy(self, source: Shard, prepared: str, target: Descriptor) -> Core[bool]:
        """Copy a shard; False if it changed meanwhile. What is copied again is the same.

        Args:
            source: The shard.
            prepared: Where the string of the copy is until it has all; it has its header.
            target: Of the copy.
        """
        raise NotImplementedError


class Plain(Kind):
    """A bitmap behind the header, in the same string."""

    def string_bytes(self, descriptor: Descriptor, slices: int = 1) -> int:
        """See Kind.string_bytes."""
        return descriptor.string_bytes(slices)

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Kind.count.

        Cost: all bitmaps are read by the server, at most 16 MiB in one command; one round trip for
        each 128 MiB.
        """
        return count_bitmaps(descriptor, shards)

    def copy(self, source: Shard, prepared: str, target: Descriptor) -> Core[bool]:
        """See Kind.copy; what was discarded before is discarded in the copy."""
        size = self.string_bytes(target)
        if (yield from self._copy_as_flagged(source, prepared, target, size)):
            return True
        flagged = source._replace(header=source.header | DISCARDED)
        (start,) = yield from ask(source.key, header_command(source.key))
        if header_from_bytes(start) != flagged.header:
            return False
        return (yield from self._copy_as_flagged(flagged, prepared, target, size))

    def _copy_as_flagged(
        self, source: Shard, prepared: str, target: Descriptor, size: int
    ) -> Core[bool]:
        """Copy bits, and tombstones if the header of the source has the flag; else as _copy_string.

        The tombstones come first: then the bits that are read have all that these stand for.
        """
        if not has_discards(source.header):
            return (yield from self._copy_string(source, prepared, target.header, size))
        if not (yield from copy_set(source, prepared, target.header, is_sorted=self.is_sorted)):
            return False
        if not (yield from self._copy_string(source, prepared, target.header, size)):
            return False
        yield from ask(prepared, set_header(prepared, target.header | DISCARDED))
        return True

    def _copy_string(self, source: Shard, prepared: str, header: int, size: int) -> Core[bool]:
        """Copy what is behind the header of a shard that has exactly its own; else False.

        Args:
            source: The shard.
            prepared: Where the copy is.
            header: That of the copy.
            size: Its length.
        """
        copied = combining.Target(prepared, header)
        for piece in chain.from_iterable(combining.pieces(1, size, travels=False)):
            done = yield from combining.combine(copied, (source,), piece)
            if done is None:
                return (yield from self._copy_through_client(source, prepared, size))
            if done != combining.DONE:
                return False
        return True

    def _copy_through_client(self, source: Shard, prepared: str, size: int) -> Core[bool]:
        """Copy a shard where the server runs no scripts, or the keys lie in different slots."""
        for start in range(FIRST_BYTE, size, COPIED_BYTES_PER_TRIP):
            end = min(start + COPIED_BYTES_PER_TRIP, size) - 1
            chunk, header = yield from ask(
                source.key,
                encode_command("GETRANGE", source.key, start, end),
                header_command(source.key),
            )
            if header_from_bytes(header) != source.header:
                return False
            yield from ask(
                prepared,
                encode_command("SETRANGE", prepared, start, chunk),
                encode_command("EXPIRE", prepared, PREPARED_SECONDS),
            )
        return True


class Sliced(Plain):
    """Several bitmaps behind the header, in the same string."""

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Kind.count; what was added in two slices of a window counts twice."""
        return count_slices(descriptor, shards)

    def copy(self, source: Shard, prepared: str, target: Descriptor) -> Core[bool]:
        """See Kind.copy; once again where the shard gets the flag of discards meanwhile.

        The state comes first. What is added to a slice that it does not name is in no copy.
        """
        for _ in range(2):
            (start,) = yield from ask(source.key, start_command(source.key))
            header = header_from_bytes(start[:HEADER_BYTES])
            if unflagged(header) != source.header or len(start) < FIRST_BYTE:
                return False
            size = self.string_bytes(target, slices_in(start) if target.growth else 1)
            yield from lengthen(prepared, size)
            yield from ask(
                prepared,
                encode_command("SETRANGE", prepared, HEADER_BYTES, start[HEADER_BYTES:]),
                encode_command("EXPIRE", prepared, PREPARED_SECONDS),
            )
            if (
                yield from self._copy_as_flagged(
                    source._replace(header=header), prepared, target, size
                )
            ):
                return True
        return False


class Windowed(Sliced):
    """The slices of a time window."""

    is_sorted = True


class Native(Kind):
    """A Bloom filter that the server has itself, at a key of its own for each generation."""

    is_counted = True

    def string_bytes(
        self,
        descriptor: Descriptor,  # noqa: ARG002 - the header alone
        slices: int = 1,  # noqa: ARG002
    ) -> int:
        """See Kind.string_bytes."""
        return HEADER_BYTES

    def keys(self, key: str, header: int) -> tuple[str, ...]:
        """See Kind.keys."""
        return (native_key(key, generation_of(header)),)

    def reserve(self, key: str, descriptor: Descriptor, seconds: int) -> list[bytes]:
        """See Kind.reserve."""
        items = shard_capacity(descriptor.capacity, descriptor.size.shards)
        own = native_key(key, descriptor.generation)
        rate = repr(descriptor.error_rate)
        return [
            encode_command("BF.RESERVE", own, rate, items, "EXPANSION", EXPANSION),
            encode_command("EXPIRE", own, seconds),
        ]

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Kind.count. Cost: one round trip."""
        return count_servers_own(descriptor, shards)


def set_header(key: str, header: int) -> bytes:
    """Return the command that writes the header of a shard."""
    return encode_command("SETRANGE", key, 0, header.to_bytes(HEADER_BYTES, "big"))


def lengthen(key: str, size: int) -> Core[None]:
    """Give a prepared shard of a filter that grows a length at least.

    Without a header, so that it makes no whole shard of a key that is in its place already.
    """
    expiry = encode_command("EXPIRE", key, PREPARED_SECONDS)
    yield from ask(key, encode_command("SETRANGE", key, size - 1, b"\0"), expiry)


PLAIN, SLICED, WINDOWED, NATIVE = Plain(), Sliced(), Windowed(), Native()


def kind_of(descriptor: Descriptor) -> Kind:
    """Return what the shards of a filter are."""
    if descriptor.slices:
        return WINDOWED if descriptor.window else SLICED
    return NATIVE if descriptor.formulas is native else PLAIN
