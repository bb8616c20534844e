"""The kinds of filters: how a shard is sized, kept and counted.

A plain filter has a bitmap behind the header, in the same string; one with slices has several.

A filter that the server has itself (BF.*) is a key of its own beside a string of the header alone.
The key carries the generation. It is reserved before the string with the header is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.descriptor import (
    HEADER_BYTES,
    generation_of,
)
from bloomlock.keys import native_key
from bloomlock.native import EXPANSION
from bloomlock.sizing import shard_capacity

from .fill import Counted, count_bitmaps, count_servers_own, count_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.strategies import Shard


class Kind(ABC):
    """What the shards of a filter are.

    Attributes:
        is_counted: Whether the server keeps count of the items.
        is_sorted: Whether the set of tombstones is sorted, by epochs.
    """

    is_counted = False
    is_sorted = False

    def keys(self, key: str, header: int) -> tuple[str, ...]:  # noqa: ARG002 - all is in the string
        """Return the keys of a shard with this header, beside its string."""
        return ()

    def reserve(self, key: str, descriptor: Descriptor, seconds: int) -> list[bytes]:  # noqa: ARG002
        """Return the commands that make these keys, empty, for some seconds."""
        return []

    @abstractmethod
    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """Count the items; None if the filter changed meanwhile."""


class Plain(Kind):
    """A bitmap behind the header, in the same string."""

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Kind.count.

        Cost: all bitmaps are read by the server, at most 16 MiB in one command; one round trip for
        each 128 MiB.
        """
        return count_bitmaps(descriptor, shards)


class Sliced(Plain):
    """Several bitmaps behind the header, in the same string."""

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Kind.count; what was added in two slices of a window counts twice."""
        return count_slices(descriptor, shards)


class Windowed(Sliced):
    """The slices of a time window."""

    is_sorted = True


class Native(Kind):
    """A Bloom filter that the server has itself, at a key of its own for each generation."""

    is_counted = True

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


PLAIN, SLICED, WINDOWED, NATIVE = Plain(), Sliced(), Windowed(), Native()


def kind_of(descriptor: Descriptor) -> Kind:
    """Return what the shards of a filter are."""
    if descriptor.slices:
        return WINDOWED if descriptor.window else SLICED
    return NATIVE if descriptor.native else PLAIN
