"""Rows of figures, what they come to, and the files they are kept in."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from .place import connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Result = dict[str, Any]

FOLDER = Path(__file__).parent / "results"
DIGITS = 5
"""Significant digits that are kept of a figure."""
PACKAGES = ["bloomlock", "redis", "hiredis", "numpy", "scrapy", "scrapy-redis", "python-redis-lock"]


@dataclass
class Row:
    """What one contender came to in one case.

    `column` sets the case apart from others of its table, `at` says where a plot puts it. `figures`
    has a value of each repetition: `rate` is in items per second, `server` and `client` are
    microseconds of processor time for an item.
    """

    part: str
    table: str
    column: str
    at: dict[str, float]
    name: str
    title: str
    figures: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, part: str, table: str, entry: Any, column: str = "", **at: float) -> Self:
        return cls(part, table, column, at, entry.name, entry.title)

    def note(self, **figures: float) -> None:
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(float(f"{value:.{DIGITS}g}"))

    def median(self, figure: str) -> float | None:
        values = self.figures.get(figure)
        return median(values) if values else None

    def over(self, base: Row, figure: str) -> list[float]:
        """Return its ratios to another row, repetition by repetition.

        Both ran a second apart in a repetition; figures of different minutes differ more than two
        contenders do.
        """
        pairs = zip(self.figures.get(figure, ()), base.figures.get(figure, ()), strict=False)
        return [value / other for value, other in pairs if other]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of the sorted ones does not exceed; 0.0 of none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def rows_of(result: Result) -> list[Row]:
    return [Row(**plain) for plain in result["rows"]]


def save(folder: Path, result: Result, rows: Iterable[Row]) -> None:
    """Write the result of a suite over its last one, a row on each line."""
    lines = ",\n".join(json.dumps(vars(row), ensure_ascii=False) for row in rows)
    head = json.dumps(result, ensure_ascii=False, indent=1)[:-2]
    text = f'{head},\n "rows": [\n{lines}\n ]\n}}\n'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result['suite']}.json").write_text(text, "utf-8")


def load(folder: Path = FOLDER) -> dict[str, Result]:
    """Return all results by the names of their suites."""
    found = [json.loads(file.read_text("utf-8")) for file in folder.glob("*.json")]
    return {result["suite"]: result for result in found}


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None  # not Linux
    return found[1] if found else platform.processor() or "unknown"


def versions(url: str) -> dict[str, str]:
    with connect(url) as client:
        fields = client.info("server")
        modules = client.info("modules").get("modules", [])
    name = fields.get("server_name", "redis")
    found = {"server": f"{name} {fields.get(f'{name}_version', fields['redis_version'])}"}
    found["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    for module in modules:
        number = int(module["ver"])  # one number for all three parts
        parts = f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
        found[f"module {module['name']}"] = parts
    return found
