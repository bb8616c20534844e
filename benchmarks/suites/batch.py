"""From 1 to 2,000,000 new items in a call.

Small batches live on the round trip, larger ones on encoding and on the server's work for each
item, and the largest ones on sending bits in place of items. `update` asks for no answers, so it
may send less than `add_many`. SADD with all items in one command only counts the new ones;
`SADD / SISMEMBER` is a pipeline of SADDs for `add_many`, and the strongest exact peer is one
transaction of SMISMEMBER and SADD. Filters are for 10^6 items, and for 10^7 in the largest batch;
they are cleared before each slice of 10,000 items and more. Error rates are 1e-6, as crawlers use,
and 1e-3 once more for 1,000 items: half as many bits for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "from 1 to 2,000,000 items in a call"
MIDDLE = (
    c.ATOMIC,
    c.LUA,
    c.ROUTES[0],
    c.ROUTES[1],
    c.SADD,
    c.SADD_COUNT,
    c.EXACT,
    c.REDIS_BLOOM,
)
SMALL = (*MIDDLE, *c.OURS[2:], c.SETBIT, c.POTTERY)
RATED = (c.ATOMIC, c.LUA, c.SADD, c.EXACT, c.REDIS_BLOOM, c.SETBIT)
LARGE = (
    c.ATOMIC,
    *c.ROUTES,
    c.SADD,
    c.SADD_COUNT,
    c.EXACT,
    c.NATIVE,
    c.REDIS_BLOOM,
    c.REDIS_BLOOM_CUT,
)
HUGE = (
    c.ATOMIC,
    c.ROUTES[1],
    c.NATIVE,
    c.SADD_COUNT,
    c.REDIS_BLOOM,
    c.REDIS_BLOOM_CUT,
)
ENTRIES = tuple(dict.fromkeys((*SMALL, *LARGE)))
USUAL = 1000
"""Items of the batch that is measured in all its operations."""
OFFERED = {1: 200, 10: 1000, 100: 2000, USUAL: 5000}
"""Items of a slice, for each size of its batches."""


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    rate = options.error_rates[0]
    if options.items:
        for cases in (_small(options.items, options.items), _large(options.items)):
            yield Stage(ENTRIES, cases, options.slices(3, 3), error_rate=rate)
        return
    sizes = [10, USUAL] if options.quick else list(OFFERED)
    small = tuple(case for size in sizes for case in _small(size, OFFERED[size]))
    yield Stage(SMALL, small, options.slices(12, 3), error_rate=rate)
    for other_rate in options.error_rates[1:]:
        cases = (Case("add_many", OFFERED[USUAL], batch=USUAL),)
        yield Stage(RATED, cases, options.slices(12, 3), error_rate=other_rate)
    yield Stage(MIDDLE, (_add_many(10_000),), options.slices(8, 2), error_rate=rate)
    yield Stage(LARGE, _large(200_000), options.slices(7, 2), error_rate=rate)
    if not options.quick:
        yield Stage(HUGE, _large(1_000_000), options.slices(3, 0), error_rate=rate)
        yield Stage(HUGE, _large(2_000_000), options.slices(3, 0), 10_000_000, rate)


def _small(size: int, offered: int) -> tuple[Case, ...]:
    made = Case("add_many", offered, batch=size)
    if size < USUAL:
        return (made,)
    half = Case("exists_many", offered, "half", batch=size)
    return (made, half, Case("update", offered, batch=size))


def _add_many(size: int) -> Case:
    return Case("add_many", size, batch=size, fresh=True)


def _large(size: int) -> tuple[Case, ...]:
    return (_add_many(size), Case("update", size, batch=size, fresh=True))
