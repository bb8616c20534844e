"""One item in a call: what is left beside the round trip.

`add` with new items, with seen ones and with the mixture of a crawl (nine of ten seen, some of them
very often); `exists` with half of the items seen. The base is a PING by the same client: nothing
that asks the server for each item can be faster, and a near-cache, which does not ask, can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import contenders

from . import engine
from .case import Case, Stage

if TYPE_CHECKING:
    from benchmarks.options import Options

ENTRIES = (
    *contenders.OURS,
    *contenders.BLOCKED,
    contenders.NEAR,
    contenders.SADD,
    contenders.REDIS_BLOOM,
    contenders.SETBIT,
    contenders.SCRAPY_BLOOM,
    contenders.POTTERY,
    contenders.PING,
    contenders.PING_BYTES,
)


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    items = options.offered(250)
    cases = (
        Case("add", items),
        Case("exists", items, "half"),
        Case("add", items, "seen"),
        Case("add", items, "zipf"),
    )
    stage = Stage(ENTRIES, cases, options.slices(40, 6), error_rate=options.error_rates[0])
    return engine.run([stage], options, url, prefix)
