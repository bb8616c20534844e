"""Measures the stages of a suite.

In each repetition every contender runs one slice of each case, in an order that changes, so that
what the machine does meanwhile hits all alike; the figures of one repetition are compared.
"""

from __future__ import annotations

import random
from dataclasses import asdict
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import show
from benchmarks.delay_proxy import delayed
from benchmarks.jobs import MANY, Job
from benchmarks.meter import Meter
from benchmarks.place import Place, connect, forget, sort_out
from benchmarks.task_jobs import Job as TaskJob
from benchmarks.team import Team, assembled
from benchmarks.workloads import POPULAR, new_in

from .case import Case, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.contenders import Entry
    from benchmarks.jobs import Answer
    from benchmarks.meter import Cost
    from benchmarks.options import Options

    from .case import Stage

DIGITS = 6
"""Significant digits that are kept of a figure."""
FILL_BATCH = 10_000

Span = tuple[str, int]
Slice = tuple[Team, Case, int, int]


def run(stages: Sequence[Stage], options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure all stages; return what was measured as plain data."""
    rows: list[Row] = []
    missing: dict[str, dict[str, str]] = {}
    for stage in stages:
        wanted = [
            e for e in stage.entries if not options.contenders or e.name in options.contenders
        ]
        there, others = sort_out(wanted, url)
        missing |= {other["contender"]: other for other in others}
        if there:
            rows += _Stage(stage, url, prefix).run(there)
    return {"missing": list(missing.values()), "rows": [asdict(row) for row in rows]}


class _Stage:
    """One stage that is being measured."""

    def __init__(self, stage: Stage, url: str, prefix: str) -> None:
        self._stage = stage
        self._url = url
        self._prefix = f"{prefix}{stage.capacity}:"
        self._rows: dict[tuple[int, Case, str], Row] = {}

    def run(self, entries: list[Entry]) -> list[Row]:
        stage = self._stage
        self._fill_slow(entries)
        with (
            connect(self._url) as client,
            delayed(self._url, stage.round_trip_ms) as through,
            assembled(self._plan(entries, through), max(stage.processes)) as teams,
        ):
            try:
                meter = Meter(client)
                for team in teams:
                    if team.entry.slow == 1:
                        self._fill(team)
                slices = list(self._slices(teams))
                with show.progress(len(slices)) as step:
                    for one in slices:
                        step(_words(one, stage))
                        self._measure(meter, one)
            finally:
                forget(client, self._prefix)
        order = list(product(stage.processes, stage.cases, (entry.name for entry in entries)))
        return [self._rows[p, c, name] for p, c, name in order if (p, c, name) in self._rows]

    def _fill_slow(self, entries: list[Entry]) -> None:
        """Fill what would take for ever over a long way."""
        slow = [entry for entry in entries if entry.slow > 1]
        with assembled(self._plan(slow, self._url), 1) as teams:
            for team in teams:
                self._fill(team)

    def _plan(self, entries: list[Entry], url: str) -> list[tuple[Entry, Place]]:
        stage = self._stage
        return [
            (entry, Place(url, self._prefix, entry.name, stage.capacity, stage.error_rate))
            for entry in entries
        ]

    def _fill(self, team: Team) -> None:
        """Add what the slices take for seen, and what the filter is to hold."""
        if team.entry.jobs != "jobs" or team.entry.module == "ping":
            return
        workloads = {case.workload for case in self._stage.cases}
        seen = [_SEEN] if workloads & {"seen", "half"} else []
        popular = [POPULAR] if "zipf" in workloads else []
        fill = self._stage.fill // team.entry.slow
        spans = (*seen, *popular, *([("fill", fill)] if fill else []))
        if spans:
            team.run([Job("fill", "add_many", spans, FILL_BATCH)])

    def _slices(self, teams: list[Team]) -> Iterator[Slice]:
        order = random.Random(0)
        for repetition in range(self._stage.repetitions):
            for processes in self._stage.processes:
                for case in self._stage.cases:
                    able = [team for team in teams if case.operation in team.entry.operations]
                    order.shuffle(able)
                    yield from ((team, case, processes, repetition) for team in able)

    def _measure(self, meter: Meter, one: Slice) -> None:
        team, case, processes, repetition = one
        jobs: list[Job] | list[TaskJob]
        spans = [
            self._spans(team.entry, case, f"{case}/{processes}/{repetition}/{process}")
            for process in range(processes)
        ]
        if case.tasks:
            jobs = [TaskJob("measure", case.tasks, each) for each in spans]
        else:
            jobs = [Job("measure", case.operation, each, case.batch) for each in spans]  # type: ignore[arg-type]  # "tasks" has tasks
        if case.fresh:
            team.run([type(jobs[0])("clear")])
        team.prepare(jobs)
        meter.start()
        answers = team.go()
        self._note(one, spans, answers, meter.stop())

    def _spans(self, entry: Entry, case: Case, tag: str) -> tuple[Span, ...]:
        items = case.items
        if entry.slow > 1:
            # Whole batches: what is compared is the cost of such a batch.
            items = max(1, items // entry.slow // case.batch) * case.batch
        match case.workload:
            case "links":
                return ((f"links:{self._stage.links}", items),)
            case "zipf":
                return ((f"zipf:{tag}", items),)
            case "seen":
                return ((_SEEN[0], min(items, _SEEN[1])),)
            case "half":
                seen = min(items // 2, _SEEN[1])
                return ((_SEEN[0], seen), (tag, items - seen))
            case _:
                return ((tag, items),)

    def _note(
        self, one: Slice, spans: list[tuple[Span, ...]], answers: list[Answer], cost: Cost
    ) -> None:
        team, case, processes, _ = one
        row = self._rows.setdefault((processes, case, team.entry.name), self._row(one))
        items = sum(count for each in spans for _, count in each)
        start = min(answer["start"] for answer in answers)
        end = max(answer["end"] for answer in answers)
        row.items = items
        row.rates.append(_short(items / ((end - start) / 1e9)))
        row.p50.append(_short(median(answer["p50"] for answer in answers)))
        row.p99.append(_short(max(answer["p99"] for answer in answers)))
        row.client.append(_short(1e6 * sum(answer["cpu"] for answer in answers) / items))
        row.server.append(_short(1e6 * cost.busy / items))
        row.to_server.append(_short(cost.received / items))
        row.from_server.append(_short(cost.sent / items))
        if answers[0]["yes"] is not None and case.operation not in _UNTOLD:
            yes = sum(answer["yes"] for answer in answers)
            row.wrong += abs(yes - sum(_expected(case, each) for each in spans))

    def _row(self, one: Slice) -> Row:
        (team, case, processes, _), stage = one, self._stage
        return Row(
            team.entry.name,
            team.entry.title,
            case.operation,
            case.workload,
            case.batch,
            case.tasks,
            stage.capacity,
            stage.error_rate,
            processes,
            stage.round_trip_ms,
        )


_SEEN: Span = ("seen", 5_000)
_UNTOLD = {"update"}


def _expected(case: Case, spans: tuple[Span, ...]) -> int:
    """Return how many answers are True."""
    seen = sum(count for tag, count in spans if tag == _SEEN[0])
    new = sum(new_in(tag, count) for tag, count in spans if tag != _SEEN[0])
    return seen if case.operation in {"exists", "exists_many"} else new


def _words(one: Slice, stage: Stage) -> str:
    team, case, processes, repetition = one
    batch = f" {case.batch:,}" if case.operation in MANY else ""
    what = f"{case.operation}{batch} x{processes} {team.entry.name}"
    return f"{repetition + 1}/{stage.repetitions} {what}"


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
