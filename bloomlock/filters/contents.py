"""What a shard holds beside its header: a bitmap in the same string, or a filter of the server's.

A filter that the server has itself (BF.*) is a key of its own beside a string of the header alone.
The key carries the generation. It is reserved before the string with the header is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import (
    FORGETTING,
    HEADER_BYTES,
    generation_of,
    says_forgotten,
    slices_of,
    unflagged,
    with_slices,
    without_slices,
)
from bloomlock.keys import PREPARED_SECONDS, native_key
from bloomlock.native import EXPANSION
from bloomlock.sizing import shard_capacity
from bloomlock.strategies.base import header_command, header_from_bytes

from . import combining
from .counting import Counted, count_bitmaps, count_cells, count_servers_own, count_slices
from .versions import copy_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

COPIED_BYTES_PER_TRIP = 1024 * 1024


class Contents(ABC):
    """What the shards of a filter are.

    Attributes:
        is_counted: Whether the server keeps count of the items.
    """

    is_counted = False

    @abstractmethod
    def string_bytes(self, descriptor: Descriptor, header: int = 0) -> int:
        """Return the length of a shard's string with this header; 0: that has not grown."""

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


class Bitmap(Contents):
    """A bitmap behind the header, in the same string."""

    def string_bytes(self, descriptor: Descriptor, header: int = 0) -> int:
        """See Contents.string_bytes."""
        return descriptor.string_bytes_with(header)

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Contents.count.

        Cost: all bitmaps are read by the server, at most 16 MiB in one command; one round trip for
        each 128 MiB.
        """
        return count_bitmaps(descriptor, shards)

    def copy(self, source: Shard, prepared: str, target: Descriptor) -> Core[bool]:
        """See Contents.copy; what was forgotten before is forgotten in the copy."""
        size = self.string_bytes(target)
        if (yield from self._copy_string(source, prepared, target.header, size)):
            return True
        flagged = source._replace(header=source.header | FORGETTING)
        (start,) = yield from ask(source.key, header_command(source.key))
        if header_from_bytes(start) != flagged.header:
            return False
        # Bits that are read after the versions have all that these stand for.
        yield from copy_table(source, prepared)
        if not (yield from self._copy_string(flagged, prepared, target.header, size)):
            return False
        yield from ask(prepared, set_header(prepared, target.header | FORGETTING))
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
        for start in range(HEADER_BYTES, size, COPIED_BYTES_PER_TRIP):
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


class Cells(Bitmap):
    """Cells of slices behind header and state, for a time window."""

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Contents.count; what was added in two slices counts twice.

        Cost: at most 64 KiB of each shard are read; one round trip.
        """
        return count_cells(descriptor, shards)


class Slices(Bitmap):
    """The slices of a filter that grows, one behind the other in the same string."""

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Contents.count. An item is in one slice, so those of all slices are added up."""
        return count_slices(descriptor, shards)

    def copy(self, source: Shard, prepared: str, target: Descriptor) -> Core[bool]:
        """See Contents.copy; again if the shard grows meanwhile, or the first item is forgotten."""
        before = 0
        while True:
            (start,) = yield from ask(source.key, header_command(source.key))
            header = header_from_bytes(start)
            if without_slices(unflagged(header)) != source.header or header == before:
                return False
            copied = with_slices(target.header, slices_of(header))
            size = self.string_bytes(target, copied)
            yield from lengthen(prepared, target, slices_of(header))
            if says_forgotten(header):
                # Bits that are read after the versions have all that these stand for.
                yield from copy_table(source, prepared)
            found = source._replace(header=header)
            if (yield from self._copy_string(found, prepared, copied, size)):
                if says_forgotten(header):
                    yield from ask(prepared, set_header(prepared, copied | FORGETTING))
                return True
            before = header


class ServersOwn(Contents):
    """A Bloom filter that the server has itself, at a key of its own for each generation."""

    is_counted = True

    def string_bytes(
        self,
        descriptor: Descriptor,  # noqa: ARG002 - the header alone
        header: int = 0,  # noqa: ARG002
    ) -> int:
        """See Contents.string_bytes."""
        return HEADER_BYTES

    def keys(self, key: str, header: int) -> tuple[str, ...]:
        """See Contents.keys."""
        return (native_key(key, generation_of(header)),)

    def reserve(self, key: str, descriptor: Descriptor, seconds: int) -> list[bytes]:
        """See Contents.reserve."""
        items = shard_capacity(descriptor.capacity, descriptor.size.shards)
        own = native_key(key, descriptor.generation)
        rate = repr(descriptor.error_rate)
        return [
            encode_command("BF.RESERVE", own, rate, items, "EXPANSION", EXPANSION),
            encode_command("EXPIRE", own, seconds),
        ]

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Contents.count. Cost: one round trip."""
        return count_servers_own(descriptor, shards)


def set_header(key: str, header: int) -> bytes:
    """Return the command that writes the header of a shard."""
    return encode_command("SETRANGE", key, 0, header.to_bytes(HEADER_BYTES, "big"))


def lengthen(key: str, target: Descriptor, slices: int) -> Core[None]:
    """Give a prepared shard of a filter that grows the length and the header of so many slices.

    In two requests, so that none of them makes a whole shard of a key that is in its place already.
    """
    header = with_slices(target.header, slices)
    size = target.string_bytes_with(header)
    expiry = encode_command("EXPIRE", key, PREPARED_SECONDS)
    yield from ask(key, encode_command("SETRANGE", key, size - 1, b"\0"), expiry)
    yield from ask(key, set_header(key, header), expiry)


BITMAP, CELLS, SLICES, SERVERS_OWN = Bitmap(), Cells(), Slices(), ServersOwn()


def contents_of(descriptor: Descriptor) -> Contents:
    """Return what the shards of a filter are."""
    if descriptor.window is not None:
        return CELLS
    if descriptor.slices:
        return SLICES
    return SERVERS_OWN if descriptor.is_native else BITMAP
