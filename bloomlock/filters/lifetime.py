"""Another name for a filter, and when it expires.

One script renames all keys: a client finds the filter under the one name or under the other. In a
cluster they lie in several slots, which no script reaches.

All keys of a filter expire by the server's own time-outs. The descriptor and the first shard lie in
one slot and go at the same instant. Further shards go some seconds later: they may lie on servers
with other clocks, and while the first is there all of them have to be. So a client finds either a
whole filter or none, and one that creates it again wipes what is left of the old shards.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bloomlock.commands import Script, answer_of, call, encode_command, in_parallel
from bloomlock.descriptor import generation_of, header_bytes, plain_header
from bloomlock.errors import ConfigurationError
from bloomlock.keys import ClaimKeys, native_key, prepared_key
from bloomlock.strategies.base import header_command

from .generation import new_generation
from .placing import DROP
from .state import in_one_generation
from .stored_filter import look
from .switch import retried, settle

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys
    from bloomlock.strategies import Shard

    from .generation import View
    from .state import FilterState

LATER_MS = 10_000
"""How much later further shards expire than the first."""
NEVER_MS = 0
LEAST_SECONDS, MOST_SECONDS = 0.001, 10**9

_EXPIRE, _RENAME = Script("header", "expire"), Script("header", "rename")
_ACROSS_SLOTS = re.compile("crossslot|same slot", re.IGNORECASE)


def rename(state: FilterState, new: FilterKeys) -> Core[None]:
    if state.keys.name == new.name:
        raise ConfigurationError(f"the new name must not be {new.name!r}, the one that it has")

    def work(view: View) -> Core[bool | None]:
        return retried(state.keys, partial(_rename, state.keys, new, view))

    try:
        yield from in_one_generation(state, work)
    finally:
        state.drop_cached()


def _rename(old: FilterKeys, new: FilterKeys, view: View) -> Core[bool | None]:
    """Give the filter of a generation another name; None: it is of another generation."""
    found = yield from settle(old, (yield from look(old)))
    # Keys that are no filter's are refused here, and what is one by the script.
    yield from look(new)
    before = found.descriptor
    if before is None or found.gone is not None or before.header != view.header:
        return None
    answer = yield from _rename_keys(old, new, before)
    if answer == b"taken":
        raise ConfigurationError(f"name {new.name!r} is taken by another filter")
    return True if answer == b"done" else None


def _rename_keys(old: FilterKeys, new: FilterKeys, before: Descriptor) -> Core[bytes]:
    after = before.with_generation(new_generation())
    keys = [old.meta, new.meta]
    for shard in range(before.size.shards):
        pairs = zip(_keys_of(old, shard, before), _keys_of(new, shard, after), strict=True)
        keys += [key for pair in pairs for key in pair]
    of_shard = (len(keys) - 2) // before.size.shards
    headers = header_bytes(before.header), header_bytes(after.header)
    call = keys, (*headers, after.generation, of_shard)
    (reply,) = yield from _RENAME.call([call], repeatable=True)
    if isinstance(reply, ResponseError) and _ACROSS_SLOTS.search(str(reply)):
        raise ConfigurationError(
            f"filter {old.name!r} cannot be renamed in a cluster, where its keys lie in several "
            "slots; copy it by copy_to, then delete it"
        )
    answer: bytes = answer_of(reply, "rename needs")
    return answer


def _keys_of(keys: FilterKeys, shard: int, descriptor: Descriptor) -> list[str]:
    ours = ClaimKeys.of(keys.bits(shard))
    rest = [key for key in ours if key not in (ours.bits, ours.discarded)]
    return [ours.bits, ours.discarded, *rest, native_key(ours.bits, descriptor.generation)]


def check_ttl(parameter: str, value: object) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, (int, float))
        or not LEAST_SECONDS <= seconds <= MOST_SECONDS
    ):
        raise ConfigurationError(
            f"{parameter} must be seconds from {LEAST_SECONDS} to {MOST_SECONDS}, or a timedelta "
            f"of as many, not {value!r:.80}"
        )
    return math.ceil(seconds * 1000)


def expire(state: FilterState, ttl_ms: int) -> Core[None]:
    def work(view: View) -> Core[bool | None]:
        left_ms = yield from _time_left(state, view)
        if left_ms is None:
            return None
        first, *rest = view.shards
        later_ms = ttl_ms + LATER_MS if ttl_ms else NEVER_MS
        steps = [
            [_set_shard(view, first, [state.keys.meta], ttl_ms)],
            [_set_shard(view, shard, [], later_ms) for shard in rest],
        ]
        # While the first shard is there the others have to be.
        if not ttl_ms or 0 <= left_ms < ttl_ms:
            steps.reverse()
        done = []
        for step in steps:
            done += yield from in_parallel(step)
        return True if all(done) else None

    yield from in_one_generation(state, work)


def _set_shard(view: View, shard: Shard, more: list[str], ttl_ms: int) -> Core[bool]:
    keys = [*ClaimKeys.of(shard.key), native_key(shard.key, view.descriptor.generation), *more]
    call = keys, (header_bytes(view.header), ttl_ms)
    (reply,) = yield from _EXPIRE.call([call], repeatable=True)
    return bool(answer_of(reply, "expiry needs"))


def ttl(state: FilterState) -> Core[float | None]:
    left_ms = yield from in_one_generation(state, partial(_time_left, state))
    return None if left_ms < 0 else left_ms / 1000


def _time_left(state: FilterState, view: View) -> Core[int | None]:
    """Return the milliseconds until a filter expires, -1: never; None: of another generation."""
    first = view.shards[0]
    left_ms, start = yield from call(
        first.key, encode_command("PTTL", state.keys.meta), header_command(first.key)
    )
    there = left_ms >= -1 and plain_header(start) == first.header
    return int(left_ms) if there else None


def sweep(view: View) -> Core[None]:
    """Delete strings that updates left where shards of a filter were.

    A string without a header is never part of a filter. What fails is left to the client that
    creates the filter again.
    """
    generation = generation_of(view.header)
    for_all = [[shard.key, prepared_key(shard.key, generation)] for shard in view.shards]
    yield from in_parallel([DROP.call([(keys, (b"",))], repeatable=True) for keys in for_all])
