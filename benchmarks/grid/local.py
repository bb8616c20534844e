"""In the process, without a server: MemoryBloomFilter beside rbloom and a set.

`add` answers whether the item is new; rbloom and a set do not, so they are asked before.
`update` gets 200,000 new items at once. Each call is timed on its own, which adds about 0.1 µs to
all of them; `micro` has single calls without that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import contenders

from . import engine
from .case import Case, Stage

if TYPE_CHECKING:
    from benchmarks.options import Options

ENTRIES = (*contenders.MEMORY, *contenders.RBLOOM)
BULK = 200_000
BATCH = 1000


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    bulk = options.offered(BULK)
    small = (
        Case("add", options.offered(10_000)),
        Case("exists", options.offered(10_000), "half"),
        Case("add_many", options.offered(20 * BATCH, BATCH), batch=BATCH),
    )
    large = (Case("update", bulk, batch=bulk, fresh=True),)
    stages = [
        Stage(ENTRIES, cases, options.slices(9, 3), error_rate=options.error_rates[0])
        for cases in (small, large)
    ]
    return engine.run(stages, options, url, prefix)
