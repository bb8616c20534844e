"""One filter over more and more shards of one server: what an item costs then.

Items go by the route `items`: a batch is one command for each shard that it meets, all in one round
trip. An item that comes alone meets one shard, however many there are. The more shards, the fewer
items share a command: of 4,096 shards 1,000 items meet 885, and 10,000 items 3,740.

Further parts, which `--contender stream`, `masters`, `moving`, `windows` or `forgotten` runs
alone:

- *stream*: links of a crawl shaped as IRLbot's (10.4 % new, repeats by Zipf over all that came
  before), added in batches through the near-cache. IRLbot checked 111,200 links a second (2008).
- *masters*: new items over 24 shards on clusters of 1, 2 and 3 masters of this machine, which share
  its processors, so what an item takes of them is the figure and not the rate.
- *moving*: processes offer the same items, each in an order of its own, to a filter on 3 masters
  whose slots move from one to another all the time. Each item has to have one winner, and none may
  be denied after it was added.
- *windows*: memory of a filter with a time window, and what turning to the next slice takes.
- *forgotten*: 10^6 items are discarded; what they take of memory, whether any other item is lost,
  and what `exists` and `add` take of the server beside a filter that never forgot.

The contenders `no-window`, `window` and `window-refresh` are a filter with a window beside one
without, in rows of their own: rates are over that of the first, all with `optimize="memory"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks import growth, scale_parts, windows
from benchmarks.engine import Case, Stage
from benchmarks.scale_forgotten import FORGOTTEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "one filter over 1 to 4,096 shards, on clusters, and with a time window"
SHARDS = (1, 16, 256, 1024, 4096)
SHARDED = (
    *(
        c.ours(f"items-shards-{n}", f"atomic, items, {n} shards", shards=n, route="items")
        for n in SHARDS
    ),
    c.SADD_COUNT,
    c.PING.only(*c.SINGLE),
)
ENTRIES = (*SHARDED, *windows.ENTRIES)
BATCHES = (1000, 10_000)
PARTS = (*scale_parts.PARTS, windows.PART, growth.PART, FORGOTTEN)

__all__ = ["ABOUT", "ENTRIES", "PARTS", "stages"]


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    batches = (
        Case("add_many", options.offered(2 * batch, batch), batch=batch) for batch in BATCHES
    )
    cases = (Case("add", options.offered(250)), *batches)
    fill = options.items or (50_000 if options.quick else 250_000)
    yield Stage(SHARDED, cases, options.slices(9, 3), error_rate=options.error_rates[0], fill=fill)
    yield windows.stage(options)
