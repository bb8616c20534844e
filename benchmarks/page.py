"""The tables and pictures of README and docs; their words are written there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from . import results, tables
from .engine import ERROR_RATE
from .suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
PAGES = (
    ROOT / "README.md",
    ROOT / "docs/explanation/beside-others.md",
    ROOT / "docs/reference/figures.md",
)
LARGE = 100_000
"""Items from which the memory of one is the same in every filter."""
PICTURES = {
    "batch": ("rate-by-batch", "Rate of add_many by the size of the batch"),
    "memory": ("memory-by-items", "Memory by items, beside a set and RedisBloom"),
    "errors": ("errors-by-fill", "False positives by fill"),
    "locks": ("locks-by-clients", "Grants a second and the longest waits, by clients on one lock"),
    "scrapy": ("crawl-by-distance", "Pages a second by the round trip to the server"),
}
"""Pictures by their markers: the name of the file, and what it shows."""
PEERS = """\
| | Redis set (`SADD`) | RedisBloom | scrapy-redis | bloomlock |
|---|---|---|---|---|
| memory for an item | {set} bytes | {bf} bits | as a set \
| {atomic} bits; {memory} with `optimize="memory"` |
| false positives | none | at most the error rate | none | at most the error rate |
| needs a server module | no | yes | no | no |
| one winner among concurrent adds | yes | yes | yes | yes |
| a reply is lost, and the client repeats the add | no client gets "new" | no client gets "new" \
| no client gets "new" | an error, or "new" |
| the data is gone | answers "new" | answers "new" | answers "new" | raises an error |
| rate of one add | 1 | {bf_1} | as a set | {atomic_1} |
| rate of `add_many`, 1,000 items | 1 | {bf_1k} | no batches | {atomic_1k} |
| rate of `add_many`, 200,000 items | 1 | {bf_200k} | no batches | {atomic_200k} |
"""
"""The table of README; figures go into the braces."""
_RATES = {
    "1": ("single", "one item in a call", "add: new items", "sadd"),
    "1k": ("batch", "add_many: new items", "1,000 in a call", "exact"),
    "200k": ("batch", "add_many: new items", "200,000 in a call", "exact"),
}
"""Suite, table, column and base of a rate."""
_MARKED = re.compile(r"(<!-- (\w+) (\w+)(?: (\w+))? -->\n).*?(<!-- end -->\n)", re.DOTALL)


def filled(page: Path, found: dict[str, results.Result]) -> str:
    """Return the text of a page with what was measured between its markers.

    Those are `<!-- tables SUITE -->`, `<!-- tables SUITE PART -->`, `<!-- picture NAME -->` or
    `<!-- table peers -->`, and `<!-- end -->`.
    """

    def made_for(match: re.Match[str]) -> str:
        start, kind, name, part, end = match.groups()
        if kind == "picture":
            made = _picture(name, page.parent)
        elif name == "peers":
            made = _peers(found)
        else:
            made = "\n".join(_suite(found[name], part))
        return f"{start}\n{made}\n{end}"

    return _MARKED.sub(made_for, page.read_text("utf-8"))


def _picture(name: str, folder: Path) -> str:
    """Return the HTML of a picture for light and dark pages."""
    file, text = PICTURES[name]
    place = os.path.relpath(FOLDER, folder)
    dark = f'media="(prefers-color-scheme: dark)" srcset="{place}/{file}-dark.svg"'
    light = f'alt="{text}" src="{place}/{file}-light.svg"'
    return f"<picture>\n  <source {dark}>\n  <img {light}>\n</picture>\n"


def _peers(found: dict[str, results.Result]) -> str:
    figures = {}
    for key, (suite, *place, base) in _RATES.items():
        every = results.rows_of(found[suite])
        rows = {row.name: row for row in every if [row.table, row.column] == place}
        for name in ("atomic", "bf"):
            ratio = median(rows[name].over(rows[base], "rate"))
            figures[f"{name}_{key}"] = tables.number(ratio)
    bits: dict[str, list[float]] = {}
    for row in results.rows_of(found["memory"]):
        if row.part == "bits" and row.at["rate"] == ERROR_RATE and row.at["items"] >= LARGE:
            bits.setdefault(row.name, []).append(row.median("bits") or 0)
    least, most = (f"{value / 8:.0f}" for value in (min(bits["sadd"]), max(bits["sadd"])))
    figures |= {name: f"{median(bits[name]):.1f}" for name in ("atomic", "memory", "bf")}
    return PEERS.format_map(figures | {"set": f"{least}-{most}"})


def _suite(result: results.Result, wanted: str | None) -> Iterator[str]:
    yield f"{_header(result)}\n"
    rows = results.rows_of(result)
    for part in SUITES[result["suite"]].parts:
        if wanted and part.name != wanted:
            continue
        mine = [row for row in rows if row.part == part.name]
        made = tables.pivot(mine, part.pivot) if part.pivot else tables.plain(mine, part.columns)
        yield from map(tables.text, made)


def _header(result: results.Result) -> str:
    machine, versions = result["machine"], dict(result["versions"])
    quick = ", `--quick`" if result["quick"] else ""
    on = f"{machine['processor']}, {machine['cores']} cores (load {machine['load']} at the start)"
    packages = ("redis", "scrapy", "scrapy-redis", "python-redis-lock", "module bf")
    words = [f"{name} {versions[name]}" for name in packages if name in versions]
    with_ = ", ".join([versions["server"], versions["python"], *words])
    return f"Measured {result['taken'][:10]}{quick} on {on} with {with_}."
