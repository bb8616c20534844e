"""All suites by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import dedup, locks, locks_tables, losses, memory, micro, winners
from .grid import batch, clients, local, replay, rtt, single, sizes, tables, tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from rich.table import Table

    from .options import Options


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite.

    Attributes:
        module: Has `run`, the docstring that explains it, and `ENTRIES` where it has contenders.
        show: Module that has its `tables`, and its `overview` where these are many.
        about: A line for the command's help.
    """

    module: ModuleType
    show: ModuleType
    about: str

    def run(self, options: Options, url: str, prefix: str) -> dict[str, Any]:
        """Measure."""
        measure: Callable[[Options, str, str], dict[str, Any]] = self.module.run
        return measure(options, url, prefix)

    def tables(self, result: dict[str, Any]) -> Iterator[Table]:
        """Show what was measured."""
        make: Callable[[dict[str, Any]], Iterator[Table]] = self.show.tables
        return make(result)

    def overview(self, result: dict[str, Any]) -> Iterator[Table]:
        """Show what was measured in few tables, where the suite has a short form."""
        make = getattr(self.show, "overview", self.show.tables)
        made: Iterator[Table] = make(result)
        return made


SUITES = {
    "single": Suite(single, tables, "one item in a call"),
    "batch": Suite(batch, tables, "from 1 to 1,000,000 items in a call"),
    "sizes": Suite(sizes, tables, "filters for 10^5 to 10^8 items"),
    "clients": Suite(clients, tables, "from 1 to 8 client processes"),
    "rtt": Suite(rtt, tables, "round trips of 0, 0.5 and 1 ms"),
    "tasks": Suite(tasks, tables, "from 1 to 1,000 tasks of asyncio"),
    "replay": Suite(replay, tables, "the links of a real site"),
    "local": Suite(local, tables, "in the process, without a server"),
    "dedup": Suite(dedup, dedup, "duplicate lines of a file, beside awk and sort"),
    "memory": Suite(memory, memory, "bits for each item"),
    "micro": Suite(micro, micro, "single parts, by pyperf"),
    "winners": Suite(winners, winners, "8 processes offer the same items: which gets new"),
    "losses": Suite(losses, losses, "5 % of the replies get lost: which items with them"),
    "locks": Suite(locks, locks_tables, "locks: alone, and with 1 to 64 clients on one"),
}
ALL = tuple(name for name in SUITES if name not in {"winners", "losses", "locks"})
"""What is run unless others are named."""


def contender_names() -> list[str]:
    """Return the names of all contenders."""
    modules = (suite.module for suite in SUITES.values())
    return sorted({entry.name for module in modules for entry in getattr(module, "ENTRIES", ())})
