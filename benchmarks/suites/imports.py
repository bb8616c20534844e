"""What the first import of bloomlock takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contenders import Entry
from benchmarks.results import Row
from benchmarks.suite import Bench, suite_of
from benchmarks.tables import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
TABLE = "an import in a new process"
STATEMENTS = (
    Entry("bloomlock", "import bloomlock", ""),
    Entry("filter", "from bloomlock import BloomFilter", ""),
    Entry("lock", "from bloomlock import Lock", ""),
    Entry("command", "import bloomlock.cli", ""),
    Entry("redis", "import redis", ""),
)
TIMED = """\
import sys, time
start = time.perf_counter()
{}
print(1e3 * (time.perf_counter() - start), len(sys.modules))
"""


def measure(bench: Bench) -> Iterable[Row]:
    """Import each in turn; a first round, which is not counted, makes the bytecode."""
    rows = {entry: Row("imports", TABLE, entry) for entry in bench.choose(STATEMENTS)}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for number in range(len(bench.slices(15, 5)) + 1):
        for entry, row in rows.items():
            bench.step(entry.title)
            command = [sys.executable, "-c", TIMED.format(entry.title)]
            done = subprocess.run(command, cwd=ROOT, env=kept, stdout=subprocess.PIPE, check=True)
            taken, modules = map(float, done.stdout.split())
            if number:
                row.note(ms=taken, modules=modules)
    return rows.values()


SUITE = suite_of(
    "imports",
    "time and modules of the first import",
    measure,
    Column("ms", "ms", form="spread"),
    Column("/ redis", "ms", "redis", "spread"),
    Column("modules", "modules"),
)
