"""One item in a call: what is left beside the round trip.

`add` with new items, with seen ones and with the mixture of a crawl (nine of ten seen, some of them
very often); `exists` with half of the items seen. The base is SADD by redis-py. Nothing that asks
the server for each item by the same client is faster than its PING, and a near-cache, which does
not ask, can be. `SADD on a socket` is what is left without a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "one item in a call"
ENTRIES = (
    *c.OURS,
    c.NEAR,
    c.SADD,
    c.BARE,
    c.REDIS_BLOOM,
    c.SETBIT,
    c.SCRAPY_BLOOM,
    c.POTTERY,
    c.PING,
    c.PING_BYTES,
)


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    items = options.offered(250)
    cases = (
        Case("add", items),
        Case("exists", items, "half"),
        Case("add", items, "seen"),
        Case("add", items, "zipf"),
    )
    yield Stage(ENTRIES, cases, options.slices(40, 6), error_rate=options.error_rates[0])
