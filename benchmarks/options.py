"""The options of the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ERROR_RATES = (1e-6, 1e-3)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of every suite; None is the suite's own choice. The command's help explains them."""

    quick: bool = False
    repetitions: int | None = None
    items: int | None = None
    error_rates: tuple[float, ...] = ERROR_RATES
    processes: tuple[int, ...] = ()
    contenders: tuple[str, ...] = ()
    seconds: float | None = None
    holds: tuple[float, ...] = ()
    sites: tuple[Path, ...] = ()

    def slices(self, full: int, quick: int) -> int:
        """Return how many repetitions to make, by default `full` or `quick` ones."""
        return self.repetitions or (quick if self.quick else full)

    def offered(self, full: int, batch: int = 1) -> int:
        """Return how many items a slice has, by default `full`: whole batches."""
        return max(1, (self.items or full) // batch) * batch

    def plain(self) -> dict[str, Any]:
        """Return what a result says of them: nothing about this machine's files."""
        return asdict(self) | {"sites": [site.name for site in self.sites]}
