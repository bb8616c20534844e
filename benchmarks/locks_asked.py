"""What is asked of our locks, and whether a run shows it.

Each line is a ratio to what it is compared with, repetition by repetition; the median is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .locks import ASKED_FOR, Row
from .ratios import Summary, ratios, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

Figure = Literal["rates", "wait_p99", "jain"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One figure asked for.

    Attributes:
        what: As in the table.
        ours: Which lock.
        clients: 0 is alone.
        figure: Which of its figures.
        other: What it is divided by; "" for nothing.
        bound: The least that was asked for; the most with `at_most`.
        at_most: Whether less is better.
    """

    what: str
    ours: str
    clients: int
    figure: Figure
    other: str
    bound: float
    at_most: bool = False

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"at {'most' if self.at_most else 'least'} {self.bound:g}"

    def measured(self, rows: Sequence[Row]) -> Summary | None:
        """Return the figure; None if this run lacks it."""
        ours, other = _find(rows, self.ours, self.clients), _find(rows, self.other, self.clients)
        if ours is None or (self.other and other is None):
            return None
        figures: list[float] = getattr(ours, self.figure)
        return ratios(figures, getattr(other, self.figure)) if other else summarize(figures)

    def holds(self, value: float) -> bool:
        """Tell whether a value is what was asked for."""
        return value <= self.bound if self.at_most else value >= self.bound


def _find(rows: Sequence[Row], name: str, clients: int) -> Row | None:
    for row in rows:
        if (row.contender, row.clients, row.hold) == (name, clients, 0.0):
            return row
    return None


_CLIENTS = ASKED_FOR[0]
_CYCLES = "Lock alone, cycles/s over"
_RATE = f"Lock, {_CLIENTS} clients, grants/s over"
ASKED = (
    Asked(f"{_CYCLES} two PINGs by redis-py", "Lock", 0, "rates", "ping", 0.85),
    Asked(f"{_CYCLES} two PINGs as bytes", "Lock", 0, "rates", "ping-bytes", 0.85),
    Asked(f"{_CYCLES} redis-py's Lock", "Lock", 0, "rates", "redis-py", 1),
    Asked(f"{_RATE} python-redis-lock", "Lock", _CLIENTS, "rates", "python-redis-lock", 1),
    Asked(f"{_RATE} redis-py's default", "Lock", _CLIENTS, "rates", "redis-py", 2),
    Asked(
        f"Lock, {_CLIENTS} clients, p99 wait over python-redis-lock",
        "Lock",
        _CLIENTS,
        "wait_p99",
        "python-redis-lock",
        0.5,
        at_most=True,
    ),
    Asked(f"FairLock, {_CLIENTS} clients, Jain index", "FairLock", _CLIENTS, "jain", "", 0.99),
)
