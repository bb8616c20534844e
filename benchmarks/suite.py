"""What a suite is, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.place import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.contenders import Entry
    from benchmarks.results import Row
    from benchmarks.tables import Column


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how much to measure."""

    url: str
    quick: bool = False  # less of everything, for a first look
    repetitions: int = 0  # slices of each contender; 0: as each part has it
    items: int = 0  # of a slice; 0: as each part has it
    contenders: Sequence[str] = ()  # measure only these; empty: all
    missing: list[str] = field(default_factory=list)  # contenders that cannot be measured, and why

    def slices(self, full: int, quick: int) -> range:
        return range(self.repetitions or (quick if self.quick else full))

    def count(self, full: int, quick: int = 0, batch: int = 1) -> int:
        """Return how many items to take, by default `full` or `quick` ones: whole batches."""
        items = self.items or ((quick or full) if self.quick else full)
        return max(1, items // batch) * batch

    def choose(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the contenders that are wanted and can be measured."""
        with connect(self.url) as client:
            commands: Any = client.command()
        there = []
        for entry in entries:
            kind, _, name = entry.needs.partition(":")
            if self.contenders and entry.name not in self.contenders:
                continue
            if not kind or (find_spec(name) if kind == "package" else name.lower() in commands):
                there.append(entry)
            elif entry.title not in self.missing:
                self.missing.append(entry.title)
        return there


class Part(NamedTuple):
    name: str  # of its rows
    measure: Callable[[Bench], Iterable[Row]]
    columns: Sequence[Column]
    pivot: str = ""  # the page has one table of this figure; empty: a table for each case


class Suite(NamedTuple):
    """Parts that are measured on one server in one run."""

    name: str
    about: str  # a line for --help; docs/reference/figures.md has more
    parts: Sequence[Part]
