"""When a filter expires.

All keys of a filter expire by the server's own time-outs. The descriptor and the first shard lie in
one slot and go at the same instant. Further shards go some seconds later: they may lie on servers
with other clocks, and while the first is there all of them have to be. So a client finds either a
whole filter or none, and one that creates it anew wipes what is left of the old shards.
"""

from __future__ import annotations

import math
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES, generation_of
from bloomlock.errors import ConfigurationError
from bloomlock.keys import ClaimKeys, prepared_key
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script, answer_of
from bloomlock.strategies.base import header_command, plain_header

from .placing import DROP
from .state import in_one_generation

if TYPE_CHECKING:
    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

    from .generation import View
    from .state import FilterState

LATER_MS = 10_000
"""How much later further shards expire than the first."""
NEVER_MS = 0
LEAST_SECONDS, MOST_SECONDS = 0.001, 10**9

_EXPIRE = Script("header", "expire")


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
    keys = [*ClaimKeys.of(shard.key), *view.kind.keys(shard.key, view.header), *more]
    header = view.header.to_bytes(HEADER_BYTES, "big")
    (reply,) = yield from _EXPIRE.call([(keys, (header, ttl_ms))], repeatable=True)
    return bool(answer_of(reply, "expiry needs"))


def ttl(state: FilterState) -> Core[float | None]:
    left_ms = yield from in_one_generation(state, partial(_time_left, state))
    return None if left_ms < 0 else left_ms / 1000


def _time_left(state: FilterState, view: View) -> Core[int | None]:
    """Return the milliseconds until a filter expires, -1: never; None: of another generation."""
    first = view.shards[0]
    left_ms, start = yield from ask(
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
