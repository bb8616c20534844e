"""From 1 to 8 client processes on one server.

Rates are what all of them did together. One client leaves the server idle while it encodes, and
itself waits for the round trip; more of them fill these gaps until the server's one thread, or the
machine's processors, are busy. `busy` has the server alone at 50 connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "from 1 to 8 client processes"
ENTRIES = (*c.OURS, c.SADD, c.EXACT, c.REDIS_BLOOM, c.PING)
PROCESSES = (1, 2, 4, 8)
BATCH = 1000


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    cases = (
        Case("add", options.offered(250)),
        Case("add_many", options.offered(3 * BATCH, BATCH), batch=BATCH),
    )
    yield Stage(
        ENTRIES,
        cases,
        options.slices(9, 3),
        error_rate=options.error_rates[0],
        processes=options.processes or ((1, 4) if options.quick else PROCESSES),
    )
