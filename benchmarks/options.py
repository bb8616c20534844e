"""The options of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ERROR_RATES = (1e-6, 1e-3)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of every suite; None is the suite's own choice.

    Attributes:
        quick: Less of everything, for a first look.
        repetitions: Slices of each contender.
        items: Items of one slice, or offered by each process (winners, losses).
        error_rates: Error rates to measure at; suites that need one take the first.
        processes: Numbers of client processes.
        contenders: Names to restrict the run to; empty: all.
        seconds: Length of a slice in which clients meet (locks).
        holds: Milliseconds for which a lock is held (locks).
        site: Folder of HTML whose links are replayed, in place of the standard library's.
    """

    quick: bool = False
    repetitions: int | None = None
    items: int | None = None
    error_rates: tuple[float, ...] = ERROR_RATES
    processes: tuple[int, ...] = ()
    contenders: tuple[str, ...] = ()
    seconds: float | None = None
    holds: tuple[float, ...] = ()
    site: Path | None = None

    def slices(self, full: int, quick: int) -> int:
        """Return how many repetitions to make, by default `full` or `quick` ones."""
        return self.repetitions or (quick if self.quick else full)

    def offered(self, full: int, batch: int = 1) -> int:
        """Return how many items a slice has, by default `full`: whole batches."""
        return max(1, (self.items or full) // batch) * batch

    def plain(self) -> dict[str, object]:
        """Return what a result says of them: nothing about this machine's files."""
        return {
            "quick": self.quick,
            "repetitions": self.repetitions,
            "items": self.items,
            "error_rates": self.error_rates,
            "processes": self.processes,
            "contenders": self.contenders,
            "seconds": self.seconds,
            "holds": self.holds,
            "site": self.site.name if self.site else None,
        }
