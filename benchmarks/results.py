"""Rows of figures, what they come to, and the files they are kept in."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .place import connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import redis

    Result = dict[str, Any]

FOLDER = Path(__file__).parent / "results"
DIGITS = 5
"""Significant digits that are kept of a figure."""
PACKAGES = (
    *("bloomlock", "redis", "hiredis", "numpy", "scrapy", "scrapy-redis"),
    *("python-redis-lock", "idemkit", "rbloom"),
)


class Row:
    """What one contender came to in one case.

    Attributes:
        part: The part of the suite, which says how its rows are shown.
        table: The table it stands in.
        name: The contender, and its title.
        column: What sets this case apart from others of the table; empty: nothing.
        figures: For each figure a value of each repetition. `rate` is in items per second; `server`
            and `client` are microseconds of processor time for an item.
        at: Where a plot puts it.
    """

    def __init__(self, part: str, table: str, entry: Any, column: str = "", **at: float) -> None:
        self.part, self.table, self.column, self.at = part, table, column, at
        self.name: str = entry.name
        self.title: str = entry.title
        self.figures: dict[str, list[float]] = {}

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
    """Return the value that this share of the sorted ones does not exceed; 0.0 of none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5), percentile([1.0, 2.0], 0.99), percentile([], 0.5)
    (3.0, 2.0, 0.0)
    """
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def rows_of(result: Result) -> list[Row]:
    rows = []
    for plain in result["rows"]:
        row = Row("", "", SimpleNamespace(name="", title=""))
        vars(row).update(plain)
        rows.append(row)
    return rows


def save(folder: Path, result: Result, rows: Iterable[Row]) -> None:
    """Write the result of a suite over its last one, a row on each line."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(vars(row), ensure_ascii=False) for row in rows)
    head = json.dumps(result, ensure_ascii=False, indent=1)[:-2]
    text = f'{head},\n "rows": [\n{lines}\n ]\n}}\n'
    (folder / f"{result['suite']}.json").write_text(text, "utf-8")


def load(*places: Path) -> dict[str, Result]:
    """Return all results of files and folders by the names of their suites."""
    files = [
        file for place in places for file in (place.glob("*.json") if place.is_dir() else [place])
    ]
    found = (json.loads(file.read_text("utf-8")) for file in files)
    return {result["suite"]: result for result in found}


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions(url: str) -> dict[str, str]:
    with connect(url) as client:
        server = server_of(client)
        modules: Any = client.execute_command("MODULE", "LIST")
    found = {"server": server}
    found["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found | dict(map(_module, modules))


def server_of(client: redis.Redis) -> str:
    fields: Any = client.info("server")
    name = fields.get("server_name", "redis")
    return f"{name} {fields.get(f'{name}_version', fields['redis_version'])}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or "unknown"


def _module(reply: Any) -> tuple[str, str]:
    """Return the name and the version of a module, which is one number for all three parts."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    texts = {_text(key): _text(value) for key, value in pairs}
    number = int(texts["ver"])
    return f"module {texts['name']}", f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
