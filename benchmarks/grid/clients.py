"""From 1 to 8 client processes on one server.

Rates are what all of them did together. One client leaves the server idle while it encodes, and
itself waits for the round trip; more of them fill these gaps until the server's one thread, or the
machine's processors, are busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import contenders

from . import engine
from .case import Case, Stage

if TYPE_CHECKING:
    from benchmarks.options import Options

ENTRIES = (
    *contenders.OURS,
    contenders.BLOCKED[0],
    contenders.SADD,
    contenders.REDIS_BLOOM,
    contenders.PING,
)
PROCESSES = (1, 2, 4, 8)
BATCH = 1000


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    cases = (
        Case("add", options.offered(250)),
        Case("add_many", options.offered(3 * BATCH, BATCH), batch=BATCH),
    )
    stage = Stage(
        ENTRIES,
        cases,
        options.slices(9, 3),
        error_rate=options.error_rates[0],
        processes=options.processes or ((1, 4) if options.quick else PROCESSES),
    )
    return engine.run([stage], options, url, prefix)
