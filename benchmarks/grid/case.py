"""What a suite of this kind consists of, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from benchmarks.contenders import Entry
    from benchmarks.jobs import Operation

Workload = Literal["new", "seen", "half", "zipf", "links"]
WORKLOADS: dict[Workload, str] = {
    "new": "new items",
    "seen": "seen items",
    "half": "half of the items seen",
    "zipf": "90 % of the items seen, Zipf",
    "links": "links of a site",
}


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

    operation: Operation | Literal["tasks"]
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


@dataclass(slots=True)
class Row:
    """All repetitions of one contender in one case; lists have a figure for each.

    Attributes:
        contender: Its name.
        title: Its title.
        operation: As in the case, like `workload`, `batch` and `tasks`.
        capacity: As in the stage, like `error_rate`, `processes` and `round_trip_ms`.
        items: Items of a slice, of all processes together.
        rates: Items per second of all processes together, from the first start to the last end.
        p50: Microseconds of a call, the median; of several processes the median of these.
        p99: The same, of the slowest hundredth the fastest; of the slowest process.
        client: Microseconds of the clients' processors for each item.
        server: Microseconds of the server's processor for each item.
        to_server: Bytes the server read for each item.
        from_server: Bytes the server wrote for each item.
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
    items: int = 0
    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    to_server: list[float] = field(default_factory=list)
    from_server: list[float] = field(default_factory=list)
    wrong: int = 0

    @property
    def case(self) -> tuple[object, ...]:
        """What rows must share to be compared."""
        return (
            self.operation,
            self.workload,
            self.batch,
            self.tasks,
            self.capacity,
            self.error_rate,
            self.processes,
            self.round_trip_ms,
        )
