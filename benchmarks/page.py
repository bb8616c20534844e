"""The tables and pictures of docs/benchmarks.md; its words are written there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import results, tables
from .suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PICTURES = {
    "batch": ("rate-by-batch", "Rate of add_many by the size of the batch"),
    "memory": ("memory-by-items", "Memory by items, beside a set and RedisBloom"),
    "errors": ("errors-by-fill", "False positives by fill"),
    "locks": ("locks-by-clients", "Grants a second and the longest waits, by clients on one lock"),
    "scrapy": ("crawl-by-distance", "Pages a second by the round trip to the server"),
}
"""Pictures by their markers: the name of the file, and what it shows."""
_MARKED = re.compile(r"(<!-- (\w+) (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def fill(page: Path, found: dict[str, results.Result]) -> None:
    """Write what was measured between the markers of a page.

    Those are `<!-- tables SUITE -->` or `<!-- picture NAME -->`, and `<!-- end -->`. Tables of
    suites that were not measured stay as they are.
    """

    def filled(match: re.Match[str]) -> str:
        start, kind, name, end = match.groups()
        if kind == "picture":
            made = picture(name, page.parent)
        elif name in found:
            made = "\n".join(_suite(found[name]))
        else:
            return match[0]
        return f"{start}\n{made}\n{end}"

    page.write_text(_MARKED.sub(filled, page.read_text("utf-8")), "utf-8")


def picture(name: str, docs: Path) -> str:
    """Return the HTML of a picture for light and dark pages; empty if it was not drawn."""
    file, text = PICTURES[name]
    if not (docs / "pictures" / f"{file}-light.svg").exists():
        return ""
    dark = f'media="(prefers-color-scheme: dark)" srcset="pictures/{file}-dark.svg"'
    light = f'alt="{text}" src="pictures/{file}-light.svg"'
    return f"<picture>\n  <source {dark}>\n  <img {light}>\n</picture>\n"


def _suite(result: results.Result) -> Iterator[str]:
    yield f"{header(result)}\n"
    rows = results.rows_of(result)
    for part in SUITES[result["suite"]].parts:
        mine = [row for row in rows if row.part == part.name]
        made = tables.pivot(mine, part.pivot) if part.pivot else tables.plain(mine, part.columns)
        yield from map(tables.text, made)


def header(result: results.Result) -> str:
    """Return when and on what a suite was measured, in a line."""
    machine, versions = result["machine"], dict(result["versions"])
    quick = ", `--quick`" if result["quick"] else ""
    on = f"{machine['processor']}, {machine['cores']} cores (load {machine['load']} at the start)"
    packages = ("redis", "scrapy", "scrapy-redis", "python-redis-lock", "idemkit", "module bf")
    words = [f"{name} {versions[name]}" for name in packages if name in versions]
    with_ = ", ".join([versions["server"], versions["python"], *words])
    return f"Measured {result['taken'][:10]}{quick} on {on} with {with_}."
