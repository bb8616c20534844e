"""Duplicate lines of a file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from benchmarks.contenders import Entry
from benchmarks.jobs import items
from benchmarks.place import connect
from benchmarks.results import Row
from benchmarks.suite import Bench, Part, Suite
from benchmarks.tables import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
_DEDUP = f"{sys.executable} -m bloomlock.cli dedup {{file}}"
_SHARED = " --url {url} --name {name} --capacity {lines}"
COMMANDS = (
    Entry("dedup", "bloomlock dedup", _DEDUP),
    Entry("dedup-server", "bloomlock dedup, server", _DEDUP + _SHARED),
    Entry("awk", "awk '!seen[$0]++'", "awk !seen[$0]++ {file}"),
    Entry("mawk", "mawk '!seen[$0]++'", "mawk !seen[$0]++ {file}"),
    Entry("sort", "sort -u", "sort -u {file}"),
)
MEASURED = """\
import resource, subprocess, sys, time
start = time.monotonic()
with open(sys.argv[1], "wb") as out:
    subprocess.run(sys.argv[2:], stdout=out, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.monotonic() - start, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""Runs a command and prints seconds, processor seconds and the largest resident size.

A process starts its life with the largest memory of the one that made it; this one is small.
"""
RSS_BYTES = 1 if sys.platform == "darwin" else 1024


def dedup(bench: Bench) -> Iterable[Row]:
    lines = bench.count(5_000_000, 500_000)
    there = [entry for entry in bench.choose(COMMANDS) if which(entry.made_by.split()[0])]
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as made, connect(bench.url) as client:
        folder = Path(made)
        new = _write(folder / "lines", lines)
        (folder / "empty").touch()
        table = f"{lines:,} lines, {new:,} different"
        rows = {entry: Row.of("dedup", table, entry) for entry in there}
        for _ in bench.slices(3, 1):
            for entry, row in rows.items():
                found = []
                for file in ("empty", "lines"):
                    before = client.info("memory")["used_memory"]
                    given = {"url": bench.url, "name": file, "lines": lines}
                    command = entry.made_by.format(file=folder / file, **given).split(" ")
                    done = subprocess.run(
                        [sys.executable, "-c", MEASURED, str(folder / "out"), *command],
                        env={**os.environ, "LC_ALL": "C", "PYTHONPATH": str(ROOT)},
                        stdout=subprocess.PIPE,
                        check=True,
                    )
                    printed = map(float, done.stdout.split())
                    taken = client.info("memory")["used_memory"] - before
                    found.append((*printed, max(0, taken) * ("{url}" in entry.made_by)))
                # What a process has anyway is taken off.
                (_, _, idle, _), (seconds, cpu, peak, server) = found
                # At least a byte: a few lines fit into what any process has.
                grown = max(1.0, (peak - idle) * RSS_BYTES + server)
                written = (folder / "out").read_bytes().count(b"\n")
                cost = {"cpu": 1e6 * cpu / lines, "memory": grown / new}
                row.note(rate=lines / seconds, written=written, **cost)
                client.flushall()
        return rows.values()


def _write(path: Path, lines: int) -> int:
    """Write the lines, and return how many are different: half of them."""
    distinct, chance = items("dedup", lines - lines // 2), random.Random(0)
    text = distinct + chance.choices(distinct, k=lines // 2)
    chance.shuffle(text)
    path.write_text("\n".join([*text, ""]), "ascii")
    return len(distinct)


COLUMNS = (
    Column("lines/s", "rate"),
    Column("/ awk", "rate", "awk", "spread"),
    Column("CPU µs/line", "cpu"),
    Column("bytes/new line", "memory"),
    Column("/ awk", "memory", "awk", "spread"),
    Column("lines written", "written"),
)
SUITE = Suite(
    "dedup",
    "duplicate lines of a file, beside awk and sort",
    (Part("dedup", dedup, COLUMNS),),
)
