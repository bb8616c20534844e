"""Several processes offer the same items at the same time: which of them gets the answer "new"?

Of an exact set exactly one process gets it for each item. All processes go through the items in the
same order and start together every 1,000 items, so that they meet over nearly every one; with
`add_many` each cuts the items into batches of another size, so that the batches overlap. The
pipeline strategy promises no single winner and is the control: where it has several, the processes
did meet.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, show
from benchmarks.jobs import Job
from benchmarks.place import Place
from benchmarks.team import Team, assembled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from benchmarks.contenders import Entry
    from benchmarks.jobs import Operation
    from benchmarks.options import Options

ABOUT = "8 processes offer the same items: which gets new"
ENTRIES = (*contenders.OURS[:-1], contenders.SADD, contenders.SCRAPY_BLOOM)
ROUND = 1000
SMALLEST_BATCH = 90
BATCH_STEP = 37


@dataclass(slots=True)
class Row:
    """What became of the items with one contender.

    Attributes:
        contender: Its name.
        title: Its title.
        operation: How the items were offered.
        processes: How many processes offered them.
        items: How many items.
        winners: Answers "new" in all.
        none: Items that were new to no process.
        several: Items that were new to more than one process.
        seconds: What all of it took.
        errors: Exceptions by name.
    """

    contender: str
    title: str
    operation: Operation
    processes: int
    items: int
    winners: int = 0
    none: int = 0
    several: int = 0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Offer the items to each contender; return the answers counted as plain data."""
    items = options.items or (2_000 if options.quick else 20_000)
    processes = max(options.processes or (8,))
    chosen = contenders.choose(ENTRIES, options.contenders)
    offers = [(entry, operation) for entry in chosen for operation in _operations(entry)]
    rows = []
    with show.progress(len(offers)) as step:
        for entry, operation in offers:
            step(f"{entry.name} {operation}")
            name = f"{entry.name} {operation}"
            place = Place(url, prefix, name, max(2 * items, 1000), options.error_rates[0])
            row = Row(entry.name, entry.title, operation, processes, items)
            with assembled([(entry, place)], processes) as (team,):
                _offer(team, row)
            rows.append(row)
    return {"rows": [asdict(row) for row in rows]}


def _operations(entry: Entry) -> tuple[Operation, ...]:
    return ("add", "add_many") if entry.batches else ("add",)


def _offer(team: Team, row: Row) -> None:
    """Let all processes offer all items, and count."""
    winners: Counter[int] = Counter()
    started = time.monotonic()
    for start in range(0, row.items, ROUND):
        span = (f"offer/{start}", min(ROUND, row.items - start))
        jobs = [
            Job("offer", row.operation, (span,), SMALLEST_BATCH + BATCH_STEP * process)
            for process in range(row.processes)
        ]
        for answer in team.run(jobs):
            winners.update(start + index for index in answer["yes"])
            row.errors.update(answer["errors"])
    row.seconds = time.monotonic() - started
    row.winners = winners.total()
    row.none = row.items - len(winners)
    row.several = sum(count > 1 for count in winners.values())


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make the table."""
    rows = [Row(**row) for row in result["rows"]]
    if not rows:
        return
    yield show.table(
        f"{rows[0].processes} processes offer the same {rows[0].items:,} items",
        [
            "",
            "via",
            "answers new",
            "items without winner",
            "items won twice or more",
            "s",
            "errors",
        ],
        (_line(row) for row in rows),
    )


def _line(row: Row) -> list[str]:
    counts: Callable[[int], str] = "{:,}".format
    return [
        row.title,
        row.operation,
        *map(counts, (row.winners, row.none, row.several)),
        f"{row.seconds:.1f}",
        ", ".join(f"{count} {name}" for name, count in row.errors.items()) or "none",
    ]
