"""The tables and pictures of README and docs; their words are written there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from . import results, tables
from .contenders import STRATEGIES
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
_LEFT_OUT = {
    "single": {"ping", "ping-bytes", "busy", "B to"},
    "batch": {"items", "bitmap", "transaction", "pipeline", "lock"},
    "sizes": {"items", "ping", "sadd-count"},
    "losses": {f"{way}-{end}" for way in STRATEGIES[1:] for end in ("new", "raise")},
    "locks": {
        *("ping-client", "ping-bytes", "trips", "server µs", "held twice", "errors"),
        *(f"{clients}, held 1 ms" for clients in ("1 client", "8 clients", "64 clients")),
    },
    "memory": {"bits for each item at 0.001"},
    "windows": {"refresh"},
    "claims": {"ping", "ping-bytes"},
    "scrapy": {"scrapy-redis-set", "round trip 0.5 ms", "at worst"},
}
"""What the terminal shows of a suite and the page does not: contenders, tables, columns."""
PACKAGES = ("redis", "scrapy", "scrapy-redis", "python-redis-lock", "module bf")
"""The versions that a page names, beside server and Python."""
_MARKED = re.compile(r"(<!-- (\w+) (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def filled(page: Path, found: dict[str, results.Result]) -> str:
    """Return the text of a page with what was measured between its markers.

    Those are `<!-- tables SUITE -->`, `<!-- picture NAME -->`, `<!-- table peers -->` or
    `<!-- table versions -->`, and `<!-- end -->`.
    """

    def made_for(match: re.Match[str]) -> str:
        start, kind, name, end = match.groups()
        if kind == "picture":
            made = _picture(name, page.parent)
        elif name == "peers":
            made = _peers(found)
        elif name == "versions":
            made = _versions(found)
        else:
            made = "\n".join(_suite(found[name]))
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


def _suite(result: results.Result) -> Iterator[str]:
    machine, quick = result["machine"], ", `--quick`" if result["quick"] else ""
    on = f"{machine['processor']}, {machine['cores']} cores, load {machine['load']}"
    yield f"Measured {result['taken'][:10]}{quick} on {on}.\n"
    left_out = _LEFT_OUT.get(result["suite"], set())
    rows = results.rows_of(result)
    rows = [row for row in rows if not {row.name, row.table, row.column} & left_out]
    for part in SUITES[result["suite"]].parts:
        mine = [row for row in rows if row.part == part.name]
        columns = [column for column in part.columns if column.head not in left_out]
        made = tables.pivot(mine, part.pivot) if part.pivot else tables.plain(mine, columns)
        yield from map(tables.text, made)


def _versions(found: dict[str, results.Result]) -> str:
    """Return a line for each set of versions that results were measured with."""
    lines = []
    for result in found.values():
        versions = dict(result["versions"])
        words = [versions["server"], versions["python"]]
        words += [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
        lines.append(f"Measured with {', '.join(words)}.\n")
    return "\n".join(dict.fromkeys(lines))
