"""Single parts, timed by pyperf: hashing, encoding, a filter in the process, a near-cache's hit.

pyperf starts several processes for each of them and finds out how often to repeat it. What they
are stands in `micro_parts.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import show
from .figures import summarize
from .micro_parts import PARTS, WANTED, Part, chosen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from .options import Options

ROOT = Path(__file__).parent.parent
ENTRIES = PARTS
EFFORT = ("--processes=5", "--values=4", "--warmups=1", "--min-time=0.02")
QUICK_EFFORT = ("--processes=1", "--values=3", "--warmups=1", "--min-time=0.01")
NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Row:
    """One part.

    Attributes:
        name: Its name.
        title: What is timed.
        items: Items in one call.
        values: Nanoseconds of an item, one for each of pyperf's values.
    """

    name: str
    title: str
    items: int
    values: list[float]


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Let pyperf measure; return its values as plain data."""
    if find_spec("pyperf") is None:
        return {"missing": [{"title": "all", "why": "pyperf is not installed"}], "rows": []}
    parts = chosen(options.contenders)
    missing = [
        {"title": part.title, "why": f"{part.package} is not installed"}
        for part in PARTS
        if part not in parts and not options.contenders
    ]
    wanted = {"url": url, "prefix": prefix, "parts": [part.name for part in parts]}
    effort = QUICK_EFFORT if options.quick else EFFORT
    with show.progress(1) as step:
        step("pyperf")
        rows = _measure(parts, wanted, effort)
    return {"missing": missing, "rows": [asdict(row) for row in rows]}


def _measure(parts: list[Part], wanted: dict[str, Any], effort: tuple[str, ...]) -> list[Row]:
    from pyperf import BenchmarkSuite  # noqa: PLC0415 - may not be installed

    with tempfile.TemporaryDirectory(prefix="bloomlock-") as folder:
        file = Path(folder) / "values.json"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.micro_parts", "-o", str(file), "--quiet", *effort],
            cwd=ROOT,
            env={**os.environ, WANTED: json.dumps(wanted)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        suite = BenchmarkSuite.load(str(file))
    return [_row(part, suite.get_benchmark(part.title).get_values()) for part in parts]


def _row(part: Part, seconds: tuple[float, ...]) -> Row:
    each = [round(NANOSECONDS * value / part.items, 2) for value in seconds]
    return Row(part.name, part.title, part.items, each)


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make the table."""
    rows = [Row(**row) for row in result["rows"]]
    absent = [[each["title"], "", "not available", ""] for each in result["missing"]]
    columns = ["", "items", "ns/item, median", "least-most"]
    yield show.table("single parts", columns, [*map(_line, rows), *absent])


def _line(row: Row) -> list[str]:
    found = summarize(row.values)
    return [
        row.title,
        f"{row.items:,}",
        f"{found.median:,.0f}",
        f"{found.low:,.0f}-{found.high:,.0f}",
    ]
