"""The links of a real site, replayed in the order in which a crawl met them.

By default the site that `bloomlock crawl` renders: the standard library's documentation, of whose
links 98.8 % have been met before, because each page links to its own parts. `--site FOLDER` takes
another one. Each contender starts with an empty filter and an empty near-cache in each slice; the
slow ones replay the first fifth only, in which more links are new.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import contenders
from benchmarks.links import link_stream

from . import engine
from .case import Case, Stage

if TYPE_CHECKING:
    from benchmarks.options import Options

ENTRIES = (
    contenders.NEAR,
    contenders.ATOMIC,
    contenders.OURS[1],
    contenders.SADD,
    contenders.REDIS_BLOOM,
    contenders.REDIS_BLOOM_PIPELINE,
    *(
        replace(entry, operations=contenders.SINGLE)
        for entry in (contenders.SCRAPY_BLOOM, contenders.PING)
    ),
)
BATCHES = (100, 1000)
QUICK = 20_000


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    links = link_stream(options.site)
    items = options.items or (QUICK if options.quick else len(links))
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as folder:
        file = Path(folder) / "links"
        file.write_text("\n".join(links), "utf-8")
        cases = (
            Case("add", items, "links", fresh=True),
            *(Case("add_many", items, "links", batch=size, fresh=True) for size in BATCHES),
        )
        stage = Stage(
            ENTRIES,
            cases,
            options.slices(5, 2),
            error_rate=options.error_rates[0],
            links=str(file),
        )
        made = engine.run([stage], options, url, prefix)
    return made | {"links": {"all": len(links), "distinct": len(set(links))}}
