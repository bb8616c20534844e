"""What the server holds under a filter's name, as it is found.

One slot of the server holds the descriptor and the first shard, so both are read together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from bloomlock.commands import Replies, encode_command
from bloomlock.delivery import check, deliver
from bloomlock.descriptor import (
    HEADER_BYTES,
    Descriptor,
    is_header,
    says_forgotten,
    slices_of,
    unflagged,
)
from bloomlock.effects import ConnectionLost, Core, Request
from bloomlock.errors import FilterMismatchError
from bloomlock.parallel import in_parallel
from bloomlock.sizing import MAX_SHARDS
from bloomlock.stored_descriptor import FIELDS, decode, refuse_other_format, refuse_unknown_flags
from bloomlock.strategies.base import header_command, header_from_bytes

from .contents import contents_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.keys import FilterKeys

    Fields = list[bytes | None]


@dataclass(frozen=True, slots=True)
class Found:
    """What the server holds under a filter's name.

    Attributes:
        descriptor: The stored parameters; None if there are none.
        header: The header of the first shard, without flags.
        length: Bytes of the first shard's string.
    """

    descriptor: Descriptor | None
    header: int
    length: int

    @property
    def is_whole(self) -> bool:
        """Whether the first shard has the header that the stored parameters say."""
        return self.descriptor is not None and self.descriptor.has_header(self.header)

    def has(self, header: int, state: str) -> bool:
        """Return whether the stored parameters are those of a generation, in a state."""
        found = self.descriptor
        return found is not None and (found.header, found.state) == (header, state)

    @property
    def headers(self) -> set[int]:
        """Those that the first shard has or should have."""
        stored = self.descriptor.header if self.descriptor is not None else 0
        return {self.header, stored} - {0}


def look(keys: FilterKeys) -> Core[Found]:
    """Read descriptor and first header in one round trip.

    Raises:
        FilterMismatchError: If the keys hold something that is no filter of this version.
    """
    while True:
        found = _found(keys, *(yield from _read(keys)))
        if (looked := (yield from _with_contents(keys, found, hold=False))) is not None:
            return looked


def look_and_watch(keys: FilterKeys) -> Core[Found]:
    """Read descriptor and first header under WATCH, and hold the connection for the transaction.

    Only the descriptor is watched, which every creation and clear writes. Adds to the bitmap, of
    which there may be thousands a second, must not keep a client from clearing.

    Raises:
        ConnectionLost: If the server cannot be reached; the WATCH is gone then.
    """
    while True:
        found = _found(keys, *(yield from _read(keys, watch=True)))
        if (looked := (yield from _with_contents(keys, found, hold=True))) is not None:
            return looked


def _found(keys: FilterKeys, values: Fields, header: int, length: int) -> Found:
    descriptor = decode(keys.name, values)
    plain = unflagged(header)
    if descriptor is not None and descriptor.has_header(plain) and says_forgotten(header):
        descriptor = replace(descriptor, forgets=True)
    return Found(descriptor, plain, length)


def _with_contents(keys: FilterKeys, found: Found, *, hold: bool) -> Core[Found | None]:
    """Return what was found, with header 0 if the contents are gone; None: it has changed."""
    descriptor = found.descriptor
    refuse_unknown_flags(keys.name, found.header, descriptor)
    if descriptor is None or not found.is_whole:
        return found
    contents = contents_of(descriptor)
    there = yield from contents.is_there(keys.bits(0), found.header, hold=hold)
    return None if there is None else found if there else replace(found, header=0)


class Remains(NamedTuple):
    """What may be there of a filter.

    Attributes:
        further: The numbers of the further shards that there may be.
        are_there: Whether anything is.
        are_native: Whether its shards have keys of the server's own filters beside them.
        header: The header that the shards should have; 0 if that is not known.
    """

    further: Sequence[int]
    are_there: bool
    are_native: bool
    header: int = 0


def look_for_remains(keys: FilterKeys) -> Core[Remains]:
    """Return what there is of a filter.

    A descriptor that is damaged is no hindrance; it may have had any number of shards.

    Raises:
        FilterMismatchError: If the keys hold something that is no filter of this version.
    """
    values, header, length = yield from _read(keys)
    are_native = length == HEADER_BYTES
    try:
        descriptor = decode(keys.name, values)
    except FilterMismatchError:
        refuse_other_format(keys.name, values)
        return Remains(range(1, MAX_SHARDS), True, are_native)
    if descriptor is not None:
        shards = descriptor.size.shards
        if descriptor.replaces is not None:
            shards = max(shards, descriptor.replaces.shards)
        return Remains(range(1, shards), True, descriptor.is_native, descriptor.header)
    return Remains((), header != 0, are_native)


def look_at_shard(keys: FilterKeys, shard: int) -> Core[tuple[int, int]]:
    """Return header, without flags, and length in bytes of a shard; one round trip.

    Raises:
        FilterMismatchError: If the key holds something that is no shard of this version.
    """
    key = keys.bits(shard)
    header, length = _read_shard(keys, shard, (yield from _ask(key, _shard_commands(key))))
    return unflagged(header), length


def most_slices(keys: FilterKeys, descriptor: Descriptor) -> Core[int]:
    """Return the most slices that a shard has; 1 of a filter that does not grow.

    Cost: one round trip if it grows.
    """
    if not descriptor.slices:
        return 1
    shards = range(descriptor.size.shards)
    found = yield from in_parallel([look_at_shard(keys, shard) for shard in shards])
    return max(slices_of(header) for header, _ in found)


def look_at_shard_and_watch(keys: FilterKeys, shard: int) -> Core[tuple[int, int]]:
    """Read header and length of a shard under WATCH of it, and hold the connection."""
    key = keys.bits(shard)
    commands = [encode_command("WATCH", key), *_shard_commands(key)]
    watched, *replies = yield from deliver(Request(key, commands, hold=True), repeatable=True)
    check([watched])
    header, length = _read_shard(keys, shard, replies)
    return unflagged(header), length


def refuse_wrong_length(
    keys: FilterKeys, shard: int, found: tuple[int, int], descriptor: Descriptor
) -> None:
    """Raise FilterMismatchError if a shard of that generation is not as long as its parameters say.

    A string of the right generation has its full length from the start. It may be longer: an object
    that was attached to a larger filter before has added to it.
    `found` is its header and its length.
    """
    header, length = found
    expected = contents_of(descriptor).string_bytes(descriptor, header)
    if length < expected:
        raise FilterMismatchError(
            f"filter {keys.name!r} is damaged: its string {keys.bits(shard)!r} has {length} bytes, "
            f"and needs {expected}; delete the filter to start again"
        )


def _ask(key: str, commands: list[bytes]) -> Core[Replies]:
    try:
        return (yield from deliver(Request(key, commands), repeatable=True))
    except ConnectionLost as lost:
        raise lost.cause from None


def _read(keys: FilterKeys, *, watch: bool = False) -> Core[tuple[Fields, int, int]]:
    """Return the descriptor's fields, and header and length of the first shard, of one moment.

    Another client may clear, delete or create between two commands of a request. Each writes the
    header, and no header returns: if it is the same before and after, all is of one generation.
    """
    commands = [
        header_command(keys.bits(0)),
        encode_command("HMGET", keys.meta, *FIELDS),
        encode_command("EXISTS", keys.meta),
        *_shard_commands(keys.bits(0)),
    ]
    watched: Replies = []
    while True:
        if watch:
            sent = [encode_command("WATCH", keys.meta), *commands]
            request = Request(keys.meta, sent, hold=True)
            *watched, before, values, there, length, after = yield from deliver(
                request, repeatable=True
            )
        else:
            before, values, there, length, after = yield from _ask(keys.meta, commands)
        check(watched)
        checked = _checked(keys, [before, values, there, length, after])
        if before == after:
            return checked


def _shard_commands(key: str) -> list[bytes]:
    """Return what reads a shard: a header that is right says that the length before it was."""
    return [encode_command("STRLEN", key), header_command(key)]


def _checked(keys: FilterKeys, replies: Replies) -> tuple[Fields, int, int]:
    _, values, there, *shard = _refuse_other_types(keys, 0, replies)
    header, length = _read_shard(keys, 0, shard)
    # A hash with none of a descriptor's fields belongs to another program, and so does a string
    # that begins otherwise than with a header or with as many zeros.
    foreign = there or 0 < length < HEADER_BYTES or (header != 0 and not is_header(header))
    if foreign and all(value is None for value in values):
        raise _foreign(keys, 0)
    return values, header, length


def _read_shard(keys: FilterKeys, shard: int, replies: Replies) -> tuple[int, int]:
    length, start = _refuse_other_types(keys, shard, replies)
    header = header_from_bytes(start)
    refuse_unknown_flags(keys.name, header)
    return header, length


def _refuse_other_types(keys: FilterKeys, shard: int, replies: Replies) -> Replies:
    try:
        return check(replies)
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        raise _foreign(keys, shard) from None


def _foreign(keys: FilterKeys, shard: int) -> FilterMismatchError:
    return FilterMismatchError(
        f"the keys of filter {keys.name!r} ({keys.meta!r}, {keys.bits(shard)!r}) hold something "
        "that is no filter; nothing was changed; choose another name or prefix"
    )
