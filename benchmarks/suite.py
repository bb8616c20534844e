"""What a suite is, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.place import sort_out
from benchmarks.tables import FULL, Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.contenders import Entry
    from benchmarks.results import Row


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how much to measure.

    Attributes:
        url: The server.
        prefix: Start of all keys.
        quick: Less of everything, for a first look.
        repetitions: Slices of each contender; 0: as each part has it.
        items: Items of a slice; 0: as each part has it.
        contenders: Measure only these; empty: all.
        missing: Takes contenders that cannot be measured, and why.
        step: Is told what is measured now.
    """

    url: str
    prefix: str
    quick: bool = False
    repetitions: int = 0
    items: int = 0
    contenders: Sequence[str] = ()
    missing: list[str] = field(default_factory=list)
    step: Callable[[str], object] = len

    def slices(self, full: int, quick: int) -> range:
        """Return the repetitions to make, by default `full` or `quick` ones."""
        return range(self.repetitions or (quick if self.quick else full))

    def count(self, full: int, quick: int = 0, batch: int = 1) -> int:
        """Return how many items to take, by default `full` or `quick` ones: whole batches."""
        items = self.items or ((quick or full) if self.quick else full)
        return max(1, items // batch) * batch

    def choose(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the contenders that are wanted and there."""
        wanted = [one for one in entries if not self.contenders or one.name in self.contenders]
        there, missing = sort_out(wanted, self.url)
        self.missing.extend(each for each in missing if each not in self.missing)
        return there


class Part(NamedTuple):
    """A part of a suite.

    Attributes:
        name: Of its rows.
        measure: Measures it.
        columns: Of its tables.
        pivot: The figure of which the page has a table with a column for each case; empty: the
            page has a table for each case, with a column for each figure.
    """

    name: str
    measure: Callable[[Bench], Iterable[Row]]
    columns: Sequence[Column] = FULL
    pivot: str = ""


class Suite(NamedTuple):
    """Parts that are measured on one server in one run.

    Attributes:
        name: As on the command line.
        about: A line for the command's help; docs/reference/figures.md has more words.
        parts: Its parts.
    """

    name: str
    about: str
    parts: Sequence[Part]
