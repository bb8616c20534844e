"""What the command line asked for."""

from __future__ import annotations

from dataclasses import dataclass

ERROR_RATES = (1e-6, 1e-3)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of every suite; None is the suite's own choice.

    Attributes:
        quick: Less of everything, for a first look.
        repetitions: Slices of each contender.
        items: Items of one slice (speed), or offered by each process (winners, losses).
        error_rates: Error rates to measure at; suites that need one take the first.
        processes: Numbers of client processes.
        contenders: Names to restrict the run to; empty: all.
        seconds: Length of a slice in which clients meet (locks).
        holds: Milliseconds for which a lock is held (locks).
        url: A server to use in place of a throw-away one.
    """

    quick: bool = False
    repetitions: int | None = None
    items: int | None = None
    error_rates: tuple[float, ...] = ERROR_RATES
    processes: tuple[int, ...] = ()
    contenders: tuple[str, ...] = ()
    seconds: float | None = None
    holds: tuple[float, ...] = ()
    url: str | None = None
