"""A filter whose bits are replaced as a whole, by others that were prepared beside them.

The prepared shards lie at keys of their own, one for each shard, in its slot. When all are there
the descriptor says "replacing" and names their generation, and then each takes the place of its
shard. A client that finds that state finishes the work, as one that finds "creating" does. So the
old bits are there, whole, until the descriptor is written, and the new ones ever after.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES, READY, Descriptor
from bloomlock.effects import ConnectionLost, Core
from bloomlock.keys import ClaimKeys, replacement_key
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script, answer_of
from bloomlock.strategies.base import header_command, header_from_bytes

from .contents import set_header
from .stored_filter import Found, look, look_at_shard
from .writing import Changed, mark_ready, refuse_change, store_command, write_watched

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys

PREPARED_SECONDS = 24 * 3600
"""How long the shards that a client prepares stay if it dies before all are there."""
KEPT_SECONDS = 30 * 24 * 3600
"""How long those that are all there stay, if it dies before they are in place, and no other client
attaches to the filter meanwhile, which would put them there."""

_SCRIPT = Script("header", "replace")


def begin(key: str, target: Descriptor) -> Core[None]:
    """Make a prepared shard, empty as yet, at its key."""
    expiry = encode_command("EXPIRE", key, PREPARED_SECONDS)
    yield from ask(key, encode_command("UNLINK", key), set_header(key, target.header), expiry)


def withdraw(keys: FilterKeys, target: Descriptor) -> Core[None]:
    """Unlink what was prepared, if the descriptor does not name it."""
    found = yield from look(keys)
    if found.descriptor is not None and found.descriptor.generation == target.generation:
        return
    placed = target.place(keys)
    prepared = [replacement_key(placed.bits(n), target.generation) for n in _shards(target)]
    yield from in_parallel([ask(key, encode_command("UNLINK", key)) for key in prepared])


def store(keys: FilterKeys, before: Descriptor, target: Descriptor) -> Core[None]:
    """Write the descriptor that names the prepared shards; may be repeated.

    Raises:
        Changed: If the filter is another one by now, or prepared shards are gone.
    """
    placed = target.place(keys)
    kept = yield from in_parallel([_keep(placed, shard, target) for shard in _shards(target)])
    if not all(kept):
        raise Changed

    def decide(found: Found) -> list[bytes]:
        if found.descriptor is not None and found.descriptor.generation == target.generation:
            return []
        if not found.has(before.header, READY):
            raise Changed
        return [store_command(keys, target)]

    yield from write_watched(keys, decide)


def _keep(keys: FilterKeys, shard: int, target: Descriptor) -> Core[bool]:
    """Let a prepared shard stay until it is put in place; False if it is gone, or is in place."""
    key = replacement_key(keys.bits(shard), target.generation)
    expiry = encode_command("EXPIRE", key, KEPT_SECONDS)
    _, start = yield from ask(key, expiry, header_command(key))
    if header_from_bytes(start) == target.header:
        return True
    header, _ = yield from look_at_shard(keys, shard)
    return header == target.header


def finish(keys: FilterKeys, descriptor: Descriptor) -> Core[Descriptor]:
    """Put the shards in place that are not yet, and open the filter.

    Raises:
        Changed: If another client replaced or finished it meanwhile, or a prepared shard is gone.
    """
    placed, shards = descriptor.place(keys), _shards(descriptor)
    found = yield from in_parallel([look_at_shard(placed, shard) for shard in shards])
    # In this order, as for "creating": a shard is replaced only if it still has the header that it
    # had before the descriptor said so.
    refuse_change((yield from look(keys)), descriptor)
    puts = [
        partial(_put, placed, shard, descriptor, before)
        for shard, (before, _) in zip(shards, found, strict=True)
        if before != descriptor.header
    ]
    yield from in_parallel([put() for put in puts])
    yield from mark_ready(keys, descriptor)
    return replace(descriptor, state=READY)


def _put(keys: FilterKeys, shard: int, descriptor: Descriptor, before: int) -> Core[None]:
    key = keys.bits(shard)
    prepared = replacement_key(key, descriptor.generation)
    gone = ClaimKeys.of(key).of_generation[1:]
    headers = [header.to_bytes(HEADER_BYTES, "big") for header in (descriptor.header, before)]
    (reply,) = yield from _SCRIPT.call([((key, prepared, *gone), headers)], repeatable=True)
    if isinstance(reply, ConnectionLost):
        raise reply  # for the loop that looks again
    if answer_of(reply, f"filter {keys.name!r} is being replaced, which needs"):
        broken = {descriptor.generation} if reply == _PREPARED_IS_GONE else ()
        raise Changed(broken)


_PREPARED_IS_GONE = 2


def _shards(descriptor: Descriptor) -> range:
    return range(descriptor.size.shards)
