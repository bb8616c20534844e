"""Measures contenders that take turns.

In each repetition every contender runs one slice of each case, in an order that changes, so that
what the machine does meanwhile hits all alike; the figures of one repetition are compared.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from .cluster import clustered
from .jobs import MANY, Fill, Timed
from .place import CLUSTER, Meter, Place, connect, forget
from .proxies import delayed
from .results import Row
from .suite import Part
from .team import assembled
from .workloads import POPULAR, new_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .contenders import Entry
    from .suite import Bench
    from .team import Answer, Team
    from .workloads import Span

Workload = Literal["new", "seen", "half", "zipf", "crawl"]
WORKLOADS: dict[Workload, str] = {
    "new": "new items",
    "seen": "seen items",
    "half": "half of the items seen",
    "zipf": "90 % of the items seen, Zipf",
    "crawl": "links of a crawl, 10 % new",
}
SEEN: Span = ("seen", 5_000)
CAPACITY, ERROR_RATE = 1_000_000, 1e-6
"""Of filters of which nothing else is said."""


@dataclass(frozen=True, slots=True)
class Case:
    operation: str  # "tasks" is `add` from many tasks of asyncio
    items: int  # of a slice, for each process
    workload: Workload = "new"
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
    processes: tuple[int, ...] = (1,)  # numbers of client processes
    round_trip_ms: float = 0.0  # 0 is a unix socket
    fill: int = 0  # items each filter holds before the first slice


def part(name: str, *stages: Stage) -> Part:
    def measure(bench: Bench) -> Iterator[Row]:
        for number, stage in enumerate(stages):
            there = bench.choose(stage.entries)
            if there and stage.repetitions[bench.quick and not bench.repetitions]:
                yield from _Running(name, stage, bench, number).run(there)

    return Part(name, measure, pivot="rate")


def table_of(case: Case) -> str:
    if case.operation in MANY:
        return f"{case.operation}: {WORKLOADS[case.workload]}"
    return "add, by tasks of asyncio" if case.tasks else "one item in a call"


def column_of(stage: Stage, case: Case, processes: int = 1) -> str:
    """Return what sets a case apart from the others of its table."""
    words = [f"{case.operation}: {WORKLOADS[case.workload]}"]
    if case.operation in MANY:
        words = [f"{case.batch:,} in a call"]
    elif case.tasks:
        words = [f"{case.tasks:,} task{'s' * (case.tasks > 1)}"]
    if processes > 1:
        words.append(f"{processes} processes")
    if stage.round_trip_ms:
        words.append(f"round trip {stage.round_trip_ms:g} ms")
    if stage.capacity != CAPACITY:
        words.append(f"filter for {stage.capacity:,}")
    if stage.error_rate != ERROR_RATE:
        words.append(f"at {stage.error_rate:g}")
    return ", ".join(words)


class _Running:
    def __init__(self, name: str, stage: Stage, bench: Bench, number: int) -> None:
        self._part = name
        self._stage = stage
        self._bench = bench
        self._prefix = f"{bench.prefix}{name}{number}:"
        cases = [self._sized(case) for case in stage.cases if not (case.full and bench.quick)]
        self._cases = list(dict.fromkeys(cases))
        self._rows: dict[tuple[int, Case, str], Row] = {}
        self._meters: dict[str, Meter] = {}

    def _sized(self, case: Case) -> Case:
        if not self._bench.items:
            return case
        batch = min(case.batch, self._bench.items)
        return Case(
            case.operation, self._bench.count(0, 0, batch), case.workload, batch,
            case.tasks, case.fresh,
        )  # fmt: skip

    def run(self, entries: list[Entry]) -> list[Row]:
        stage = self._stage
        with ExitStack() as stack:
            client = stack.enter_context(connect(self._bench.url))
            stack.callback(forget, client, self._prefix)
            through = stack.enter_context(delayed(self._bench.url, stage.round_trip_ms))
            usual = Meter(client)
            plan = []
            for entry in entries:
                url, self._meters[entry.name] = through, usual
                if entry.masters:
                    ports = stack.enter_context(clustered(entry.masters))
                    urls = [f"redis://127.0.0.1:{port}" for port in ports]
                    url, self._meters[entry.name] = CLUSTER + urls[0], Meter(*map(connect, urls))
                place = Place(url, self._prefix, entry.name, stage.capacity, stage.error_rate)
                plan.append((entry, place))
            teams = stack.enter_context(assembled(plan, max(stage.processes)))
            self._fill(teams)
            self._turns(teams)
        order = [(p, c, e.name) for p in stage.processes for c in self._cases for e in entries]
        return [self._rows[key] for key in order if key in self._rows]

    def _fill(self, teams: list[Team]) -> None:
        """Add what the slices take for seen, and what the filter is to hold."""
        asked = (span for case in self._cases for span in _spans(case, ""))
        seen = max((count for tag, count in asked if tag == SEEN[0]), default=0)
        spans = [(SEEN[0], seen)] * bool(seen)
        spans += [POPULAR] * any(case.workload == "zipf" for case in self._cases)
        if self._stage.fill:
            spans.append(
                ("fill", min(self._stage.fill, 10 * self._bench.items or self._stage.fill))
            )
        for team in teams:
            if spans and "tasks" not in team.entry.operations and "ping" not in team.entry.name:
                self._bench.step(f"fill {team.entry.name}")
                team.run(Fill(tuple(spans)))

    def _turns(self, teams: list[Team]) -> None:
        order = random.Random(0)
        slices = self._bench.slices(*self._stage.repetitions)
        for number in slices:
            for processes in self._stage.processes:
                for case in self._cases:
                    able = [team for team in teams if case.operation in team.entry.operations]
                    order.shuffle(able)
                    for team in able:
                        what = f"{case.operation} {case.batch:,} x{processes} {team.entry.name}"
                        self._bench.step(f"{self._part} {number + 1}/{len(slices)} {what}")
                        self._slice(team, case, processes, number)

    def _slice(self, team: Team, case: Case, processes: int, number: int) -> None:
        spans = [_spans(case, f"{case}/{processes}/{number}/{one}") for one in range(processes)]
        does = (case.batch, case.tasks, case.fresh)
        team.prepare([Timed(case.operation, each, *does) for each in spans])
        meter = self._meters[team.entry.name]
        meter.start()
        answers = team.go()
        items = sum(count for each in spans for _, count in each)
        cost = meter.stop(items)
        key = (processes, case, team.entry.name)
        if key not in self._rows:
            column = column_of(self._stage, case, processes)
            at = {"batch": case.batch, "capacity": self._stage.capacity}
            self._rows[key] = Row(self._part, table_of(case), team.entry, column, **at)
        row = self._rows[key]
        row.note(**_figures(answers, items), **cost)
        if case.operation != "update" and "ping" not in team.entry.name:
            expected = sum(_expected(case, span) for each in spans for span in each)
            row.note(wrong=abs(sum(answer["yes"] for answer in answers) - expected))


def _spans(case: Case, tag: str) -> tuple[Span, ...]:
    seen = min(case.items if case.workload == "seen" else case.items // 2, SEEN[1])
    match case.workload:
        case "zipf" | "crawl":
            return ((f"{case.workload}:{tag}", case.items),)
        case "seen":
            return ((SEEN[0], seen),)
        case "half":
            return ((SEEN[0], seen), (tag, case.items - seen))
        case _:
            return ((tag, case.items),)


def _expected(case: Case, span: Span) -> int:
    """Return how many answers about a span are True."""
    seen = span[1] if span[0] == SEEN[0] else 0
    if case.operation.startswith("exists"):
        return seen
    return 0 if seen else new_in(*span)


def _figures(answers: list[Answer], items: int) -> dict[str, float]:
    seconds = (max(a["end"] for a in answers) - min(a["start"] for a in answers)) / 1e9
    return {
        "rate": items / seconds,
        "p50": median(answer["p50"] for answer in answers),
        "p99": max(answer["p99"] for answer in answers),
        "client": 1e6 * sum(answer["cpu"] for answer in answers) / items,
    }
