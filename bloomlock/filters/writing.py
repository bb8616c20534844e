"""Writing a filter to the server, shard by shard.

The descriptor and the first shard are written together in one transaction. A client that writes a
filter of several shards leaves the state "creating" until all are written, and a client that finds
that state helps: each step is done only if it was not done yet.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError, ResponseError

from bloomlock.commands import EXEC, MULTI, UNWATCH, Replies, encode_command
from bloomlock.delivery import check, deliver
from bloomlock.descriptor import (
    CREATING,
    HEADER_BYTES,
    PLACING,
    READY,
    Descriptor,
    Replaced,
    says_forgotten,
    unflagged,
    without_slices,
)
from bloomlock.effects import Core, Request
from bloomlock.errors import BloomlockError
from bloomlock.keys import ClaimKeys, forgotten_key, prepared_key, stripe_fence
from bloomlock.parallel import in_parallel
from bloomlock.refusals import is_slot_refusal
from bloomlock.scripts import Script
from bloomlock.slot_moves import through_moves
from bloomlock.stored_descriptor import REPLACES, encode, refuse_unknown_flags
from bloomlock.strategies.base import header_command, header_from_bytes

from .contents import SERVERS_OWN, contents_of
from .stored_filter import (
    Found,
    look,
    look_and_watch,
    look_at_shard,
    look_at_shard_and_watch,
    refuse_wrong_length,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.keys import FilterKeys

WATCHED_TRIES = 100
EMPTIED_BYTES = 16 * 1024 * 1024
"""Shards that are emptied at once: about 5 ms of the server's time."""
CHANGED = -2
REFUSED = -1
"""What initialise.lua answers where it leaves a shard alone."""

_SCRIPT = Script("initialise")


class Changed(Exception):  # noqa: N818 - an event for the loop that looks again, not an error
    """Another client changed the filter meanwhile, or a generation was found broken."""

    def __init__(self, broken: Iterable[int] = ()) -> None:
        super().__init__()
        self.broken = set(broken)


def refuse_change(found: Found, descriptor: Descriptor) -> None:
    """Raise Changed if what was found is not that generation, in that state."""
    current = found.descriptor
    known = (descriptor.generation, descriptor.state)
    if current is None or (current.generation, current.state) != known:
        raise Changed


def executed(replies: Replies) -> bool:
    """Return whether EXEC, the last of the replies, ran; raise what the server refused."""
    # The reason stands in the reply to the refused command, EXEC only says that it aborted.
    check(replies)
    if isinstance(replies[-1], list):
        check(replies[-1])
    return replies[-1] is not None


def write_watched(keys: FilterKeys, decide: Callable[[Found], list[bytes]]) -> Core[None]:
    """Carry out a transaction that follows from what is found; again if that changes meanwhile.

    Args:
        keys: The filter's keys.
        decide: Returns the commands; none: there is nothing to do. What it raises passes through.

    Raises:
        BloomlockError: If another client is faster each time.
        ConnectionLost: If the server cannot be reached; the step may be repeated.
    """
    yield from through_moves(keys.meta, partial(_write_watched, keys, decide))


def _write_watched(keys: FilterKeys, decide: Callable[[Found], list[bytes]]) -> Core[None]:
    # A slot that has moved away and back has touched the key, and changed nothing.
    for _ in range(WATCHED_TRIES):
        found = yield from look_and_watch(keys)
        try:
            commands = decide(found)
        except Exception:
            yield Request(keys.meta, [UNWATCH])
            raise
        if not commands:
            yield Request(keys.meta, [UNWATCH])
            return
        if executed((yield Request(keys.meta, [MULTI, *commands, EXEC]))):
            return
    raise BloomlockError(f"filter {keys.name!r} is changed by others all the time; try again")


def write(keys: FilterKeys, planned: Descriptor, found: Found) -> Core[Descriptor | None]:
    """Write descriptor and first shard under the WATCH of the held connection.

    Args:
        keys: The filter's keys.
        planned: What is written.
        found: What was there when the WATCH began.

    Returns:
        What was written; None if another client was faster and nothing was written.
    """
    if planned.size.shards > 1:
        planned = replace(planned, state=CREATING)
    commands = [
        MULTI,
        encode_command("DEL", keys.meta),
        store_command(keys, planned),
        *_empty_shard(keys.bits(0), planned, found.headers),
        EXEC,
    ]
    replies = yield Request(keys.meta, commands)
    try:
        return planned if executed(replies) else None
    except ResponseError as error:
        if not is_slot_refusal(error):
            yield from _withdraw(keys, planned)
        raise


def _withdraw(keys: FilterKeys, planned: Descriptor) -> Core[None]:
    """Delete what was written of a filter whose contents the server refused."""
    bits = keys.bits(0)
    own = SERVERS_OWN.keys(bits, planned.header)
    unlink = encode_command("UNLINK", keys.meta, bits, forgotten_key(bits), *own)

    def decide(found: Found) -> list[bytes]:
        stored = found.descriptor
        return [unlink] if stored and stored.generation == planned.generation else []

    yield from write_watched(keys, decide)


def store_command(keys: FilterKeys, descriptor: Descriptor) -> bytes:
    """Return the command that stores the descriptor."""
    fields = [part for pair in encode(descriptor).items() for part in pair]
    return encode_command("HSET", keys.meta, *fields)


def _empty_shard(key: str, descriptor: Descriptor, before: Iterable[int]) -> list[bytes]:
    """Return the commands that replace a shard, which had one of some headers, by an empty one."""
    old = {own for header in before for own in SERVERS_OWN.keys(key, header)}
    keys = ClaimKeys.of(key)
    return [
        encode_command("UNLINK", *keys.of_generation, *old),
        # The last fence is that of the next generation too, which does not expire as yet.
        *([encode_command("PERSIST", keys.counts)] if before else ()),
        *contents_of(descriptor).empty_shard(key, descriptor),
    ]


def complete(keys: FilterKeys, descriptor: Descriptor) -> Core[Descriptor]:
    """Bring the further shards to the descriptor's generation, or check that they are there."""
    shards = range(1, descriptor.size.shards)
    found = yield from in_parallel([look_at_shard(keys, shard) for shard in shards])
    if descriptor.state == CREATING:
        # In this order: a shard is emptied only if it still has the header that it had before the
        # descriptor said so, and headers never return. A helper that sleeps in between empties no
        # shard that is in use since.
        refuse_change((yield from look(keys)), descriptor)
        started = [
            _initialise(keys, shard, descriptor, before)
            for shard, (before, _) in zip(shards, found, strict=True)
            if not descriptor.has_header(before)
        ]
        size = contents_of(descriptor).string_bytes(descriptor)
        yield from in_parallel(started, max(1, EMPTIED_BYTES // size))
        yield from mark_ready(keys, descriptor)
        return replace(descriptor, state=READY)
    if descriptor.state == PLACING:
        yield from in_parallel([place_shard(keys, shard, descriptor) for shard in shards])
        if descriptor.replaces is not None:
            yield from _remove_replaced(keys, descriptor, descriptor.replaces)
        yield from mark_ready(keys, descriptor)
        return replace(descriptor, state=READY, replaces=None)
    contents = contents_of(descriptor)
    there = yield from in_parallel(
        [contents.is_there(keys.bits(n), descriptor.header, hold=False) for n in shards]
    )
    for shard, (header, length), is_there in zip(shards, found, there, strict=True):
        refuse_unknown_flags(keys.name, header, descriptor)
        if not descriptor.has_header(header) or not is_there:
            raise Changed(broken={descriptor.generation})
        refuse_wrong_length(keys, shard, (header, length), descriptor)
    return descriptor


def _initialise(keys: FilterKeys, shard: int, descriptor: Descriptor, before: int) -> Core[None]:
    """Empty one further shard that has the header `before`, unless a helper already did."""
    key = keys.bits(shard)
    watched = partial(_initialise_watched, keys, shard, descriptor, before)
    if descriptor.is_native:
        # No update writes to the string, so the WATCH is cut off by helpers alone.
        yield from through_moves(key, watched)
        return
    arguments: list[str | bytes | int] = [
        descriptor.header.to_bytes(HEADER_BYTES, "big"),
        contents_of(descriptor).string_bytes(descriptor) - 1,
        before.to_bytes(HEADER_BYTES, "big"),
    ]
    ours = ClaimKeys.of(key)
    all_keys = [*ours.of_generation, ours.counts]
    (reply,) = yield from _SCRIPT.call([(all_keys, arguments)], repeatable=True)
    if isinstance(reply, NoPermissionError):
        yield from through_moves(key, watched)
    elif reply == CHANGED:
        raise Changed
    elif reply == REFUSED or (isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply)):
        # This look raises the reason, unless another client has changed the shard since.
        yield from look_at_shard(keys, shard)
        raise Changed
    elif isinstance(reply, Exception):
        raise reply


def _initialise_watched(
    keys: FilterKeys, shard: int, descriptor: Descriptor, before: int
) -> Core[None]:
    """Empty a shard where EVAL is forbidden; adds to the old generation may come between."""
    key = keys.bits(shard)
    for _ in range(WATCHED_TRIES):
        header, _length = yield from look_at_shard_and_watch(keys, shard)
        if descriptor.has_header(header):
            yield Request(key, [UNWATCH])
            return
        if header != before:
            yield Request(key, [UNWATCH])
            raise Changed
        commands = [MULTI, *_empty_shard(key, descriptor, {before} - {0}), EXEC]
        if executed((yield Request(key, commands))):
            return
    raise Changed


def mark_ready(keys: FilterKeys, descriptor: Descriptor) -> Core[None]:
    """Open a filter whose shards are all written.

    Raises:
        Changed: If another client replaced it meanwhile.
    """
    ready = encode_command("HSET", keys.meta, "state", READY)
    done = encode_command("HDEL", keys.meta, REPLACES)

    def decide(found: Found) -> list[bytes]:
        refuse_change(found, descriptor)
        return [ready, *([done] if descriptor.replaces else ())]

    yield from write_watched(keys, decide)


def place_commands(key: str, descriptor: Descriptor, header: int) -> list[bytes]:
    """Return the commands that put a prepared shard in its place, for a transaction.

    The prepared key is known to be there, with a header that says whether items were forgotten.
    What belongs to the generation before goes.
    """
    ours = ClaimKeys.of(key)
    _, *claims = ours.of_generation
    prepared = prepared_key(key, descriptor.generation)
    commands = [
        encode_command("UNLINK", *claims),
        encode_command("RENAME", prepared, key),
        encode_command("PERSIST", key),
        encode_command("PERSIST", ours.counts),
    ]
    if says_forgotten(header):
        table = forgotten_key(key)
        commands += [
            encode_command("RENAME", forgotten_key(prepared), table),
            encode_command("PERSIST", table),
        ]
    return commands


def place_shard(keys: FilterKeys, shard: int, descriptor: Descriptor) -> Core[None]:
    """Put a further shard in its place, unless that was done.

    A prepared key is there until it is renamed, and its header is that of its generation alone. So
    a helper that sleeps in between changes nothing of a later generation.

    Raises:
        Changed: If it is neither prepared nor in its place.
    """
    key = keys.bits(shard)
    yield from through_moves(key, partial(_place_shard, key, descriptor))


def _place_shard(key: str, descriptor: Descriptor) -> Core[None]:
    prepared = prepared_key(key, descriptor.generation)
    commands = [
        encode_command("WATCH", prepared),
        header_command(prepared),
        header_command(key),
    ]
    for _ in range(WATCHED_TRIES):
        request = Request(key, commands, hold=True)
        _, *starts = check((yield from deliver(request, repeatable=True)))
        waiting, there = map(header_from_bytes, starts)
        is_there = descriptor.has_header(unflagged(there))
        if is_there or not descriptor.has_header(unflagged(waiting)):
            yield Request(key, [UNWATCH])
            if is_there:
                return
            raise Changed(broken={descriptor.generation})
        placing = [MULTI, *place_commands(key, descriptor, waiting), EXEC]
        if executed((yield Request(key, placing))):
            return
    raise Changed


def _remove_replaced(keys: FilterKeys, descriptor: Descriptor, old: Replaced) -> Core[None]:
    """Delete the shards that the filter that was there has more than this one."""
    gone = [keys.bits(shard) for shard in range(descriptor.size.shards, old.shards)]
    steps = [partial(_remove_shard, key, old.header) for key in gone]
    yield from in_parallel([through_moves(*one) for one in zip(gone, steps, strict=True)])


def _remove_shard(key: str, header: int) -> Core[None]:
    """Delete a shard if it still has that header."""
    while True:
        commands = [encode_command("WATCH", key), header_command(key)]
        request = Request(key, commands, hold=True)
        _, start = check((yield from deliver(request, repeatable=True)))
        if without_slices(unflagged(header_from_bytes(start))) != header:
            yield Request(key, [UNWATCH])
            return
        own = SERVERS_OWN.keys(key, header)
        gone = encode_command("UNLINK", *ClaimKeys.of(key), stripe_fence(key), *own)
        if executed((yield Request(key, [MULTI, gone, EXEC]))):
            return


def unlink_with_contents(keys: FilterKeys, shard: int, gone: Sequence[str]) -> Core[None]:
    """Unlink keys of a shard, and the server's filter that its header names.

    Raises:
        ConnectionLost: If the server cannot be reached; the step may be repeated.
    """
    key = keys.bits(shard)
    while True:
        header, _length = yield from look_at_shard_and_watch(keys, shard)
        own = SERVERS_OWN.keys(key, header)
        if executed((yield Request(key, [MULTI, encode_command("UNLINK", *gone, *own), EXEC]))):
            return
