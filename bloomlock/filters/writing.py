"""Writing a filter's keys: descriptor and first shard together, further shards one by one.

Whoever writes a filter of several shards leaves the state "creating" until all are written, and
whoever finds that state helps: each step is done only if nobody did it yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError, ResponseError

from bloomlock.descriptor import (
    CREATING,
    HEADER_BYTES,
    READY,
    Descriptor,
    encode,
)
from bloomlock.effects import EXEC, MULTI, UNWATCH, Core, Replies, Request, check, encode_command
from bloomlock.scripts import Script

from .stored import (
    look,
    look_and_watch,
    look_at_shard,
    look_at_shard_and_watch,
    refuse_wrong_length,
    string_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bloomlock.keys import FilterKeys

    from .stored import Found

WATCHED_TRIES = 100
CHANGED = -2
REFUSED = -1
"""What initialise.lua answers where it leaves a shard alone."""

_SCRIPT = Script("initialise")


class Changed(Exception):  # noqa: N818 - an event for the loop that looks again, not an error
    """Somebody else changed the filter meanwhile, or a generation was found broken."""

    def __init__(self, broken: Iterable[int] = ()) -> None:
        """Keep the generations that have lost a shard."""
        super().__init__()
        self.broken = set(broken)


def write(keys: FilterKeys, planned: Descriptor) -> Core[Descriptor | None]:
    """Write descriptor and first shard under the WATCH of the held connection.

    Returns:
        What was written; None if somebody else was faster and nothing was written.
    """
    if planned.size.shards > 1:
        planned = replace(planned, state=CREATING)
    commands = [
        MULTI,
        encode_command("DEL", keys.meta),
        store_command(keys, planned),
        *_empty_shard(keys.bits(0), planned),
        EXEC,
    ]
    replies = yield Request(keys.meta, commands)
    return planned if executed(replies) else None


def store_command(keys: FilterKeys, descriptor: Descriptor) -> bytes:
    """Return the command that stores the descriptor."""
    fields = [part for pair in encode(descriptor).items() for part in pair]
    return encode_command("HSET", keys.meta, *fields)


def _empty_shard(key: str, descriptor: Descriptor) -> list[bytes]:
    """Return the commands that replace a shard by an empty one of full length.

    The full length is taken at once, so a server without the memory says so now and not later.
    """
    return [
        encode_command("UNLINK", key),
        encode_command("SETRANGE", key, _last_byte(descriptor), b"\0"),
        encode_command("SETRANGE", key, 0, _header(descriptor)),
    ]


def _last_byte(descriptor: Descriptor) -> int:
    return string_bytes(descriptor) - 1


def _header(descriptor: Descriptor) -> bytes:
    return descriptor.header.to_bytes(HEADER_BYTES, "big")


def executed(replies: Replies) -> bool:
    """Tell whether EXEC, the last of the replies, ran; raise what the server refused."""
    # The reason stands in the reply to the refused command, EXEC only says that it aborted.
    check(replies)
    if isinstance(replies[-1], list):
        check(replies[-1])
    return replies[-1] is not None


def complete(keys: FilterKeys, descriptor: Descriptor) -> Core[Descriptor]:
    """Bring the further shards to the descriptor's generation, or check that they are there."""
    shards = range(1, descriptor.size.shards)
    if descriptor.state == CREATING:
        for shard in shards:
            # In this order: the shard is emptied only if it still has the header that it had before
            # the descriptor said so, and headers never return. A helper that sleeps in between
            # empties no shard that is in use since.
            before, _length = yield from look_at_shard(keys, shard)
            _refuse_change((yield from look(keys)), descriptor)
            if before != descriptor.header:
                yield from _initialise(keys, shard, descriptor, before)
        yield from mark_ready(keys, descriptor)
        return replace(descriptor, state=READY)
    for shard in shards:
        header, length = yield from look_at_shard(keys, shard)
        if header != descriptor.header:
            raise Changed(broken={descriptor.generation})
        refuse_wrong_length(keys, shard, length, descriptor)
    return descriptor


def mark_ready(keys: FilterKeys, descriptor: Descriptor) -> Core[None]:
    """Open a filter whose shards are all written.

    Raises:
        Changed: If somebody replaced it meanwhile.
    """
    _refuse_change((yield from look_and_watch(keys)), descriptor)
    ready = encode_command("HSET", keys.meta, "state", READY)
    if not executed((yield Request(keys.meta, [MULTI, ready, EXEC]))):
        raise Changed


def _refuse_change(found: Found, descriptor: Descriptor) -> None:
    current = found.descriptor
    known = (descriptor.generation, descriptor.state)
    if current is None or (current.generation, current.state) != known:
        raise Changed


def _initialise(keys: FilterKeys, shard: int, descriptor: Descriptor, before: int) -> Core[None]:
    """Empty one further shard that has the header `before`, unless a helper already did."""
    arguments: list[str | bytes | int] = [
        _header(descriptor),
        _last_byte(descriptor),
        before.to_bytes(HEADER_BYTES, "big"),
    ]
    (reply,) = yield from _SCRIPT.call([([keys.bits(shard)], arguments)], repeatable=True)
    if isinstance(reply, NoPermissionError):
        yield from _initialise_watched(keys, shard, descriptor, before)
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
    """Do the same where EVAL is forbidden; adds to the old generation may come between."""
    key = keys.bits(shard)
    for _ in range(WATCHED_TRIES):
        header, _length = yield from look_at_shard_and_watch(keys, shard)
        if header == descriptor.header:
            yield Request(key, [UNWATCH])
            return
        if header != before:
            yield Request(key, [UNWATCH])
            raise Changed
        if executed((yield Request(key, [MULTI, *_empty_shard(key, descriptor), EXEC]))):
            return
    raise Changed
