"""Calls per second, and their ratio to SADD and to a bare round trip.

All contenders are measured on the same server in the same run, in short slices in turn: in each
repetition every contender runs one slice of each operation, in an order that changes, so that what
the machine does meanwhile hits all alike. With several processes the rate is what all of them did,
over the time from the first start to the last end.

    add        new items
    exists     items, half of them added before
    add_many   new items, 1,000 in a call; one by one by those that know no batches
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from . import contenders, show
from .jobs import Job
from .place import Place
from .team import Team, assembled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .contenders import Entry
    from .jobs import Answer, Operation
    from .options import Options

ENTRIES = (
    *contenders.OURS,
    contenders.SADD,
    contenders.SADD_COUNT,
    contenders.SCRAPY_BLOOM,
    contenders.PING,
    contenders.PING_BYTES,
)
OPERATIONS: tuple[Operation, ...] = ("add", "exists", "add_many")
BATCH = 1000
LEAST_CAPACITY = 1_000_000
UNBATCHED = 5
"""Contenders without batches get a fifth of the items of `add_many`: they take long."""


@dataclass(slots=True)
class Row:
    """All repetitions of one contender, operation and number of processes.

    Attributes:
        contender: Its name.
        title: Its title.
        error_rate: The filter's; None where it has none.
        operation: What was called.
        processes: Client processes at the same time.
        rates: Items per second of all processes together, for each repetition.
        wrong: Answers that were not what an exact set would have answered.
        items: Items offered in all repetitions.
    """

    contender: str
    title: str
    error_rate: float | None
    operation: Operation
    processes: int
    rates: list[float] = field(default_factory=list)
    wrong: int = 0
    items: int = 0


@dataclass(frozen=True, slots=True)
class _Scale:
    repetitions: int
    items: int
    processes: tuple[int, ...]


def _scale(options: Options) -> _Scale:
    return _Scale(
        repetitions=options.repetitions or (8 if options.quick else 60),
        items=options.items or (100 if options.quick else 250),
        processes=options.processes or (1, 4),
    )


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    scale = _scale(options)
    rows: dict[tuple[str, Operation, int], Row] = {}
    with assembled(_plan(options, scale, prefix, url), max(scale.processes)) as teams:
        slices = list(_slices(teams, scale))
        with show.progress(len(slices)) as step:
            for team, operation, processes, repetition in slices:
                step(f"{repetition + 1}/{scale.repetitions} {operation} x{processes}")
                row = rows.setdefault(
                    (team.place.name, operation, processes), _row(team, operation, processes)
                )
                _measure(team, row, scale, repetition)
    return {"scale": asdict(scale), "rows": [asdict(row) for row in rows.values()]}


def _plan(options: Options, scale: _Scale, prefix: str, url: str) -> list[tuple[Entry, Place]]:
    each = scale.items + _batch_items(scale)
    capacity = max(LEAST_CAPACITY, 2 * each * sum(scale.processes) * scale.repetitions)
    plan = []
    for entry in contenders.choose(ENTRIES, options.contenders):
        for error_rate in options.error_rates if entry.rated else options.error_rates[:1]:
            name = f"{entry.name} {error_rate:g}" if entry.rated else entry.name
            plan.append((entry, Place(url, prefix, name, capacity, error_rate)))
    return plan


def _slices(teams: list[Team], scale: _Scale) -> Iterator[tuple[Team, Operation, int, int]]:
    order = random.Random(0)
    for repetition in range(scale.repetitions):
        for processes in scale.processes:
            for operation in OPERATIONS:
                ready = [team for team in teams if operation in team.entry.operations]
                order.shuffle(ready)
                for team in ready:
                    yield team, operation, processes, repetition


def _row(team: Team, operation: Operation, processes: int) -> Row:
    entry = team.entry
    rate = team.place.error_rate if entry.rated else None
    return Row(entry.name, entry.title, rate, operation, processes)


def _measure(team: Team, row: Row, scale: _Scale, repetition: int) -> None:
    jobs = [
        _job(row, scale, f"{repetition}/{row.processes}/{process}", batches=team.entry.batches)
        for process in range(row.processes)
    ]
    answers = team.run(jobs)
    items = sum(job.size for job in jobs)
    row.rates.append(_rate(answers, items))
    row.items += items
    # The first span of `exists` was added, and of the other operations everything is new.
    expected = sum(job.spans[0][1] for job in jobs)
    row.wrong += abs(sum(answer["yes"] for answer in answers) - expected)


def _job(row: Row, scale: _Scale, tag: str, *, batches: bool) -> Job:
    spans: tuple[tuple[str, int], ...]
    match row.operation:
        case "add":
            spans = ((f"{tag}/add", scale.items),)
        case "exists":
            seen = scale.items // 2
            spans = ((f"{tag}/add", seen), (f"{tag}/never", scale.items - seen))
        case "add_many":
            items = _batch_items(scale)
            spans = ((f"{tag}/batch", items if batches else max(1, items // UNBATCHED)),)
    return Job("measure", row.operation, spans, BATCH)


def _batch_items(scale: _Scale) -> int:
    return max(1, round(4 * scale.items / BATCH)) * BATCH


def _rate(answers: list[Answer], items: int) -> float:
    start = min(answer["start"] for answer in answers)
    end = max(answer["end"] for answer in answers)
    return float(items / ((end - start) / 1e9))
