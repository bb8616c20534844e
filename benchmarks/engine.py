"""Measures contenders that take turns.

In each repetition every contender runs one slice of each case, in an order that changes, so that
other work of the machine hits all alike; the figures of one repetition are compared.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from .jobs import MANY, Timed
from .place import Meter, Place, connect
from .processes import assembled
from .proxies import delayed
from .results import Row
from .suite import Part
from .tables import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .contenders import Entry
    from .jobs import Span
    from .processes import Team
    from .suite import Bench
    from .tables import Column

WORKLOADS = {
    "new": ("new items", 0.0),
    "half": ("half of the items seen", 0.5),
    "most": ("90 % of the items seen", 0.9),
    "seen": ("seen items", 1.0),
}
"""What tables call it, and the share of items that were seen."""
SEEN: Span = ("seen", 5_000)
CAPACITY, ERROR_RATE = 1_000_000, 1e-6
"""Of filters of which nothing else is said."""


@dataclass(frozen=True, slots=True)
class Case:
    operation: str  # "tasks" is `add` from many tasks of asyncio
    items: int  # of a slice
    workload: str = "new"
    batch: int = 1  # items in one call; 1 for what takes one
    tasks: int = 0  # of asyncio, at the same time
    fresh: bool = False  # cleared before each slice: what other cases have seen is gone
    full: bool = False  # left out of a quick run


@dataclass(frozen=True, slots=True)
class Stage:
    """Contenders that live at the same time and take turns in all of its cases."""

    entries: Sequence[Entry]
    cases: Sequence[Case]
    repetitions: tuple[int, int]  # slices of each contender and case, and those of a quick run
    capacity: int = CAPACITY  # distinct items of the filters
    error_rate: float = ERROR_RATE
    round_trip_ms: float = 0.0  # 0 is a unix socket
    fill: int = 0  # items each filter holds before the first slice


def part(name: str, *stages: Stage, columns: Sequence[Column] = FULL, pivot: str = "rate") -> Part:
    def measure(bench: Bench) -> Iterator[Row]:
        for stage in stages:
            if bench.slices(*stage.repetitions):
                yield from _measure(name, stage, bench)

    return Part(name, measure, columns, pivot)


def table_of(case: Case) -> str:
    if case.operation in MANY:
        return f"{case.operation}: {WORKLOADS[case.workload][0]}"
    return "add, by tasks of asyncio" if case.tasks else "one item in a call"


def column_of(stage: Stage, case: Case) -> str:
    """Return what sets a case apart from the others of its table."""
    words = [f"{case.operation}: {WORKLOADS[case.workload][0]}"]
    if case.operation in MANY:
        words = [f"{case.batch:,} in a call"]
    elif case.tasks:
        words = [f"{case.tasks:,} task{'s' * (case.tasks > 1)}"]
    if stage.round_trip_ms:
        words.append(f"round trip {stage.round_trip_ms:g} ms")
    if stage.capacity != CAPACITY:
        words.append(f"filter for {stage.capacity:,}")
    if stage.error_rate != ERROR_RATE:
        words.append(f"at {stage.error_rate:g}")
    return ", ".join(words)


def _measure(name: str, stage: Stage, bench: Bench) -> list[Row]:
    entries = bench.choose(stage.entries)
    if not entries:
        return []
    wanted = (case for case in stage.cases if not (case.full and bench.quick))
    cases = list(dict.fromkeys(_sized(case, bench) for case in wanted))
    rows: dict[tuple[Case, str], Row] = {}
    with ExitStack() as stack:
        client = stack.enter_context(connect(bench.url))
        stack.callback(client.flushall)
        through = stack.enter_context(delayed(bench.url, stage.round_trip_ms))
        meter, size = Meter(client), (stage.capacity, stage.error_rate)
        plan = [(entry, Place(through, entry.name, *size)) for entry in entries]
        teams = stack.enter_context(assembled(plan))
        _fill(teams, cases, min(stage.fill, 10 * bench.items or stage.fill), meter)
        order = random.Random(0)
        for turn in bench.slices(*stage.repetitions):
            for case in cases:
                able = [team for team in teams if case.operation in team.entry.operations]
                for team in order.sample(able, len(able)):
                    entry, at = team.entry, {"batch": case.batch, "capacity": stage.capacity}
                    row = Row.of(name, table_of(case), entry, column_of(stage, case), **at)
                    row = rows.setdefault((case, entry.name), row)
                    row.note(**_slice(team, case, f"{case}/{turn}", meter))
    keys = product(cases, (entry.name for entry in entries))
    return [rows[key] for key in keys if key in rows]


def _sized(case: Case, bench: Bench) -> Case:
    if not bench.items:
        return case
    batch = min(case.batch, bench.items)
    return replace(case, items=bench.count(0, 0, batch), batch=batch, full=False)


def _fill(teams: Sequence[Team], cases: Sequence[Case], count: int, meter: Meter) -> None:
    """Add what the slices take for seen, and what the filter is to hold."""
    asked = (span for case in cases for span in _spans(case, ""))
    spans = [("fill", count), (SEEN[0], max((n for tag, n in asked if tag == SEEN[0]), default=0))]
    filled = tuple(span for span in spans if span[1])
    for team in teams:
        if filled and "tasks" not in team.entry.operations and "ping" not in team.entry.name:
            team.run([Timed("add_many", filled, 10_000)], meter.start)


def _slice(team: Team, case: Case, name: str, meter: Meter) -> dict[str, float]:
    """Do a case once, with new items of a name; return what it came to."""
    spans = _spans(case, name)
    job = Timed(case.operation, tuple(spans), case.batch, case.tasks, case.fresh)
    (answer,) = team.run([job], meter.start)
    items = sum(count for _, count in spans)
    cost = meter.stop(items)
    # Answers that are True are about items that `exists` finds, or `add` finds new.
    is_asked = case.operation.startswith("exists")
    expected = sum(count for tag, count in spans if (tag == SEEN[0]) == is_asked)
    figures = {
        "rate": items / (answer["end"] - answer["start"]) * 1e9,
        "p50": answer["p50"],
        "p99": answer["p99"],
        "client": 1e6 * answer["cpu"] / items,
    }
    if case.operation != "update" and "ping" not in team.entry.name:
        figures["wrong"] = abs(answer["yes"] - expected)
    return figures | cost


def _spans(case: Case, tag: str) -> list[Span]:
    seen = min(round(case.items * WORKLOADS[case.workload][1]), SEEN[1])
    return [span for span in ((SEEN[0], seen), (tag, case.items - seen)) if span[1]]
