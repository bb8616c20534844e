"""What the server holds under a filter's name, as it is found.

One slot of the server holds the descriptor and the first shard, so both are read together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from bloomlock.commands import Replies, encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import (
    HEADER_BYTES,
    Descriptor,
    has_discards,
    is_header,
    unflagged,
)
from bloomlock.errors import FilterMismatchError
from bloomlock.parallel import in_parallel
from bloomlock.spec import FIELDS, decode, refuse_unknown_flags
from bloomlock.strategies.base import header_command, header_from_bytes

from .generation import kind_of
from .tombstones import sentinel_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys

LOST_DESCRIPTOR, LOST_BITMAP, LOST_SHARD = "its descriptor", "its bitmap", "one of its shards"


class Found(NamedTuple):
    """What the server holds: header, without flags, and length are those of the first shard.

    `gone` says which part of the filter is known to be lost.
    """

    descriptor: Descriptor | None
    header: int
    length: int
    gone: str | None = None


def look(keys: FilterKeys) -> Core[Found]:
    """Read descriptor and first header in one round trip.

    The commands are no transaction: the header may be of a later moment than the descriptor. So a
    header that does not fit is a loss only if the same descriptor is found once more.

    Raises:
        FilterMismatchError: If the keys hold something that is no filter of this version.
    """
    read = encode_command("HMGET", keys.meta, *FIELDS)
    # Read last, any of its fields tells a hash of another program from a filter that is just
    # created.
    read_any = encode_command("HRANDFIELD", keys.meta)
    while True:
        header, length, values, field = yield from _ask(keys, 0, read_any, first=(read,))
        if any(value is not None for value in values):
            break
        is_foreign = field is not None and field.decode(errors="replace") not in FIELDS
        if is_foreign or 0 < length < HEADER_BYTES or (header and not is_header(header)):
            raise _foreign(keys, 0)
        if field is None:
            return Found(None, unflagged(header), length)
    descriptor = decode(keys.name, values)
    plain = unflagged(header)
    if descriptor is not None and descriptor.has_header(plain) and has_discards(header):
        descriptor = replace(descriptor, discards=True)
    return Found(descriptor, plain, length)


def look_at_shard(keys: FilterKeys, shard: int) -> Core[tuple[int, int]]:
    header, length = yield from _ask(keys, shard)
    return unflagged(header), length


def are_whole(keys: FilterKeys, descriptor: Descriptor, shards: Iterable[int]) -> Core[bool]:
    """Return whether some shards have all that belongs to the generation of a descriptor."""
    return all((yield from in_parallel([_is_whole(keys, descriptor, shard) for shard in shards])))


def _is_whole(keys: FilterKeys, descriptor: Descriptor, shard: int) -> Core[bool]:
    key, kind = keys.bits(shard), kind_of(descriptor)
    header, length, has_sentinel, *are_there = yield from _ask(
        keys,
        shard,
        sentinel_command(key, descriptor.header, is_sorted=kind.is_sorted),
        *(encode_command("EXISTS", own) for own in kind.keys(key, descriptor.header)),
    )
    if has_discards(header) and not has_sentinel:
        return False
    if not descriptor.has_header(unflagged(header)) or not all(are_there):
        return False
    refuse_wrong_length(keys, shard, length, descriptor)
    return True


def refuse_wrong_length(keys: FilterKeys, shard: int, length: int, descriptor: Descriptor) -> None:
    # A string of the right generation has its full length from the start. It may be longer: an
    # object that was attached to a larger filter before has added to it.
    expected = descriptor.string_bytes()
    if length < expected:
        raise FilterMismatchError(
            f"filter {keys.name!r} is damaged: its string {keys.bits(shard)!r} has {length} bytes, "
            f"and needs {expected}; delete the filter to start again"
        )


def _ask(
    keys: FilterKeys, shard: int, *commands: bytes, first: tuple[bytes, ...] = ()
) -> Core[Replies]:
    """Return header and length of a shard, and the replies to further commands of its slot."""
    key = keys.bits(shard)
    # A header that is right says that the length before it was.
    of_shard = encode_command("STRLEN", key), header_command(key)
    try:
        replies = yield from ask(key, *first, *of_shard, *commands)
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        raise _foreign(keys, shard) from None
    at = len(first)
    length, header = replies[at], header_from_bytes(replies[at + 1])
    refuse_unknown_flags(keys.name, header)
    return [header, length, *replies[:at], *replies[at + 2 :]]


def _foreign(keys: FilterKeys, shard: int) -> FilterMismatchError:
    return FilterMismatchError(
        f"the keys of filter {keys.name!r} ({keys.meta!r}, {keys.bits(shard)!r}) hold something "
        "that is no filter; nothing was changed; choose another name or prefix"
    )
