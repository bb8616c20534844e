"""Duplicate lines of a file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import Entry
from benchmarks.place import connect, forget
from benchmarks.results import Row
from benchmarks.suite import Bench, suite_of
from benchmarks.tables import Column
from benchmarks.workloads import items

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
import os, sys, time
out, *command = sys.argv[1:]
opened = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
start = time.monotonic()
actions = [(os.POSIX_SPAWN_DUP2, opened, 1)]
process = os.posix_spawnp(command[0], command, os.environ, file_actions=actions)
_, status, used = os.wait4(process, 0)
seconds = time.monotonic() - start
if status:
    sys.exit(os.waitstatus_to_exitcode(status))
print(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""Runs a command and prints seconds, processor seconds and the largest resident size.

A process starts its life with the largest memory of the one that made it; this one is small.
"""
RSS_BYTES = 1 if sys.platform == "darwin" else 1024


def measure(bench: Bench) -> Iterable[Row]:
    lines = bench.count(5_000_000, 500_000)
    there = [entry for entry in bench.choose(COMMANDS) if which(entry.made_by.split()[0])]
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as made:
        folder = Path(made)
        new = _write(folder / "lines", lines)
        (folder / "empty").touch()
        table = f"{lines:,} lines, {new:,} different"
        rows = {entry: Row("dedup", table, entry) for entry in there}
        for _ in bench.slices(3, 1):
            for entry, row in rows.items():
                bench.step(entry.title)
                row.note(**_measured(entry, folder, bench, lines, new))
                with connect(bench.url) as client:
                    forget(client, f"*{bench.prefix}")
        return rows.values()


def _write(path: Path, lines: int) -> int:
    """Write the lines; return how many are different: half, each as likely to be anywhere."""
    chosen, new, met = random.Random(0), lines // 2 + lines % 2, 0
    distinct = items("dedup", new)
    with path.open("w", encoding="ascii") as file:
        for number in range(lines):
            if not met or chosen.random() * (lines - number) < new - met:
                file.write(distinct[met] + "\n")
                met += 1
            else:
                file.write(distinct[chosen.randrange(met)] + "\n")
    return met


def _measured(entry: Entry, folder: Path, bench: Bench, lines: int, new: int) -> dict[str, float]:
    found = []
    with connect(bench.url) as client:
        for file in ("empty", "lines"):
            before: Any = client.info("memory")
            given = {"url": bench.url, "name": f"{bench.prefix}{file}", "lines": lines}
            command = entry.made_by.format(file=folder / file, **given).split(" ")
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", MEASURED, str(folder / "out"), *command],
                cwd=ROOT,
                env={**os.environ, "LC_ALL": "C", "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{entry.title} ended with status {done.returncode}")
            after: Any = client.info("memory")
            found.append(
                (*map(float, done.stdout.split()), after["used_memory"] - before["used_memory"])
            )
    (_, _, idle, _), (seconds, cpu, peak, server) = found
    # At least a byte: a few lines fit into what any process has anyway.
    grown = max(1.0, (peak - idle) * RSS_BYTES + max(0, server) * ("{url}" in entry.made_by))
    written = (folder / "out").read_bytes().count(b"\n")
    cost = {"cpu": 1e6 * cpu / lines, "memory": grown / new}
    return {"rate": lines / seconds, "written": written, **cost}


SUITE = suite_of(
    "dedup",
    "duplicate lines of a file, beside awk and sort",
    measure,
    Column("lines/s", "rate"),
    Column("/ awk", "rate", "awk", "spread"),
    Column("CPU µs/line", "cpu"),
    Column("bytes/new line", "memory"),
    Column("/ awk", "memory", "awk", "spread"),
    Column("lines written", "written"),
)
