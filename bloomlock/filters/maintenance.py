"""Clear and delete: what changes a filter as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.effects import Core, ask, encode_command
from bloomlock.keys import copy_key, stripe_fence

from .attachment import renew
from .stored import look_for_remains

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys

    from .core import FilterCore


def clear(core: FilterCore) -> Core[None]:
    """Empty the filter for everybody, keeping its parameters, and attach to the new generation."""
    since = core.unreported.moment()
    try:
        descriptor = yield from renew(core.keys, core.own_generation(), core.key)
    finally:
        # Whatever became of it, this object gives no answer from before.
        core.forget()
    yield from core.adopt(descriptor, since)


def delete(keys: FilterKeys) -> Core[bool]:
    """Delete every key of the filter; True if there was one. Objects attached to it find it lost.

    Cost: two round trips and one for each further shard; 257 if the descriptor is damaged.
    """
    shards, there = yield from look_for_remains(keys)
    # Further shards first: while the descriptor stands, a crash here is found and can be repeated.
    for shard in range(1, shards):
        yield from ask(keys.bits(shard), encode_command("UNLINK", *_keys_of_shard(keys, shard)))
    yield from ask(keys.meta, encode_command("UNLINK", keys.meta, *_keys_of_shard(keys, 0)))
    return there


def _keys_of_shard(keys: FilterKeys, shard: int) -> tuple[str, ...]:
    key = keys.bits(shard)
    return key, stripe_fence(key), copy_key(key)
