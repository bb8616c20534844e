"""Measures the stages of a suite.

In each repetition every contender runs one slice of each case, in an order that changes, so that
what the machine does meanwhile hits all alike; the figures of one repetition are compared.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from . import show
from .delay_proxy import delayed
from .jobs import MANY, Job
from .place import Meter, Place, connect, forget, sort_out
from .team import Team, assembled
from .workloads import POPULAR, new_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .contenders import Entry
    from .jobs import Answer, Operation
    from .options import Options
    from .place import Cost

Workload = Literal["new", "seen", "half", "zipf", "links"]
WORKLOADS: dict[Workload, str] = {
    "new": "new items",
    "seen": "seen items",
    "half": "half of the items seen",
    "zipf": "90 % of the items seen, Zipf",
    "links": "links",
}
DIGITS = 6
"""Significant digits that are kept of a figure."""
FILL_BATCH = 10_000

Span = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to do.

    Attributes:
        operation: What to call; "tasks" is `add` from many tasks of asyncio.
        items: Items of a slice, for each process.
        workload: Which items.
        batch: Items in one call; 1 for what takes one.
        tasks: Tasks of asyncio at the same time.
        fresh: Whether the filter is cleared before each slice; then no other case of the stage
            can know anything that was seen.
    """

    operation: Operation
    items: int
    workload: Workload = "new"
    batch: int = 1
    tasks: int = 0
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """Contenders that live at the same time and take turns in all of its cases.

    Attributes:
        entries: The contenders.
        cases: What each does, where it can.
        repetitions: Slices of each contender and case.
        capacity: Distinct items of the filters.
        error_rate: Of the filters.
        processes: Numbers of client processes.
        round_trip_ms: Milliseconds to the server and back; 0 is a unix socket.
        fill: Items each filter holds before the first slice.
        links: File with the links of a site.
        site: What that site is called.
    """

    entries: tuple[Entry, ...]
    cases: tuple[Case, ...]
    repetitions: int
    capacity: int = 1_000_000
    error_rate: float = 1e-6
    processes: tuple[int, ...] = (1,)
    round_trip_ms: float = 0.0
    fill: int = 0
    links: str = ""
    site: str = ""


@dataclass(slots=True)
class Row:
    """All repetitions of one contender in one case; lists have a figure for each.

    Attributes:
        contender: Its name.
        title: Its title.
        operation: As in the case, like `workload`, `batch` and `tasks`.
        capacity: As in the stage, like `error_rate`, `processes`, `round_trip_ms` and `site`.
        items: Items of a slice, of all processes together.
        rates: Items per second of all processes together, from the first start to the last end.
        p50: Microseconds of a call, the median; of several processes the median of these.
        p99: The same, of the slowest hundredth the fastest; of the slowest process.
        client: Microseconds of the clients' processors for each item.
        server: Microseconds of the server's processor for each item.
        to_server: Bytes the server read for each item.
        from_server: Bytes the server wrote for each item.
        round_trips: Times the server read something, for each item.
        wrong: Answers, of all repetitions, that an exact set would not have given.
    """

    contender: str
    title: str
    operation: str
    workload: Workload
    batch: int
    tasks: int
    capacity: int
    error_rate: float
    processes: int
    round_trip_ms: float
    site: str = ""
    items: int = 0
    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    to_server: list[float] = field(default_factory=list)
    from_server: list[float] = field(default_factory=list)
    round_trips: list[float] = field(default_factory=list)
    wrong: int = 0

    @property
    def case(self) -> tuple[object, ...]:
        """What rows must share to be compared: from `operation` to `site`."""
        names = [f.name for f in fields(self)]
        return tuple(getattr(self, name) for name in names[2 : names.index("items")])


def run(stages: Iterable[Stage], options: Options, url: str, prefix: str) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True)
class _Slice:
    team: Team
    case: Case
    processes: int
    repetition: int

    def words(self, repetitions: int) -> str:
        case = self.case
        batch = f" {case.batch:,}" if case.operation in MANY else ""
        what = f"{case.operation}{batch} x{self.processes} {self.team.entry.name}"
        return f"{self.repetition + 1}/{repetitions} {what}"


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
                        step(one.words(stage.repetitions))
                        self._measure(meter, one)
            finally:
                forget(client, self._prefix)
        order = product(stage.processes, stage.cases, (entry.name for entry in entries))
        return [self._rows[key] for key in order if key in self._rows]

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
        if "tasks" in team.entry.operations or team.entry.made_by == "ping.Ping":
            return
        workloads = {case.workload for case in self._stage.cases}
        most = max(
            (case.items for case in self._stage.cases if case.workload in _REPEATS), default=0
        )
        seen = [(_SEEN[0], min(most, _SEEN[1]))] if most else []
        popular = [POPULAR] if "zipf" in workloads else []
        fill = self._stage.fill // team.entry.slow
        spans = (*seen, *popular, *([("fill", fill)] if fill else []))
        if spans:
            team.run([Job("fill", "add_many", spans, FILL_BATCH)])

    def _slices(self, teams: list[Team]) -> Iterator[_Slice]:
        order = random.Random(0)
        for repetition in range(self._stage.repetitions):
            for processes in self._stage.processes:
                for case in self._stage.cases:
                    able = [team for team in teams if case.operation in team.entry.operations]
                    order.shuffle(able)
                    yield from (_Slice(team, case, processes, repetition) for team in able)

    def _measure(self, meter: Meter, one: _Slice) -> None:
        team, case = one.team, one.case
        spans = [
            self._spans(team.entry, case, f"{case}/{one.processes}/{one.repetition}/{process}")
            for process in range(one.processes)
        ]
        jobs = [Job("measure", case.operation, each, case.batch, case.tasks) for each in spans]
        if case.fresh:
            team.run([Job("clear", case.operation)])
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
        self, one: _Slice, spans: list[tuple[Span, ...]], answers: list[Answer], cost: Cost
    ) -> None:
        case = one.case
        row = self._rows.setdefault((one.processes, case, one.team.entry.name), self._row(one))
        items = sum(count for each in spans for _, count in each)
        start = min(answer["start"] for answer in answers)
        end = max(answer["end"] for answer in answers)
        row.items = items
        figures = {
            "rates": items / ((end - start) / 1e9),
            "p50": median(answer["p50"] for answer in answers),
            "p99": max(answer["p99"] for answer in answers),
            "client": 1e6 * sum(answer["cpu"] for answer in answers) / items,
            "server": 1e6 * cost.busy / items,
            "to_server": cost.received / items,
            "from_server": cost.sent / items,
            "round_trips": cost.round_trips / items,
        }
        for name, value in figures.items():
            getattr(row, name).append(float(f"{value:.{DIGITS}g}"))
        if answers[0]["yes"] is not None and case.operation != "update":
            yes = sum(answer["yes"] for answer in answers)
            row.wrong += abs(yes - sum(_expected(case, each) for each in spans))

    def _row(self, one: _Slice) -> Row:
        stage, case, entry = self._stage, one.case, one.team.entry
        return Row(
            entry.name,
            entry.title,
            case.operation,
            case.workload,
            case.batch,
            case.tasks,
            stage.capacity,
            stage.error_rate,
            one.processes,
            stage.round_trip_ms,
            stage.site,
        )


_SEEN: Span = ("seen", 5_000)
_REPEATS = {"seen", "half"}
"""Workloads with items of that span."""


def _expected(case: Case, spans: tuple[Span, ...]) -> int:
    """Return how many answers are True."""
    seen = sum(count for tag, count in spans if tag == _SEEN[0])
    new = sum(new_in(tag, count) for tag, count in spans if tag != _SEEN[0])
    return seen if case.operation in {"exists", "exists_many"} else new
