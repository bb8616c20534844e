"""The links of real sites, replayed in the order in which a crawl met them.

By default two sites that every machine can render: the documentation of the standard library, whose
pages link mostly to their own parts, and that of NumPy, redis-py, click and rich. `--site FOLDER`
takes others. Each contender starts with an empty filter, an empty near-cache and an empty set in
each slice; the slow ones replay the first fifth only, in which more links are new. A set of Python
before SADD is what a spider has that remembers its own links.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage
from benchmarks.workloads import link_stream, sites

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "the links of real sites"
ENTRIES = (
    c.NEAR,
    c.ATOMIC,
    c.LUA,
    c.SADD,
    c.EXACT,
    c.GUARDED,
    c.REDIS_BLOOM,
    c.REDIS_BLOOM_PIPELINE,
    c.SCRAPY_BLOOM.only(*c.SINGLE),
    c.PING.only(*c.SINGLE),
)
BATCHES = (100, 1000)
QUICK = 20_000


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    for name, folder in sites(options.sites):
        links = link_stream(folder)
        items = options.items or (QUICK if options.quick else len(links))
        with tempfile.TemporaryDirectory(prefix="bloomlock-") as scratch:
            file = Path(scratch) / "links"
            file.write_text("\n".join(links), "utf-8")
            cases = (
                Case("add", items, "links", fresh=True),
                *(Case("add_many", items, "links", batch=size, fresh=True) for size in BATCHES),
            )
            repeats = 1 - len(set(links)) / len(links)
            yield Stage(
                ENTRIES,
                cases,
                options.slices(5, 2),
                error_rate=options.error_rates[0],
                links=str(file),
                site=f"{name} ({len(links):,} links, {repeats:.1%} repeats)",
            )
