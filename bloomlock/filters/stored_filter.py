"""What the server holds under a filter's name, and whether it has room for a filter.

One slot of the server holds the descriptor and the first shard, so both are read together.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from bloomlock.commands import call, encode_command, send_or_lost
from bloomlock.descriptor import (
    HEADER_BYTES,
    Descriptor,
    has_discards,
    header_from_bytes,
    is_header,
    unflagged,
)
from bloomlock.effects import Replies, Request
from bloomlock.errors import ConfigurationError, FilterMismatchError
from bloomlock.keys import native_key
from bloomlock.sizing import bytes_text
from bloomlock.spec import FIELDS, decode, refuse_unknown_flags
from bloomlock.strategies.base import header_command

from .tombstones import sentinel_command

if TYPE_CHECKING:
    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys

logger = logging.getLogger("bloomlock")

LOST_DESCRIPTOR, LOST_BITMAP, LOST_SHARD = "its descriptor", "its bitmap", "one of its shards"

_LOOK = (
    encode_command("INFO"),
    # The modules of Redis recognise an Active-Active database by it.
    encode_command("COMMAND", "INFO", "CRDT.CONFIG"),
    # An error where there is none.
    encode_command("CLUSTER", "INFO"),
)


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


def is_whole(keys: FilterKeys, descriptor: Descriptor, shard: int) -> Core[bool]:
    """Return whether a shard has all that belongs to the generation of a descriptor."""
    key = keys.bits(shard)
    header, length, has_sentinel, has_native = yield from _ask(
        keys,
        shard,
        sentinel_command(key, descriptor),
        encode_command("EXISTS", native_key(key, descriptor.generation)),
    )
    if has_discards(header) and not has_sentinel:
        return False
    if not descriptor.has_header(unflagged(header)) or (descriptor.native and not has_native):
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
        replies = yield from call(key, *first, *of_shard, *commands)
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


def check_room(keys: FilterKeys, planned: Descriptor, shard_bytes: int) -> Core[None]:
    """Refuse to create a filter on a server that has no room for it, or would lose bits of it.

    A server takes the memory of a shard at once, also where that is more than it may have: above
    `maxmemory` it then refuses the writes of all its clients, above the memory of its machine the
    system kills a process. So the server of the first shard is asked how much it has. Nothing is
    reserved: of two filters that are created at the same time each may fit, and both not.

    A server needs `shard_bytes` for each shard; a master of a cluster has its share of the shards.
    A server that does not answer INFO is taken to have room.
    """
    request = Request(keys.bits(0), _LOOK)
    info, crdt, cluster = yield from send_or_lost(request, repeatable=True)
    texts = [text for text in (info, cluster) if isinstance(text, (bytes, bytearray))]
    lines = b"\n".join(texts).decode(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    several = "a KeyDB active replica" if fields.get("role") == "active-replica" else None
    if isinstance(crdt, list) and any(crdt):
        several = "a Redis Enterprise Active-Active database"
    if several is not None:
        raise ConfigurationError(
            f"filter {keys.name!r} cannot be on this server, which is {several}: each of its "
            "masters takes writes to the same string, of which the last one wins, so bits that "
            "were set are lost; give a server with one master for each key"
        )
    numbers = {name: int(text) for name, text in fields.items() if text.isdigit()}
    used, limit = numbers.get("used_memory", 0), numbers.get("maxmemory", 0)
    total = numbers.get("total_system_memory", 0)
    policy = fields.get("maxmemory_policy", "noeviction")
    bounds: list[tuple[int, str]] = []
    if limit:
        # With another policy what else is there gives way, as far as it may be evicted, which
        # cannot be seen.
        free = limit - used if policy == "noeviction" else limit
        bounds.append((max(0, free), f"maxmemory is {bytes_text(limit)}"))
    if total:
        bounds.append((max(0, total - used), f"its machine has {bytes_text(total)}"))
    in_cluster = "cluster" in (fields.get("redis_mode"), fields.get("server_mode"))
    share = planned.size.shards
    if in_cluster:
        # A client that may not ask for the number of masters knows of one shard.
        share = -(-share // (numbers.get("cluster_size", 0) or share))
    # What an allocator has for a long string is longer by a quarter at most.
    wanted = shard_bytes * share * 5 // 4
    if bounds and wanted > min(bounds)[0]:
        free, why = min(bounds)
        where = "a server of the cluster" if in_cluster else "its server"
        raise ConfigurationError(
            f"capacity is {planned.capacity} at error_rate {planned.error_rate:g}: filter "
            f"{keys.name!r} takes {bytes_text(wanted)} of memory and {where} has "
            f"{bytes_text(free)} free ({why}); give a smaller capacity, a larger error_rate or "
            "another server"
        )
    if limit and policy.startswith("allkeys"):
        logger.warning(
            "filter %r may be evicted, and with it all that it has seen: its server's "
            "maxmemory-policy is %s; use noeviction",
            keys.name,
            policy,
        )
