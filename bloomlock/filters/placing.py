"""The steps of a switch (switch.py): the descriptor, changed by compare-and-set, and single shards.

Where EVAL is forbidden a transaction under WATCH does what each script does.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from bloomlock.commands import Script, call, check, encode_command, in_parallel, send_with_retry
from bloomlock.descriptor import (
    DISCARDED,
    Descriptor,
    Replaced,
    generation_of,
    has_discards,
    header_bytes,
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
from bloomlock.sizing import shard_capacity
from bloomlock.spec import FIELDS, encode
from bloomlock.strategies.base import header_command

from .generation import set_header
from .stored_filter import look_at_shard
from .tombstones import add_sentinel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import FilterKeys

PLACED_SECONDS = 7 * 24 * 3600
"""How long a shard that is prepared waits for a client to place it."""
PREPARED_BYTES = 16 * 1024 * 1024
"""Shards that are made, or placed, at once: it takes about 5 ms of the server's time."""
EXPANSION = 2
"""Each part that the server adds to its own filter holds twice the items of the part before."""
LASTING = 6
"""Keys of place.lua before those that go with the generation that was there."""
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
        is_same = check(replies)[1] == known
        return is_same, commands if is_same else ()

    read = encode_command("HMGET", keys.meta, "generation", "state")
    looks = [encode_command("WATCH", keys.meta), read]
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
        # The reason stands in the reply to a refused command, EXEC only says that it aborted.
        done = [] if replies is None else check(replies)[-1]
        if done is not None:
            check(done)
            answer: T = result
            return answer
    raise Changed


def store_commands(keys: FilterKeys, descriptor: Descriptor) -> list[bytes]:
    fields = encode(descriptor)
    absent = [field for field in FIELDS if field not in fields]
    written = [part for pair in fields.items() for part in pair]
    return [
        encode_command("HSET", keys.meta, *written),
        encode_command("HDEL", keys.meta, *absent),
    ]


def or_give_up(work: Core[T], give_up: Callable[[], Core[object]]) -> Core[T]:
    """Do the work; if it does not succeed, take back what it has begun."""
    try:
        return (yield from work)
    except GeneratorExit:
        raise
    except BaseException:
        # What remains of a prepared generation expires by itself.
        with suppress(RedisError, BloomlockError, OSError):
            yield from give_up()
        raise


def prepare(keys: FilterKeys, planned: Descriptor, size: int = 0) -> Core[None]:
    """Prepare all shards of a generation: zeros of a size, or, of an empty one, the header alone.

    S1: what gives a shard its header is sent once, and last. If the first request were late, a
    second one would prepare the shard once more while the generation is in use. So the generation
    is given up where a reply was lost, unless the request has arrived. If the server loses the key
    after that, later writes make one without a header. The header of `planned.discards` has the
    flag, and the set its sentinel before.
    """
    header = planned.header | DISCARDED if planned.discards else planned.header
    seconds = PREPARED_SECONDS if size else PLACED_SECONDS

    def prepare_shard(shard: int) -> Core[None]:
        key = keys.bits(shard)
        prepared = prepared_key(key, planned.generation)
        first, commands = [], [set_header(prepared, header)]
        if size:
            first.append(encode_command("SETRANGE", prepared, size - 1, b"\0"))
        if planned.discards:
            first.append(add_sentinel(prepared, planned))
        if first:
            yield from call(prepared, *first, *expire_commands(prepared, seconds))
        if planned.native:
            own = native_key(key, planned.generation)
            items = shard_capacity(planned.capacity, planned.size.shards)
            reserve = (repr(planned.error_rate), items, "EXPANSION", EXPANSION)
            commands.insert(0, encode_command("BF.RESERVE", own, *reserve))
            commands.append(encode_command("EXPIRE", own, seconds))
        commands.append(encode_command("EXPIRE", prepared, seconds))
        try:
            check((yield from send_with_retry(Request(key, commands), repeatable=False)))
        except ConnectionLost as lost:
            (there,) = yield from call(prepared, header_command(prepared))
            if not lost.sent or header_from_bytes(there) != header:
                raise

    steps: list[Core[Any]] = []
    for shard in range(planned.size.shards):
        # The look refuses what is no filter, before anything is replaced.
        steps += look_at_shard(keys, shard), prepare_shard(shard)
    making = in_parallel(steps, 2 * max(1, PREPARED_BYTES // size) if size else None)
    yield from or_give_up(making, lambda: discard_prepared(keys, planned))


def expire_commands(prepared: str, seconds: int) -> list[bytes]:
    """Return the commands that let a prepared shard and its tombstones expire later."""
    return [encode_command("EXPIRE", key, seconds) for key in (prepared, discards_key(prepared))]


def discard_prepared(keys: FilterKeys, planned: Descriptor) -> Core[None]:

    def discard(shard: int) -> Core[None]:
        key = keys.bits(shard)
        prepared = prepared_key(key, planned.generation)
        names = prepared, discards_key(prepared), native_key(key, planned.generation)
        # A cluster that moves the slot refuses a command of several keys.
        yield from call(key, *(encode_command("UNLINK", name) for name in names))

    yield from in_parallel([discard(shard) for shard in range(planned.size.shards)])


def place(keys: FilterKeys, shard: int, placing: Descriptor) -> Core[bool]:
    """S3: put a prepared shard in its place; False: it is neither there nor prepared."""
    key = keys.bits(shard)
    prepared, ours = prepared_key(key, placing.generation), ClaimKeys.of(key)
    lasting = [ours.fence, native_key(key, placing.generation)]
    # The last fence of claims outlives the generation.
    goes = [key for key in ours if key != ours.fence]
    if placing.replaces is not None:
        goes.append(native_key(key, generation_of(placing.replaces.header)))
    names = [key, discards_key(key), prepared, discards_key(prepared), *lasting, *goes]
    arguments = (header_bytes(placing.header), placing.string_bytes())
    (reply,) = yield from _PLACE.call([(names, arguments)], repeatable=True)
    if isinstance(reply, Exception) and is_missing(reply):
        return (yield from _place_watched(placing, names))
    if isinstance(reply, Exception):
        raise reply
    return bool(reply)


def _place_watched(placing: Descriptor, names: Sequence[str]) -> Core[bool]:
    # Only prepared keys are watched, which nobody adds to. Each exists once, so EXEC does nothing
    # for a helper that has slept.
    key, table, prepared, prepared_table, *lasting = names[:LASTING]
    size = placing.string_bytes()
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
        is_lost = has_discards(header) and not has_set
        if is_in_place or is_lost or not placing.has_header(unflagged(header)):
            return is_in_place, ()
        commands = [encode_command("UNLINK", *names[LASTING:])]
        if length < size:
            empty = encode_command("SETRANGE", key, size - 1, b"\0")
            unlink = encode_command("UNLINK", prepared)
            commands += [empty, set_header(key, placing.header), unlink]
        else:
            commands.append(encode_command("RENAME", prepared, key))
        if has_discards(header):
            commands.append(encode_command("RENAME", prepared_table, table))
        stays = [key, table, *lasting]
        return True, commands + [encode_command("PERSIST", name) for name in stays]

    return (yield from _transact(key, looks, decide))


def keys_of_shard(keys: FilterKeys, shard: int, old: Replaced) -> list[str]:
    """Return all keys that a shard of a generation may have; the prepared one is the second."""
    key, generation = keys.bits(shard), generation_of(old.header)
    prepared = prepared_key(key, generation)
    beside = discards_key(prepared), stripe_fence(key), native_key(key, generation)
    return [key, prepared, *beside, *ClaimKeys.of(key)]


def drop(keys: FilterKeys, shard: int, old: Replaced) -> Core[None]:
    """Delete a shard if it is of a generation, or of none. Adds to it may come between."""
    key, names = keys.bits(shard), keys_of_shard(keys, shard, old)
    (reply,) = yield from DROP.call([(names, (header_bytes(old.header),))], repeatable=True)
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
