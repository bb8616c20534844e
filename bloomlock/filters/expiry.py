"""When a filter expires.

All keys of a filter expire by the server's own time-outs. The descriptor and the first shard lie in
one slot and go at the same instant. Further shards go some seconds later: they may lie on servers
with other clocks, and while the first is there all of them have to be. So a client finds either a
whole filter or none, and one that creates it anew wipes what is left of the old shards.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.errors import ConfigurationError
from bloomlock.keys import ClaimKeys
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script, answer_of
from bloomlock.strategies.base import header_command, plain_header
from bloomlock.strategies.bitmap import image_bytes

from .state import in_one_generation

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys
    from bloomlock.strategies import Shard

    from .generation import View
    from .state import FilterState

logger = logging.getLogger("bloomlock")

LATER_MS = 10_000
"""How much later further shards expire than the first."""
NEVER_MS = 0
LEAST_SECONDS = 0.001
MOST_SECONDS = 10**9
"""About 31 years."""

_EXPIRE, _SWEEP = Script("header", "expire"), Script("sweep")


def check_ttl(parameter: str, value: object) -> int:
    """Return a duration in milliseconds, or raise ConfigurationError.

    >>> check_ttl("ttl", 1.5), check_ttl("ttl", timedelta(days=1))
    (1500, 86400000)
    """
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


def check_moment(value: object) -> float:
    """Return a moment in seconds since 1970, or raise ConfigurationError."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigurationError(
            f"at must be seconds since 1970, or a datetime with a time zone, not {value!r:.80}"
        )
    return float(value)


def expire(state: FilterState, ttl_ms: int) -> Core[None]:
    """Let the filter expire in `ttl_ms`, or never (0)."""

    def work(view: View) -> Core[bool | None]:
        return (yield from set_expiry(state.keys, view, ttl_ms))

    yield from in_one_generation(state, work)


def expire_at(state: FilterState, at: object) -> Core[None]:
    """Let the filter expire at a moment."""
    wanted = check_moment(at)
    view = yield from state.current()
    now = yield from moment_of(view)
    ttl_ms = math.ceil((wanted - now) * 1000)
    if ttl_ms <= 0:
        raise ConfigurationError(
            f"at must be a moment to come; by the server's clock {at!r:.80} is over"
        )
    yield from expire(state, ttl_ms)


def ttl(state: FilterState) -> Core[float | None]:
    """Return the seconds until the filter expires, None if it does not."""

    def work(view: View) -> Core[int | None]:
        return (yield from time_left(state.keys, view))

    left_ms = yield from in_one_generation(state, work)
    return None if left_ms < 0 else left_ms / 1000


def set_expiry(keys: FilterKeys, view: View, ttl_ms: int) -> Core[bool | None]:
    """Let a filter expire in `ttl_ms`, or never (NEVER_MS); None if it is of another generation.

    Cost: two round trips, three if there are several shards.
    """
    left_ms = yield from time_left(keys, view)
    if left_ms is None:
        return None
    is_later = not ttl_ms or (left_ms >= 0 and ttl_ms > left_ms)
    # While the first shard is there the others have to be.
    return (yield from _set_all(keys, view, ttl_ms, first_last=is_later))


def time_left(keys: FilterKeys, view: View) -> Core[int | None]:
    """Return the milliseconds until a filter expires, -1: it does not; None as `set_expiry`."""
    first = view.shards[0]
    left_ms, start = yield from ask(
        first.key, encode_command("PTTL", keys.meta), header_command(first.key)
    )
    there = left_ms >= -1 and plain_header(start) == first.header
    return int(left_ms) if there else None


def moment_of(view: View) -> Core[float]:
    """Return the time of the server that has the first shard, in seconds since 1970."""
    ((seconds, micros),) = yield from ask(view.shards[0].key, encode_command("TIME"))
    return int(seconds) + int(micros) / 1e6


def _set_all(keys: FilterKeys, view: View, ttl_ms: int, *, first_last: bool) -> Core[bool | None]:
    first, *rest = view.shards
    later_ms = ttl_ms + LATER_MS if ttl_ms else NEVER_MS
    further = [_set_shard(view, shard, (), later_ms) for shard in rest]
    done = [(yield from _set_shard(view, first, (keys.meta,), ttl_ms))] if not first_last else []
    done += yield from in_parallel(further)
    if first_last:
        done.append((yield from _set_shard(view, first, (keys.meta,), ttl_ms)))
    return True if all(done) else None


def _set_shard(view: View, shard: Shard, more: tuple[str, ...], ttl_ms: int) -> Core[bool]:
    keys = [*ClaimKeys.of(shard.key), *view.kind.keys(shard.key, view.header), *more]
    header = view.header.to_bytes(HEADER_BYTES, "big")
    (reply,) = yield from _EXPIRE.call([(keys, (header, ttl_ms))], repeatable=True)
    return bool(answer_of(reply, "expiry needs"))


def sweep(view: View, stored: Descriptor | None) -> Core[None]:
    """Delete or cut strings that updates left, or made longer, where shards of a filter were.

    A string without a header is never part of a filter, and nothing behind the length of a shard
    is. What fails is left to who creates the filter anew.

    Args:
        view: Of the filter that was there.
        stored: The one that is there now; None: none, or it is not known.
    """
    header, length = b"", 0
    if stored is not None and not stored.slices:
        header = stored.header.to_bytes(HEADER_BYTES, "big")
        length = stored.string_bytes()
    calls = [((shard.key,), (image_bytes(shard), header, length)) for shard in view.shards]
    yield from in_parallel([_SWEEP.call([call], repeatable=True) for call in calls])
