"""The steps of a switch (switch.py): the descriptor, changed by compare-and-set, and single shards.

Where EVAL is forbidden a transaction does what each script does.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

from bloomlock.commands import EXEC, MULTI, UNWATCH, Replies, encode_command
from bloomlock.delivery import ask, check, deliver
from bloomlock.descriptor import (
    CLEAR,
    CREATE,
    HEADER_BYTES,
    Descriptor,
    Replaced,
    generation_of,
    has_discards,
    unflagged,
)
from bloomlock.effects import ConnectionLost, Core, Request
from bloomlock.errors import BloomlockError
from bloomlock.keys import (
    ClaimKeys,
    discards_key,
    native_key,
    prepared_key,
    stripe_fence,
)
from bloomlock.parallel import in_parallel
from bloomlock.refusals import is_missing
from bloomlock.scripts import Script
from bloomlock.slot_moves import through_moves
from bloomlock.spec import FIELDS, encode, refuse_unknown_flags
from bloomlock.strategies.base import header_command, header_from_bytes, plain_header

from .kinds import kind_of, set_header
from .stored_filter import look_at_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.keys import FilterKeys

PLACED_SECONDS = 7 * 24 * 3600
"""How long a shard that is prepared waits for a client to place it."""
WATCHED_TRIES = 100
NO_HEADER = bytes(HEADER_BYTES)
IN_PLACE, PLACED, MISSING = 0, 1, -1

_PLACE = Script("header", "place")
_DROP = Script("header", "drop")


class NotPreparedError(Exception):
    """A shard that was prepared is gone."""


class Changed(Exception):  # noqa: N818 - an event for the loop that looks again, not an error
    """Another client has changed the filter since it was looked at."""


def compare_and_set(
    keys: FilterKeys,
    expected: Descriptor | None,
    commands: Sequence[bytes],
    *,
    filled: Descriptor | None = None,
) -> Core[bool]:
    """Carry out commands if the descriptor is of a generation and a state; return whether it was.

    Of a filter in use only the descriptor is watched. Adds to the first shard, of which there may
    be thousands a second, must not keep a client from clearing.

    Args:
        keys: The filter's keys.
        expected: What the descriptor must say; None: there is none.
        commands: A transaction. It is sent once; if it is late, its WATCH is broken.
        filled: A generation whose first shard must be prepared; None: of none.

    Raises:
        NotPreparedError: If it is not.
    """
    watched, looks = [keys.meta], []
    if filled is not None:
        prepared = prepared_key(keys.bits(0), filled.generation)
        watched += [prepared, discards_key(prepared)]
        looks = [header_command(prepared), encode_command("EXISTS", watched[-1])]

    def step() -> Core[bool]:
        request = [
            encode_command("WATCH", *watched),
            encode_command("HMGET", keys.meta, "generation", "state"),
            encode_command("EXISTS", keys.meta),
            *looks,
        ]
        known = [b"%d" % expected.generation, expected.state.encode()] if expected else [None, None]
        # A slot that has moved away and back has touched the key, and changed nothing.
        for _ in range(WATCHED_TRIES):
            replies = yield from deliver(Request(keys.meta, request, hold=True), repeatable=True)
            _, values, is_there, *start = check(replies)
            is_same = values == known and bool(is_there) is (expected is not None)
            is_prepared = True
            if filled is not None:
                header = header_from_bytes(start[0])
                is_prepared = filled.has_header(unflagged(header))
                is_prepared = is_prepared and bool(start[1]) is filled.discards
            if not is_same or not is_prepared:
                yield Request(keys.meta, [UNWATCH])
                if is_same:
                    raise NotPreparedError
                return False
            if executed((yield Request(keys.meta, [MULTI, *commands, EXEC]))):
                return True
        raise Changed

    return (yield from through_moves(keys.meta, step))


def executed(replies: Replies) -> bool:
    """Return whether EXEC, the last of the replies, ran; raise what the server refused."""
    # The reason stands in the reply to the refused command, EXEC only says that it aborted.
    check(replies)
    if isinstance(replies[-1], list):
        check(replies[-1])
    return replies[-1] is not None


def store_commands(keys: FilterKeys, descriptor: Descriptor) -> list[bytes]:
    """Return the commands that write the descriptor."""
    fields = encode(descriptor)
    absent = [field for field in FIELDS if field not in fields]
    written = [part for pair in fields.items() for part in pair]
    return [
        encode_command("HSET", keys.meta, *written),
        encode_command("HDEL", keys.meta, *absent),
    ]


def is_filled(descriptor: Descriptor) -> bool:
    """Return whether the shards of a generation are prepared with bits; else they are empty."""
    return descriptor.origin not in (CREATE, CLEAR)


def prepare(keys: FilterKeys, planned: Descriptor) -> Core[None]:
    """Prepare the shards of an empty generation, but for what the switch itself can write."""
    kind = kind_of(planned)

    def prepare(shard: int) -> Core[None]:
        key = keys.bits(shard)
        prepared = prepared_key(key, planned.generation)
        header = bytes_of(planned.header)
        commands = [
            header_command(key),
            *kind.reserve(key, planned, PLACED_SECONDS),
            encode_command("SET", prepared, header, "EX", PLACED_SECONDS),
        ]
        try:
            (start, *_) = check((yield from deliver(Request(key, commands), repeatable=False)))
        except ConnectionLost as lost:
            # If the first request is late, a second one would prepare the shard once more while the
            # generation is in use. So the generation is given up, unless the first one has arrived.
            (there,) = yield from ask(prepared, header_command(prepared))
            if not lost.sent or there != header:
                raise
        else:
            refuse_unknown_flags(keys.name, header_from_bytes(start))

    first = 0 if kind.keys(keys.bits(0), planned.header) else 1
    try:
        yield from in_parallel([prepare(shard) for shard in range(first, planned.size.shards)])
    except (RedisError, BloomlockError, ConnectionLost):
        with suppress(RedisError):
            yield from discard_prepared(keys, planned)
        raise


def discard_prepared(keys: FilterKeys, planned: Descriptor) -> Core[None]:
    """Delete what is prepared of a generation."""

    def discard(shard: int) -> Core[None]:
        key = keys.bits(shard)
        prepared = prepared_key(key, planned.generation)
        own = kind_of(planned).keys(key, planned.header)
        # A cluster that moves the slot refuses a command of several keys.
        names = (prepared, discards_key(prepared), *own)
        yield from ask(key, *(encode_command("UNLINK", name) for name in names))

    yield from in_parallel([discard(shard) for shard in range(planned.size.shards)])


def place(keys: FilterKeys, shard: int, placing: Descriptor) -> Core[int]:
    """Put a prepared shard in its place: IN_PLACE, PLACED or MISSING."""
    key = keys.bits(shard)
    stays, goes = _around(key, placing)
    prepared = prepared_key(key, placing.generation)
    names = [key, discards_key(key), prepared, discards_key(prepared), *stays, *goes]
    size = placing.string_bytes()
    arguments = (bytes_of(placing.header), size, int(is_filled(placing)), len(stays))
    (reply,) = yield from _PLACE.call([(names, arguments)], repeatable=True)
    if isinstance(reply, Exception) and is_missing(reply):
        watched = partial(_place_watched, key, placing)
        return (yield from through_moves(key, watched))
    if isinstance(reply, ResponseError):
        # This look raises the reason, if it is that something else is there.
        yield from look_at_shard(keys, shard)
    if isinstance(reply, Exception):
        raise reply
    return int(reply)


def _place_watched(key: str, placing: Descriptor) -> Core[int]:
    """Do the same where EVAL is forbidden. Only prepared keys are watched, which nobody adds to."""
    prepared = prepared_key(key, placing.generation)
    looks = [
        encode_command("WATCH", prepared, discards_key(prepared)),
        header_command(key),
        header_command(prepared),
        encode_command("STRLEN", prepared),
        encode_command("EXISTS", discards_key(prepared)),
    ]
    for _ in range(WATCHED_TRIES):
        replies = yield from deliver(Request(key, looks, hold=True), repeatable=True)
        _, there, start, length, has_set = check(replies)
        header = header_from_bytes(start)
        is_short = length < placing.string_bytes()
        result = PLACED
        if placing.has_header(plain_header(there)):
            result = IN_PLACE
        elif (
            not placing.has_header(unflagged(header))
            or (is_short and is_filled(placing))
            or (has_discards(header) and not has_set)
        ):
            result = MISSING
        if result != PLACED:
            yield Request(key, [UNWATCH])
            return result
        flagged = replace(placing, discards=has_discards(header))
        if executed((yield Request(key, [MULTI, *place_commands(key, flagged), EXEC]))):
            return PLACED
    raise Changed


def place_commands(key: str, placing: Descriptor) -> list[bytes]:
    """Return the commands that put a shard in its place, for a transaction.

    If the generation is filled, the prepared shard is known to be there, with discards beside it if
    the descriptor says so.
    """
    stays, goes = _around(key, placing)
    prepared = prepared_key(key, placing.generation)
    size = placing.string_bytes()
    commands = [
        encode_command("UNLINK", key, discards_key(key), *goes),
        encode_command("PERSIST", stays[0]),
        *(encode_command("PERSIST", own) for own in stays[1:]),
    ]
    if is_filled(placing):
        commands += [encode_command("RENAME", prepared, key), encode_command("PERSIST", key)]
    else:
        # The full length is taken at once, so a server without the room says so now.
        empty = encode_command("SETRANGE", key, size - 1, b"\0")
        commands += [encode_command("UNLINK", prepared), empty, set_header(key, placing.header)]
    if placing.discards:
        discards = discards_key(key)
        commands.append(encode_command("RENAME", discards_key(prepared), discards))
        commands.append(encode_command("PERSIST", discards))
    return commands


def _around(key: str, placing: Descriptor) -> tuple[list[str], list[str]]:
    """Return the keys beside a shard that stay, or are of its generation, and those that go."""
    ours = ClaimKeys.of(key)
    stays = [ours.counts, *kind_of(placing).keys(key, placing.header)]
    goes = [one for one in ours.of_generation if one not in (key, discards_key(key))]
    if placing.replaces is not None:
        goes.append(native_key(key, generation_of(placing.replaces.header)))
    return stays, goes


def keys_of_shard(keys: FilterKeys, shard: int, old: Replaced) -> list[str]:
    """Return all keys that a shard of a generation may have; the prepared one is the second."""
    key, generation = keys.bits(shard), generation_of(old.header)
    prepared = prepared_key(key, generation)
    others = [one for one in ClaimKeys.of(key) if one != key]
    own = native_key(key, generation)
    more = [discards_key(prepared), stripe_fence(key), own]
    return [key, prepared, *others, *more]


def drop(keys: FilterKeys, shard: int, old: Sequence[Replaced]) -> Core[None]:
    """Delete a shard if it is of one of some generations, or of none."""
    key = keys.bits(shard)
    for one in old:
        names = keys_of_shard(keys, shard, one)
        (reply,) = yield from _DROP.call(
            [(names, (bytes_of(one.header), NO_HEADER))], repeatable=True
        )
        if isinstance(reply, Exception) and is_missing(reply):
            yield from through_moves(key, partial(_drop_watched, key, one, names))
        elif isinstance(reply, Exception):
            raise reply


def _drop_watched(key: str, old: Replaced, names: Sequence[str]) -> Core[None]:
    """Do the same where EVAL is forbidden; adds to the shard may come between."""
    for _ in range(WATCHED_TRIES):
        looks = [encode_command("WATCH", key), header_command(key)]
        replies = yield from deliver(Request(key, looks, hold=True), repeatable=True)
        is_string = not isinstance(replies[1], ResponseError)
        header = plain_header(check(replies)[1]) if is_string else 0
        gone = names if header in (old.header, 0) else names[1:2]
        if executed((yield Request(key, [MULTI, encode_command("UNLINK", *gone), EXEC]))):
            return
    raise Changed


def bytes_of(header: int) -> bytes:
    """Return a header as it stands in a shard."""
    return header.to_bytes(HEADER_BYTES, "big")
