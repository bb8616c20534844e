"""The steps of a switch (switch.py): the descriptor, changed by compare-and-set, and single shards.

Where EVAL is forbidden a transaction under WATCH does what each script does.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError, ResponseError

from bloomlock.commands import Script, call, check, encode_command, in_parallel, send_with_retry
from bloomlock.descriptor import (
    CLEAR,
    CREATE,
    HEADER_BYTES,
    Descriptor,
    Replaced,
    generation_of,
    has_discards,
    header_from_bytes,
    plain_header,
    unflagged,
)
from bloomlock.effects import ConnectionLost, Core, Replies, Request, Transaction
from bloomlock.errors import BloomlockError
from bloomlock.keys import (
    PREPARED_SECONDS,
    ClaimKeys,
    discards_key,
    native_key,
    prepared_key,
    stripe_fence,
)
from bloomlock.refusals import is_missing
from bloomlock.spec import FIELDS, encode, refuse_unknown_flags
from bloomlock.strategies.base import header_command

from .generation import kind_of, set_header
from .stored_filter import look_at_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import FilterKeys

PLACED_SECONDS = 7 * 24 * 3600
"""How long a shard that is prepared waits for a client to place it."""
PREPARED_BYTES = 16 * 1024 * 1024
"""Shards that are made, or placed, at once: it takes about 5 ms of the server's time."""
WATCHED_TRIES = 100
T = TypeVar("T")

_PLACE, DROP = Script("header", "place"), Script("header", "drop")


class Changed(Exception):  # noqa: N818 - an event for the loop that looks again, not an error
    """Another client has changed the filter since it was looked at."""


def compare_and_set(
    keys: FilterKeys, expected: Descriptor | None, commands: Sequence[bytes]
) -> Core[bool]:
    # Only the descriptor is watched. Adds to the first shard, of which there may be thousands a
    # second, must not keep a client from clearing. If the transaction is late, its WATCH is broken.
    known = [b"%d" % expected.generation, expected.state.encode()] if expected else [None, None]

    def decide(replies: Replies) -> tuple[bool, Sequence[bytes]]:
        _, values, is_there = check(replies)
        is_same = values == known and bool(is_there) is (expected is not None)
        return is_same, commands if is_same else ()

    looks = [
        encode_command("WATCH", keys.meta),
        encode_command("HMGET", keys.meta, "generation", "state"),
        encode_command("EXISTS", keys.meta),
    ]
    return (yield from _transact(keys.meta, looks, decide))


def _transact(
    key: str,
    looks: Sequence[bytes],
    decide: Callable[[Replies], tuple[T, Sequence[bytes]]],
) -> Core[T]:
    # A slot that has moved away and back has touched the key, and changed nothing.
    for _ in range(WATCHED_TRIES):
        step = Transaction(key, looks, decide)
        result, replies = yield from send_with_retry(step, repeatable=False)
        if replies is None or _executed(replies):
            answer: T = result
            return answer
    raise Changed


def _executed(replies: Replies) -> bool:
    """Return whether EXEC, the last of the replies, ran; raise what the server refused."""
    # The reason stands in the reply to the refused command, EXEC only says that it aborted.
    check(replies)
    if isinstance(replies[-1], list):
        check(replies[-1])
    return replies[-1] is not None


def store_commands(keys: FilterKeys, descriptor: Descriptor) -> list[bytes]:
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


def prepare(keys: FilterKeys, planned: Descriptor, size: int = 0) -> Core[None]:
    """Prepare all shards of a generation: zeros of a size, or, of an empty one, the header alone.

    S1: what gives a shard its header is sent once, and last. If the first request were late, a
    second one would prepare the shard once more while the generation is in use. So the generation
    is given up where a reply was lost, unless the request has arrived. If the server loses the key
    after that, later writes make one without a header.
    """
    kind, header = kind_of(planned), bytes_of(planned.header)
    seconds = PREPARED_SECONDS if size else PLACED_SECONDS

    def prepare_shard(shard: int) -> Core[None]:
        key = keys.bits(shard)
        prepared = prepared_key(key, planned.generation)
        expiry = encode_command("EXPIRE", prepared, seconds)
        if size:
            yield from call(prepared, encode_command("SETRANGE", prepared, size - 1, b"\0"), expiry)
        commands = [
            header_command(key),
            *kind.reserve(key, planned, seconds),
            set_header(prepared, planned.header),
            expiry,
        ]
        try:
            replies = yield from send_with_retry(Request(key, commands), repeatable=False)
        except ConnectionLost as lost:
            (there,) = yield from call(prepared, header_command(prepared))
            if not lost.sent or there != header:
                raise
            return
        if isinstance(replies[0], ResponseError):
            # This look raises the reason, if it is that something else is there.
            yield from look_at_shard(keys, shard)
        refuse_unknown_flags(keys.name, header_from_bytes(check(replies)[0]))

    most = max(1, PREPARED_BYTES // size) if size else None
    try:
        yield from in_parallel([prepare_shard(n) for n in range(planned.size.shards)], most)
    except (RedisError, BloomlockError, ConnectionLost):
        with suppress(RedisError):
            yield from discard_prepared(keys, planned)
        raise


def discard_prepared(keys: FilterKeys, planned: Descriptor) -> Core[None]:

    def discard(shard: int) -> Core[None]:
        key = keys.bits(shard)
        prepared = prepared_key(key, planned.generation)
        own = kind_of(planned).keys(key, planned.header)
        # A cluster that moves the slot refuses a command of several keys.
        names = (prepared, discards_key(prepared), *own)
        yield from call(key, *(encode_command("UNLINK", name) for name in names))

    yield from in_parallel([discard(shard) for shard in range(planned.size.shards)])


def place(keys: FilterKeys, shard: int, placing: Descriptor) -> Core[bool]:
    """S3: put a prepared shard in its place; False: it is neither there nor prepared."""
    key = keys.bits(shard)
    prepared, ours = prepared_key(key, placing.generation), ClaimKeys.of(key)
    stays = [ours.fence, *kind_of(placing).keys(key, placing.header)]
    goes = [*ours.of_generation]
    if placing.replaces is not None:
        goes.append(native_key(key, generation_of(placing.replaces.header)))
    names = [key, discards_key(key), prepared, discards_key(prepared), *stays, *goes]
    size, is_full = placing.string_bytes(), is_filled(placing)
    arguments = (bytes_of(placing.header), size, int(is_full), len(stays))
    (reply,) = yield from _PLACE.call([(names, arguments)], repeatable=True)
    if isinstance(reply, Exception) and is_missing(reply):
        return (yield from _place_watched(placing, names, len(stays)))
    if isinstance(reply, ResponseError):
        # This look raises the reason, if it is that something else is there.
        yield from look_at_shard(keys, shard)
    if isinstance(reply, Exception):
        raise reply
    return bool(reply)


def _place_watched(placing: Descriptor, names: Sequence[str], stays: int) -> Core[bool]:
    # Only prepared keys are watched, which nobody adds to. Each exists once, so EXEC does nothing
    # for a helper that has slept.
    (key, table, prepared, prepared_table), size = names[:4], placing.string_bytes()
    looks = [
        encode_command("WATCH", prepared, prepared_table),
        header_command(key),
        header_command(prepared),
        encode_command("STRLEN", prepared),
        encode_command("EXISTS", prepared_table),
    ]

    def decide(replies: Replies) -> tuple[bool, Sequence[bytes]]:
        _, there, start, length, has_set = check(replies)
        header = header_from_bytes(start)
        is_in_place = placing.has_header(plain_header(there))
        is_short, is_flagged = length < size, has_discards(header)
        is_lost = (is_short and is_filled(placing)) or (is_flagged and not has_set)
        if is_in_place or is_lost or not placing.has_header(unflagged(header)):
            return is_in_place, ()
        commands = [encode_command("UNLINK", *names[4 + stays :])]
        if is_short:
            empty = encode_command("SETRANGE", key, size - 1, b"\0")
            unlink = encode_command("UNLINK", prepared)
            commands += [empty, set_header(key, placing.header), unlink]
        else:
            commands.append(encode_command("RENAME", prepared, key))
        if is_flagged:
            commands.append(encode_command("RENAME", prepared_table, table))
        lasting = [key, table, *names[4 : 4 + stays]]
        return True, commands + [encode_command("PERSIST", name) for name in lasting]

    return (yield from _transact(key, looks, decide))


def keys_of_shard(keys: FilterKeys, shard: int, old: Replaced) -> list[str]:
    """Return all keys that a shard of a generation may have; the prepared one is the second."""
    key, generation = keys.bits(shard), generation_of(old.header)
    prepared = prepared_key(key, generation)
    others = [one for one in ClaimKeys.of(key) if one != key]
    own = native_key(key, generation)
    return [key, prepared, *others, discards_key(prepared), stripe_fence(key), own]


def drop(keys: FilterKeys, shard: int, old: Replaced) -> Core[None]:
    """Delete a shard if it is of a generation, or of none. Adds to it may come between."""
    key, names = keys.bits(shard), keys_of_shard(keys, shard, old)
    (reply,) = yield from DROP.call([(names, (bytes_of(old.header),))], repeatable=True)
    if isinstance(reply, Exception) and is_missing(reply):
        yield from _drop_watched(key, old, names)
    elif isinstance(reply, Exception):
        raise reply


def _drop_watched(key: str, old: Replaced, names: Sequence[str]) -> Core[None]:

    def decide(replies: Replies) -> tuple[None, Sequence[bytes]]:
        is_string = not isinstance(replies[1], ResponseError)
        header = plain_header(check(replies)[1]) if is_string else 0
        gone = names if header in (old.header, 0) else names[1:2]
        return None, [encode_command("UNLINK", *gone)]

    yield from _transact(key, [encode_command("WATCH", key), header_command(key)], decide)


def bytes_of(header: int) -> bytes:
    return header.to_bytes(HEADER_BYTES, "big")
