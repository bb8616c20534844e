"""Clear, delete, copy: what changes a filter as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.commands import Core, Request, ask, deliver, encode_command
from bloomlock.descriptor import COPYING, HEADER_BYTES, header_from_bytes
from bloomlock.errors import ConfigurationError, FilterLostError
from bloomlock.strategies.bits import header_command

from .attachment import executed, look, mark_ready, renew, store_command
from .core import FilterCore, View, new_generation

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys

COPIED_BYTES_PER_TRIP = 1024 * 1024


def clear(core: FilterCore) -> Core[None]:
    """Empty the filter for everybody, keeping its parameters, and attach to the new generation."""
    descriptor = yield from renew(core.keys, new_generation())
    core.untold.clear()
    yield from core.adopt(descriptor)


def delete(keys: FilterKeys) -> Core[bool]:
    """Delete every key of the filter; True if there was one. Objects attached to it find it lost.

    Cost: one round trip and one for each further shard.
    """
    found = yield from look(keys)
    shards = found.descriptor.size.shards if found.descriptor else 1
    # Further shards first: while the descriptor stands, a crash here is found and can be repeated.
    for shard in range(1, shards):
        yield from ask(keys.bits(shard), encode_command("UNLINK", keys.bits(shard)))
    yield from ask(keys.meta, encode_command("UNLINK", keys.meta, keys.bits(0)))
    return found.descriptor is not None or found.header != 0


def copy(core: FilterCore, keys: FilterKeys) -> Core[None]:
    """Copy the filter to new keys, chunk by chunk through this client.

    Every item added before the copy began is in it; one added meanwhile may or may not be. The
    copy cannot be attached to before it is complete.
    """
    view = yield from core.current()
    target = view.descriptor.with_generation(new_generation(), COPYING)
    yield from _reserve(keys, store_command(keys, target))
    try:
        for number, source in enumerate(view.shards):
            yield from _copy_shard(core, view, source.key, keys.bits(number))
        for shard in range(target.size.shards):
            key = keys.bits(shard)
            header = target.header.to_bytes(HEADER_BYTES, "big")
            yield from ask(key, encode_command("SETRANGE", key, 0, header))
        yield from mark_ready(keys, target)
    except Exception:
        yield from delete(keys)
        raise


def _reserve(keys: FilterKeys, store: bytes) -> Core[None]:
    found = yield from look(keys, watch=True)
    if found.descriptor is not None or found.header:
        yield Request(keys.meta, [encode_command("UNWATCH")])
        raise ConfigurationError(
            f"name {keys.name!r} is taken by another filter; copy to a new one"
        )
    commands = (encode_command("MULTI"), encode_command("UNLINK", keys.bits(0)), store)
    finish = Request(keys.meta, [*commands, encode_command("EXEC")])
    if not executed((yield from deliver(finish, repeatable=False))):
        raise ConfigurationError(f"name {keys.name!r} was taken by another filter just now")


def _copy_shard(core: FilterCore, view: View, source: str, target: str) -> Core[None]:
    yield from ask(target, encode_command("UNLINK", target))
    size = HEADER_BYTES + (view.descriptor.size.shard_bits + 7) // 8
    for start in range(HEADER_BYTES, size, COPIED_BYTES_PER_TRIP):
        end = min(start + COPIED_BYTES_PER_TRIP, size) - 1
        chunk, header = yield from ask(
            source, encode_command("GETRANGE", source, start, end), header_command(source)
        )
        if header_from_bytes(header) != view.header:
            raise FilterLostError(
                f"filter {core.keys.name!r} was cleared or lost while it was copied"
            )
        yield from ask(target, encode_command("SETRANGE", target, start, chunk))
