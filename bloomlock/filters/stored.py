"""What the server holds under a filter's name: one look at descriptor and first header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bloomlock.descriptor import (
    FIELDS,
    HEADER_BYTES,
    Descriptor,
    decode,
    header_from_bytes,
    is_header,
    refuse_newer_format,
    refuse_unknown_flags,
)
from bloomlock.effects import (
    ConnectionLost,
    Core,
    Replies,
    Request,
    check,
    deliver,
    encode_command,
)
from bloomlock.errors import FilterMismatchError
from bloomlock.sizing import HEADER_BITS, MAX_SHARDS
from bloomlock.strategies.wire import header_command

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys


@dataclass(frozen=True, slots=True)
class Found:
    """What the server holds under a filter's name.

    Attributes:
        descriptor: The stored parameters; None if there are none.
        header: The header of the first shard.
        length: Bytes of the first shard's string.
    """

    descriptor: Descriptor | None
    header: int
    length: int


def look(keys: FilterKeys) -> Core[Found]:
    """Read descriptor and first header in one round trip.

    Raises:
        FilterMismatchError: If the keys hold something that is no filter of this version.
    """
    return _decoded(keys, (yield from _ask(keys.meta, _commands(keys))))


def look_and_watch(keys: FilterKeys) -> Core[Found]:
    """Do the same under WATCH, and hold the connection for the transaction to come.

    Only the descriptor is watched: whoever creates or clears writes it, and adds to the bitmap, of
    which there may be thousands a second, must not keep anybody from clearing.

    Raises:
        ConnectionLost: If the server cannot be reached; the WATCH is gone then.
    """
    watch = encode_command("WATCH", keys.meta)
    request = Request(keys.meta, [watch, *_commands(keys)], hold=True)
    watched, *replies = yield from deliver(request, repeatable=True)
    check([watched])
    return _decoded(keys, replies)


def look_for_remains(keys: FilterKeys) -> Core[tuple[int, bool]]:
    """Return how many shards there may be, and whether anything of a filter is there.

    A descriptor that is damaged is no hindrance; it may have had any number of shards.

    Raises:
        FilterMismatchError: If the keys hold something that is no filter, or a newer one.
    """
    values, header, _ = _checked(keys, (yield from _ask(keys.meta, _commands(keys))))
    try:
        descriptor = decode(keys.name, values)
    except FilterMismatchError:
        refuse_newer_format(keys.name, values)
        return MAX_SHARDS, True
    if descriptor is not None:
        return descriptor.size.shards, True
    return 1, header != 0


def look_at_shard(keys: FilterKeys, shard: int) -> Core[tuple[int, int]]:
    """Return header and length in bytes of a shard; one round trip.

    Raises:
        FilterMismatchError: If the key holds something that is no shard of this version.
    """
    key = keys.bits(shard)
    return _read_shard(keys, shard, (yield from _ask(key, _shard_commands(key))))


def look_at_shard_and_watch(keys: FilterKeys, shard: int) -> Core[tuple[int, int]]:
    """Do the same under WATCH of the shard, as `look_and_watch`."""
    key = keys.bits(shard)
    commands = [encode_command("WATCH", key), *_shard_commands(key)]
    watched, *replies = yield from deliver(Request(key, commands, hold=True), repeatable=True)
    check([watched])
    return _read_shard(keys, shard, replies)


def refuse_wrong_length(keys: FilterKeys, shard: int, length: int, descriptor: Descriptor) -> None:
    """Raise FilterMismatchError if a shard of that generation is not as long as its parameters say.

    A string of the right generation has its full length from the start.
    """
    expected = string_bytes(descriptor)
    if length != expected:
        raise FilterMismatchError(
            f"filter {keys.name!r} is damaged: its string {keys.bits(shard)!r} has {length} bytes, "
            f"and its parameters give {expected}; delete the filter to start again"
        )


def string_bytes(descriptor: Descriptor) -> int:
    """Return the length of each shard's string."""
    return (HEADER_BITS + descriptor.size.shard_bits + 7) // 8


def _ask(key: str, commands: list[bytes]) -> Core[Replies]:
    try:
        return (yield from deliver(Request(key, commands), repeatable=True))
    except ConnectionLost as lost:
        raise lost.cause from None


def _commands(keys: FilterKeys) -> list[bytes]:
    return [
        encode_command("HMGET", keys.meta, *FIELDS),
        encode_command("EXISTS", keys.meta),
        *_shard_commands(keys.bits(0)),
    ]


def _shard_commands(key: str) -> list[bytes]:
    return [header_command(key), encode_command("STRLEN", key)]


def _decoded(keys: FilterKeys, replies: Replies) -> Found:
    values, header, length = _checked(keys, replies)
    return Found(decode(keys.name, values), header, length)


def _checked(keys: FilterKeys, replies: Replies) -> tuple[list[bytes | None], int, int]:
    """Return the descriptor's fields, and header and length of the first shard."""
    values, there, *shard = _refuse_other_types(keys, 0, replies)
    header, length = _read_shard(keys, 0, shard)
    # A hash with none of a descriptor's fields belongs to another program, and so does a string
    # that begins otherwise than with a header or with as many zeros.
    foreign = there or 0 < length < HEADER_BYTES or (header != 0 and not is_header(header))
    if foreign and all(value is None for value in values):
        raise _foreign(keys, 0)
    return values, header, length


def _read_shard(keys: FilterKeys, shard: int, replies: Replies) -> tuple[int, int]:
    start, length = _refuse_other_types(keys, shard, replies)
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
