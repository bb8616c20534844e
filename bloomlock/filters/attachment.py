"""How a filter comes into being and how a client attaches to it.

One slot of the server holds the descriptor and the first shard, so both are read together, and
written together in one WATCH transaction: of two clients that create or clear the same filter at
the same instant one wins, and the other reads what it wrote. Further shards follow one by one
while the descriptor says "creating"; whoever finds that state finishes the work, so
a creator that died half-way leaves nothing broken.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bloomlock.commands import (
    RETRY_PAUSES,
    ConnectionLost,
    Core,
    Pause,
    Replies,
    Request,
    ask,
    check,
    deliver,
    encode_command,
)
from bloomlock.descriptor import (
    COPYING,
    CREATING,
    FIELDS,
    HEADER_BYTES,
    READY,
    Descriptor,
    Wanted,
    decode,
    encode,
    header_from_bytes,
    is_header,
)
from bloomlock.errors import (
    BloomlockError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
)
from bloomlock.sizing import HEADER_BITS
from bloomlock.strategies.bits import header_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bloomlock.keys import FilterKeys

    Decide = Callable[["Found", set[int]], Descriptor | None]

ATTEMPTS = 20
_EXEC = encode_command("EXEC")
_MULTI = encode_command("MULTI")


class _Changed(Exception):  # noqa: N818 - an event for the loop that looks again, not an error
    """Somebody else changed the filter meanwhile, or a generation was found broken."""

    def __init__(self, broken: Iterable[int] = ()) -> None:
        super().__init__()
        self.broken = set(broken)


@dataclass(frozen=True, slots=True)
class Found:
    """What the server holds under a filter's name."""

    descriptor: Descriptor | None
    header: int


def attach(
    keys: FilterKeys, wanted: Wanted | None, generation: int, *, recreate: bool
) -> Core[Descriptor]:
    """Return the descriptor of the filter, creating the filter where it is missing.

    Args:
        keys: The filter's keys.
        wanted: Parameters of the filter; None only attaches to what is there.
        generation: The generation to give a filter that has to be created.
        recreate: Start anew where a filter was but its bitmap or descriptor is gone.

    Raises:
        FilterNotFoundError: If `wanted` is None and there is nothing.
        FilterMismatchError: If something else than the wanted filter is stored there.
        FilterLostError: If part of the filter is gone and `recreate` is False.

    Cost: one round trip if the filter is there (one more for each further shard).
    """

    def decide(found: Found, broken: set[int]) -> Descriptor | None:
        if found.descriptor is not None:
            _refuse_other(keys, wanted, found.descriptor)
        gone = _what_is_gone(found, broken)
        if gone is None and found.descriptor is not None:
            return None
        if gone is not None and not (recreate and (wanted or found.descriptor)):
            raise FilterLostError(
                f"filter {keys.name!r} has lost {gone} (evicted, or deleted by hand); delete it, "
                'or pass on_lost="recreate" to start it anew'
            )
        model = wanted.describe() if wanted else found.descriptor
        if model is None:
            raise FilterNotFoundError(f"there is no filter named {keys.name!r}")
        return model.with_generation(generation, READY)

    return (yield from _decide_and_write(keys, decide))


def renew(keys: FilterKeys, generation: int) -> Core[Descriptor]:
    """Empty the filter: the same parameters, a new generation, all bits 0.

    Raises:
        FilterNotFoundError: If there is no such filter.
    """

    def decide(found: Found, broken: set[int]) -> Descriptor | None:  # noqa: ARG001 - all is emptied
        if found.descriptor is None:
            raise FilterNotFoundError(f"there is no filter named {keys.name!r}")
        if found.descriptor.generation == generation:
            return None
        return found.descriptor.with_generation(generation, READY)

    return (yield from _decide_and_write(keys, decide))


def look(keys: FilterKeys, *, watch: bool = False) -> Core[Found]:
    """Read descriptor and first header in one trip, holding the connection under WATCH if asked."""
    commands = [
        encode_command("HMGET", keys.meta, *FIELDS),
        header_command(keys.bits(0)),
    ]
    if watch:
        commands.insert(0, encode_command("WATCH", keys.meta, keys.bits(0)))
    replies = yield from deliver(Request(keys.meta, commands, hold=watch), repeatable=True)
    try:
        *_, values, start = check(replies)
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        raise _foreign(keys) from None
    descriptor, header = decode(keys.name, values), header_from_bytes(start)
    if descriptor is None and header and not is_header(header):
        raise _foreign(keys)
    return Found(descriptor, header)


def _decide_and_write(keys: FilterKeys, decide: Decide) -> Core[Descriptor]:
    """Write what `decide` wants for what is found there, until nothing is left to write."""
    broken: set[int] = set()
    losses = 0
    for attempt in range(ATTEMPTS):
        try:
            found = yield from look(keys)
            planned = decide(found, broken)
            if planned is not None:
                planned = decide((yield from look(keys, watch=True)), broken)
                planned = yield from _write(keys, planned)
            current = planned or found.descriptor
            if current is not None:
                return (yield from _complete(keys, current))
        except _Changed as change:
            broken |= change.broken
        except ConnectionLost as lost:
            losses += 1
            if losses > len(RETRY_PAUSES) or not lost.sent:
                raise lost.cause from None
        yield Pause(random.uniform(0, 0.002 * (attempt + 1)))
    raise BloomlockError(f"filter {keys.name!r} is changed by others all the time; try again")


def _what_is_gone(found: Found, broken: set[int]) -> str | None:
    if found.descriptor is None:
        return "its descriptor" if found.header else None
    if found.descriptor.generation in broken:
        return "one of its shards"
    if found.descriptor.state == COPYING or found.header == found.descriptor.header:
        return None
    return "its bitmap"


def _refuse_other(keys: FilterKeys, wanted: Wanted | None, stored: Descriptor) -> None:
    if stored.state == COPYING:
        raise FilterMismatchError(
            f"filter {keys.name!r} is still being filled by a copy, or the copy was interrupted; "
            "delete it to start again"
        )
    differences = wanted.differences(stored) if wanted else []
    if differences:
        raise FilterMismatchError(
            f"filter {keys.name!r} exists with other parameters ({'; '.join(differences)})"
        )


def _foreign(keys: FilterKeys) -> FilterMismatchError:
    return FilterMismatchError(
        f"the keys of filter {keys.name!r} ({keys.meta!r}, {keys.bits(0)!r}) hold something that "
        "is no filter; nothing was changed; choose another name or prefix"
    )


def _write(keys: FilterKeys, planned: Descriptor | None) -> Core[Descriptor | None]:
    """Write descriptor and first shard under the WATCH of the held connection.

    Returns what was written; None if nothing was to be written, or somebody else was faster.
    """
    if planned is None:
        yield Request(keys.meta, [encode_command("UNWATCH")])
        return None
    if planned.size.shards > 1:
        planned = replace(planned, state=CREATING)
    commands = [
        _MULTI,
        encode_command("DEL", keys.meta),
        store_command(keys, planned),
        *empty_shard(keys.bits(0), planned),
        _EXEC,
    ]
    replies = yield Request(keys.meta, commands)
    return planned if executed(replies) else None


def store_command(keys: FilterKeys, descriptor: Descriptor) -> bytes:
    """Return the command that stores the descriptor."""
    fields = [part for pair in encode(descriptor).items() for part in pair]
    return encode_command("HSET", keys.meta, *fields)


def empty_shard(key: str, descriptor: Descriptor) -> list[bytes]:
    """Return the commands that replace a shard by an empty one of full length.

    The full length is taken at once, so a server without the memory says so now and not later.
    """
    last_byte = (HEADER_BITS + descriptor.size.shard_bits + 7) // 8 - 1
    return [
        encode_command("UNLINK", key),
        encode_command("SETRANGE", key, last_byte, b"\0"),
        encode_command("SETRANGE", key, 0, descriptor.header.to_bytes(HEADER_BYTES, "big")),
    ]


def executed(replies: Replies) -> bool:
    """Tell whether EXEC, the last of the replies, ran; raise what the server refused."""
    # The reason stands in the reply to the refused command, EXEC only says that it aborted.
    check(replies)
    if isinstance(replies[-1], list):
        check(replies[-1])
    return replies[-1] is not None


def _complete(keys: FilterKeys, descriptor: Descriptor) -> Core[Descriptor]:
    """Bring the further shards to the descriptor's generation, or check that they are there."""
    shards = range(1, descriptor.size.shards)
    if descriptor.state == CREATING:
        for shard in shards:
            yield from _still_creating(keys, descriptor, watch=False)
            yield from _initialise(keys, shard, descriptor)
        yield from mark_ready(keys, descriptor)
        return replace(descriptor, state=READY)
    for shard in shards:
        (start,) = yield from ask(keys.bits(shard), header_command(keys.bits(shard)))
        if header_from_bytes(start) != descriptor.header:
            raise _Changed(broken={descriptor.generation})
    return descriptor


def _still_creating(keys: FilterKeys, descriptor: Descriptor, *, watch: bool) -> Core[None]:
    # A helper that slept must not empty a shard that is in use since.
    found = yield from look(keys, watch=watch)
    current = found.descriptor
    if current is None or (current.generation, current.state) != (
        descriptor.generation,
        descriptor.state,
    ):
        raise _Changed


def mark_ready(keys: FilterKeys, descriptor: Descriptor) -> Core[None]:
    """Open a filter whose shards are all written, unless somebody replaced it meanwhile."""
    yield from _still_creating(keys, descriptor, watch=True)
    ready = encode_command("HSET", keys.meta, "state", READY)
    if not executed((yield Request(keys.meta, [_MULTI, ready, _EXEC]))):
        raise _Changed


def _initialise(keys: FilterKeys, shard: int, descriptor: Descriptor) -> Core[None]:
    """Empty one further shard, unless a helper already did."""
    key = keys.bits(shard)
    watching = [encode_command("WATCH", key), header_command(key)]
    replies = yield from deliver(Request(key, watching, hold=True), repeatable=True)
    if header_from_bytes(check(replies)[1]) == descriptor.header:
        yield Request(key, [encode_command("UNWATCH")])
    elif not executed((yield Request(key, [_MULTI, *empty_shard(key, descriptor), _EXEC]))):
        raise _Changed
