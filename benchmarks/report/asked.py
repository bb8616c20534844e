"""What is asked of bloomlock, and whether the results show it.

Each line is a ratio to what it is compared with, repetition by repetition; the median is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks import show
from benchmarks.ratios import Summary, ratios, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

Row = dict[str, Any]


class Measured(Protocol):
    """How one figure comes from the rows of a suite."""

    def __call__(self, rows: list[Row]) -> Summary | None:
        """Return the figure; None if the rows lack it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One figure asked for.

    Attributes:
        what: As in the table.
        suite: Where it is measured.
        measured: How.
        bound: The least that was asked for; the most with `at_most`.
        at_most: Whether less is better.
        aim: What was hoped for beyond that; None: nothing.
    """

    what: str
    suite: str
    measured: Measured
    bound: float
    at_most: bool = False
    aim: float | None = None

    @property
    def wanted(self) -> str:
        """The bound in words."""
        aim = "" if self.aim is None else f" (aim {self.aim:g})"
        return f"at {'most' if self.at_most else 'least'} {self.bound:g}{aim}"

    def holds(self, value: float) -> bool:
        """Tell whether a value is what was asked for."""
        return value <= self.bound if self.at_most else value >= self.bound


@dataclass(frozen=True, slots=True)
class Over:
    """The ratio of a figure of two rows.

    Attributes:
        ours: What our row has, as (attribute, value).
        other: What the other row has, apart from what both have.
        both: What both have.
        figure: The attribute that is compared.
    """

    ours: dict[str, Any]
    other: dict[str, Any]
    both: dict[str, Any] = field(default_factory=dict)
    figure: str = "rates"

    def __call__(self, rows: list[Row]) -> Summary | None:
        """See Measured."""
        ours = find(rows, self.both | self.ours)
        other = find(rows, self.both | self.other)
        if ours is None or other is None:
            return None
        return ratios(ours[self.figure], other[self.figure])


@dataclass(frozen=True, slots=True)
class Flatness:
    """The dearest over the cheapest of the medians of all sizes."""

    wanted: dict[str, Any]

    def __call__(self, rows: list[Row]) -> Summary | None:
        """See Measured."""
        sizes = [row for row in rows if _fits(row, self.wanted)]
        costs = [1 / summarize(row["rates"]).median for row in sizes]
        if len(costs) < 2:  # noqa: PLR2004 - one size has nothing to differ from
            return None
        return summarize([max(costs) / min(costs)])


@dataclass(frozen=True, slots=True)
class OverFormula:
    """Bits of an item over the least that the formula allows, at all sizes."""

    contender: str
    error_rate: float

    def __call__(self, rows: list[Row]) -> Summary | None:
        """See Measured."""
        wanted = {"contender": self.contender, "error_rate": self.error_rate}
        found = [row["bits"] / row["least"] for row in rows if _fits(row, wanted)]
        return summarize(found) if found else None


def find(rows: list[Row], wanted: dict[str, Any]) -> Row | None:
    """Return the first row with these values."""
    return next((row for row in rows if _fits(row, wanted)), None)


def _fits(row: Row, wanted: dict[str, Any]) -> bool:
    return all(row[name] == value for name, value in wanted.items())


def _pair(ours: str, other: str, **both: Any) -> Over:
    return Over({"contender": ours}, {"contender": other}, both)


def _single(operation: str, other: str, title: str, bound: float) -> Asked:
    workload = "new" if operation == "add" else "half"
    measured = _pair("atomic", other, operation=operation, workload=workload)
    return Asked(f"single {operation} over {title}", "single", measured, bound)


def _batch(operation: str, size: int, other: str, error_rate: float = 1e-6) -> Over:
    both = {"operation": operation, "batch": size, "workload": "new", "error_rate": error_rate}
    return _pair("atomic", other, **both)


def _replay(ours: int, other: str, theirs: int) -> Over:
    return Over(
        {"contender": "near-cache", "batch": ours, "operation": _CALLS[ours]},
        {"contender": other, "batch": theirs, "operation": _CALLS[theirs]},
    )


_CALLS = {1: "add", 100: "add_many", 1000: "add_many"}
_DEDUP = ({"title": "bloomlock dedup"}, {"title": "awk '!seen[$0]++'"})
_BLOCKED = {"contender": "items-blocked", "operation": "add_many"}
ASKED = (
    _single("add", "sadd", "SADD", 1.0),
    _single("exists", "sadd", "SISMEMBER", 1.0),
    _single("add", "bf", "BF.ADD", 1.0),
    _single("exists", "bf", "BF.EXISTS", 1.0),
    _single("add", "ping", "PING", 0.9),
    _single("exists", "ping", "PING", 0.9),
    *(
        Asked(f"add_many of 1,000 over {title}, {rate:g}", "batch", measured, bound, aim=aim)
        for other, title, bound, aim in (
            ("setbit", "pipelined SETBITs", 8.0, None),
            ("bf", "BF.MADD", 0.3, 0.5),
        )
        for rate in (1e-6, 1e-3)
        for measured in (_batch("add_many", 1000, other, rate),)
    ),
    *(
        Asked(f"{operation} of 200,000 over BF.MADD, {how}", "batch", measured, bound, aim=aim)
        for operation, bound, aim in (("update", 2.0, None), ("add_many", 1.2, 2.0))
        for how, measured in (
            ("1,000 at a time", _batch(operation, 200_000, "bf-1000")),
            ("in one command", _batch(operation, 200_000, "bf")),
        )
    ),
    Asked(
        "1,000 tasks over redis.asyncio SADD",
        "tasks",
        _pair("async-atomic", "async-sadd", tasks=1000),
        5,
    ),
    Asked("replay, each link, over SADD of each", "replay", _replay(1, "sadd", 1), 10),
    *(
        Asked(f"replay, {how}, over {title}", "replay", _replay(ours, other, 100), 2)
        for other, title in (("bf-pipeline", "100 BF.ADDs in a pipeline"), ("bf", "BF.MADD of 100"))
        for ours, how in ((1, "each link"), (100, "100 links"))
    ),
    Asked("replay, 1,000 links, over BF.MADD of 100", "replay", _replay(1000, "bf", 100), 2),
    Asked("dedup over awk, lines/s", "dedup", Over(*_DEDUP), 0.5),
    Asked(
        "dedup over awk, memory of a new line",
        "dedup",
        Over(*_DEDUP, figure="memory"),
        0.1,
        at_most=True,
    ),
    Asked(
        "classic, 1e-6: bits over the formula",
        "memory",
        OverFormula("atomic", 1e-6),
        1.02,
        at_most=True,
    ),
    Asked(
        "blocked, add_many of 1,000: dearest size over cheapest",
        "sizes",
        Flatness(_BLOCKED),
        1.5,
        at_most=True,
    ),
)


def asked_tables(found: dict[str, dict[str, Any]]) -> Iterator[Table]:
    """Make a table of what is asked of the suites there are results of, if it is anything."""
    lines = [_line(asked, found[asked.suite]["rows"]) for asked in ASKED if asked.suite in found]
    if lines:
        columns = ["", "asked", "median (least-most)", ""]
        yield show.table("what is asked of bloomlock", columns, lines)


def _line(asked: Asked, rows: list[Row]) -> list[str]:
    summary = asked.measured(rows)
    if summary is None:
        return [asked.what, asked.wanted, "", "not measured"]
    value = f"{summary.median:.3f} ({summary.low:.3f}-{summary.high:.3f})"
    return [asked.what, asked.wanted, value, "holds" if asked.holds(summary.median) else "LOST"]
