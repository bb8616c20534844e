"""The kinds of filters: how a shard is kept and counted.

A plain filter has a bitmap behind the header, in the same string; one with slices has several.

A filter that the server has itself (BF.*) is a key of its own beside a string of the header alone.
The key carries the generation. It is reserved before the string with the header is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.descriptor import HEADER_BYTES, generation_of
from bloomlock.keys import native_key
from bloomlock.native import EXPANSION
from bloomlock.sizing import shard_capacity

from .fill import Counted, count_bitmaps, count_servers_own, count_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.strategies import Shard


@dataclass(frozen=True)
class Kind:
    """What the shards of a filter are.

    Attributes:
        count: Counts the items; its result is None if the filter changed meanwhile.
        is_counted: Whether the server has the filter itself, and keeps count of its items.
        is_sorted: Whether the set of tombstones is sorted, by epochs.
    """

    count: Callable[[Descriptor, Sequence[Shard]], Core[Counted | None]]
    is_counted: bool = False
    is_sorted: bool = False

    def keys(self, key: str, header: int) -> tuple[str, ...]:
        """Return the keys of a shard with this header, beside its string."""
        return (native_key(key, generation_of(header)),) if self.is_counted else ()

    def reserve(self, key: str, descriptor: Descriptor, seconds: int) -> list[bytes]:
        """Return the commands that make these keys, empty, for some seconds."""
        items = shard_capacity(descriptor.capacity, descriptor.size.shards)
        reserve = (repr(descriptor.error_rate), items, "EXPANSION", EXPANSION)
        commands = []
        for own in self.keys(key, descriptor.header):
            commands.append(encode_command("BF.RESERVE", own, *reserve))
            commands.append(encode_command("EXPIRE", own, seconds))
        return commands


PLAIN, NATIVE = Kind(count_bitmaps), Kind(count_servers_own, is_counted=True)
SLICED, WINDOWED = Kind(count_slices), Kind(count_slices, is_sorted=True)


def kind_of(descriptor: Descriptor) -> Kind:
    if descriptor.slices:
        return WINDOWED if descriptor.window else SLICED
    return NATIVE if descriptor.native else PLAIN


def set_header(key: str, header: int) -> bytes:
    """Return the command that writes the header of a shard."""
    return encode_command("SETRANGE", key, 0, header.to_bytes(HEADER_BYTES, "big"))
