"""In the process, without a server: MemoryBloomFilter beside rbloom and a set.

`add` answers whether the item is new; rbloom and a set do not, so they are asked before.
`update` gets 200,000 new items at once. Each call is timed on its own, which adds about 0.1 µs to
all of them; `micro` has single calls without that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "in the process, without a server"
ENTRIES = (c.MEMORY, *c.IN_PROCESS)
BULK = 200_000
BATCH = 1000


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    bulk = options.offered(BULK)
    small = (
        Case("add", options.offered(10_000)),
        Case("exists", options.offered(10_000), "half"),
        Case("add_many", options.offered(20 * BATCH, BATCH), batch=BATCH),
    )
    large = (Case("update", bulk, batch=bulk, fresh=True),)
    for cases in (small, large):
        yield Stage(ENTRIES, cases, options.slices(9, 3), error_rate=options.error_rates[0])
