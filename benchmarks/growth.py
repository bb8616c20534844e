"""A filter that grows from a guess 64 times too small, beside one of the right size.

Items are added until the filter has one slice, two, three and four. Each time items that are there
and items that are not are asked for, one by one and in batches, from it and from a filter that was
sized for all of them from the start. Cost is the server's processor time by its own counter and the
time on the clock, each as a ratio to that filter in the same repetition. Rate and false negatives
are counted at the end, over all items that were added and as many others.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bloomlock import BloomFilter, Growth

from . import show
from .figures import ratios
from .place import Meter, connect, memory_of
from .scale_parts import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

    from .options import Options

TIMES = 64
CAPACITY, QUICK_CAPACITY = 10_000, 1_000
ERROR_RATE = 1e-3
"""Of rarer errors too few could be counted; costs are those of `COST_RATE`."""
COST_RATE = 1e-6
ASKED = 2_000
ASKED_BY_ONE = 500
BATCH = 1_000
REPETITIONS, QUICK_REPETITIONS = 7, 3


@dataclass(slots=True)
class Row:
    """One operation on filters with a number of slices.

    Attributes:
        slices: What the filter has grown to.
        operation: What was done.
        grown: Server seconds, for each repetition; and of the filter of the right size.
        right: The same of the filter of the right size.
        grown_s: Seconds on the clock.
        right_s: The same of the filter of the right size.
    """

    slices: int
    operation: str
    grown: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    grown_s: list[float] = field(default_factory=list)
    right_s: list[float] = field(default_factory=list)


def measure(options: Options, url: str, prefix: str) -> list[dict[str, Any]]:
    """Measure it; return a row for each operation and number of slices, and one of the errors."""
    capacity = QUICK_CAPACITY if options.quick else CAPACITY
    with connect(url) as client:
        meter = Meter(client)
        rows = _costs(url, prefix, meter, capacity, options.slices(REPETITIONS, QUICK_REPETITIONS))
        counted = _count(url, prefix, client, capacity)
    return [*(asdict(row) for row in rows), counted]


def _costs(url: str, prefix: str, meter: Meter, capacity: int, repetitions: int) -> list[Row]:
    rows = []
    most = TIMES * capacity
    with (
        BloomFilter(
            "grown", capacity, COST_RATE, client=url, prefix=prefix, on_full=Growth(up_to=most),
            shards=1,
        ) as grown,
        BloomFilter("right", most, COST_RATE, client=url, prefix=prefix, shards=1) as right,
    ):  # fmt: skip
        held = 0
        for slices, until in enumerate((1, 5, 21, 64), 1):
            items = [f"item {number}" for number in range(held, until * capacity * 97 // 100)]
            held += len(items)
            for made in (grown, right):
                made.update(items)
            if grown.info().slices != slices:
                raise ValueError(f"{grown.info().slices} slices, not {slices}")
            for operation, act in _operations(held).items():
                row = Row(slices, operation)
                rows.append(row)
                for number in range(repetitions):
                    pair = [(grown, row.grown, row.grown_s), (right, row.right, row.right_s)]
                    for made, servers, clocks in pair if number % 2 else reversed(pair):
                        meter.start()
                        began = time.perf_counter()
                        act(made)
                        clocks.append(time.perf_counter() - began)
                        servers.append(meter.stop().busy)
        grown.delete()
        right.delete()
    return rows


def _operations(held: int) -> dict[str, Callable[[BloomFilter], object]]:
    step = max(1, held // ASKED)
    there = [f"item {number}" for number in range(0, held, step)][:ASKED]
    absent = [f"absent {number}" for number in range(ASKED)]

    def one_by_one(items: Sequence[str], method: str) -> Callable[[BloomFilter], object]:
        def act(made: BloomFilter) -> None:
            call = getattr(made, method)
            for item in items[:ASKED_BY_ONE]:
                call(item)

        return act

    def in_batches(items: Sequence[str], method: str) -> Callable[[BloomFilter], object]:
        def act(made: BloomFilter) -> None:
            call = getattr(made, method)
            for start in range(0, len(items), BATCH):
                call(items[start : start + BATCH], route="items")

        return act

    return {
        "exists, new": one_by_one(absent, "exists"),
        "exists, seen": one_by_one(there, "exists"),
        "add, seen": one_by_one(there, "add"),
        "exists_many, new": in_batches(absent, "exists_many"),
        "exists_many, seen": in_batches(there, "exists_many"),
        "add_many, seen": in_batches(there, "add_many"),
    }


def _count(url: str, prefix: str, client: Any, capacity: int) -> dict[str, Any]:
    """Count errors of a filter that has grown to the end."""
    most = TIMES * capacity
    options: dict[str, Any] = {"on_full": Growth(up_to=most)}
    with BloomFilter("counted", capacity, ERROR_RATE, client=url, prefix=prefix, **options) as made:
        items = [f"item {number}" for number in range(most)]
        made.update(items)
        absent = (f"absent {number}" for number in range(most))
        found = {
            "items": most,
            "error_rate": ERROR_RATE,
            "slices": made.info().slices,
            "false_negatives": made.exists_many(items).count(False),
            "asked": most,
            "false_positives": sum(made.exists_many(absent)),
            "memory_bytes": memory_of(client, prefix),
        }
        made.delete()
    with BloomFilter("counted", most, ERROR_RATE, client=url, prefix=prefix) as right:
        found["right_bytes"] = memory_of(client, prefix)
        right.delete()
    return found


def tables(result: list[dict[str, Any]]) -> Iterator[Table]:
    """Make the tables."""
    *first, counted = result
    rows = [Row(**row) for row in first]
    numbers = sorted({row.slices for row in rows})
    columns = ["server time (clock), of the right size", *(f"{n} slices" for n in numbers)]
    lines = []
    for operation in dict.fromkeys(row.operation for row in rows):
        mine = [row for row in rows if row.operation == operation]
        lines.append([operation, *map(_ratio, mine)])
    yield show.table(f"filters that grew to 64 times their capacity, {COST_RATE:g}", columns, lines)
    rate = counted["false_positives"] / counted["asked"]
    yield show.table(
        "their errors",
        ["items", "slices", "false negatives", "rate asked", "rate measured", "memory"],
        [
            [
                f"{counted['items']:,}",
                f"{counted['slices']}",
                f"{counted['false_negatives']}",
                f"{counted['error_rate']:g}",
                f"{rate:.2e}",
                f"{counted['memory_bytes'] / counted['right_bytes']:.2f} of the right size",
            ]
        ],
    )


def _ratio(row: Row) -> str:
    server, clock = ratios(row.grown, row.right), ratios(row.grown_s, row.right_s)
    return f"{server.median:.2f} ({clock.median:.2f})"


PART = Part("growth", measure, tables)
