"""The command line: duplicate lines of a file, by `bloomlock dedup`, awk and sort.

Half of the lines are repeats, of lines anywhere before them. All write the result to a file, and
sort and awk compare bytes (`LC_ALL=C`), as is fastest for them. Memory is the largest resident size
of the process, less that of the same command with an empty file, for each new line; with a server,
what the server's own memory grew by is added.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from benchmarks import show
from benchmarks.figures import ratios, summarize
from benchmarks.place import connect
from benchmarks.workloads import fingerprints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from benchmarks.options import Options

ABOUT = "duplicate lines of a file, beside awk and sort"
LINES, QUICK_LINES = 5_000_000, 500_000
ROOT = Path(__file__).parents[2]
MEASURED = Path(__file__).parents[1] / "measured.py"
_DEDUP = (sys.executable, "-m", "bloomlock.cli", "dedup", "{file}")
_SHARED = ("--url", "{url}", "--name", "{name}", "--capacity", "{capacity}")
COMMANDS: dict[str, tuple[str, ...]] = {
    "bloomlock dedup": _DEDUP,
    "bloomlock dedup, server": (*_DEDUP, *_SHARED),
    "awk '!seen[$0]++'": ("awk", "!seen[$0]++", "{file}"),
    "mawk '!seen[$0]++'": ("mawk", "!seen[$0]++", "{file}"),
    "sort -u": ("sort", "-u", "{file}"),
}


@dataclass(slots=True)
class Row:
    """All repetitions of one command; lists have a figure for each.

    Attributes:
        title: The command.
        lines: Lines of the file.
        new: Different ones.
        rates: Lines per second.
        memory: Bytes for each new line.
        cpu: Microseconds of processor time of the command for each line.
        written: Lines it wrote; a filter may write fewer, at its error rate.
    """

    title: str
    lines: int
    new: int
    rates: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    written: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    cpu: float
    peak: int


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Run each command in turn; return what was measured as plain data."""
    lines = options.items or (QUICK_LINES if options.quick else LINES)
    there = {title: words for title, words in COMMANDS.items() if which(words[0])}
    missing = [{"title": t, "why": "not installed"} for t in COMMANDS if t not in there]
    repetitions = options.slices(3, 1)
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as folder:
        place = _Place(Path(folder), url, prefix, lines)
        new = place.write()
        rows = {title: Row(title, lines, new) for title in there}
        with show.progress(repetitions * len(rows)) as step:
            for _ in range(repetitions):
                for title, words in there.items():
                    step(title)
                    place.measure(rows[title], words)
    return {
        "programs": _programs(),
        "missing": missing,
        "rows": [asdict(row) for row in rows.values()],
    }


class _Place:
    """The files, and the server, that the commands work on."""

    def __init__(self, folder: Path, url: str, prefix: str, lines: int) -> None:
        self._file, self._empty, self._out = folder / "lines", folder / "empty", folder / "out"
        self._url, self._prefix, self._lines = url, prefix, lines
        self._number = 0

    def write(self) -> int:
        """Write the lines; return how many are different."""
        chosen = random.Random(0)
        new = self._lines // 2 + self._lines % 2
        distinct = fingerprints("dedup", new)
        met = 0
        with self._file.open("w", encoding="ascii") as file:
            for number in range(self._lines):
                # As many new lines remain as repeats: each is as likely, the first is new.
                left = self._lines - number
                if not met or chosen.random() * left < new - met:
                    file.write(distinct[met] + "\n")
                    met += 1
                else:
                    file.write(distinct[chosen.randrange(met)] + "\n")
        self._empty.touch()
        return met

    def measure(self, row: Row, words: tuple[str, ...]) -> None:
        idle = self._run(words, self._empty)
        with connect(self._url) as client:
            client.config_resetstat()
            before: Any = client.info("memory")
            done = self._run(words, self._file)
            after: Any = client.info("memory")
            self._forget(client)
        server = max(0, after["used_memory"] - before["used_memory"]) if _asks(words) else 0
        row.rates.append(round(row.lines / done.seconds, 1))
        row.cpu.append(round(1e6 * done.cpu / row.lines, 4))
        # At least a byte: a few lines fit into what any process has anyway.
        grown = max(1, done.peak - idle.peak + server)
        row.memory.append(round(grown / row.new, 6))
        with self._out.open("rb") as file:
            row.written = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))

    def _run(self, words: tuple[str, ...], file: Path) -> _Run:
        self._number += 1
        given = {
            "file": str(file),
            "capacity": str(self._lines),
            "url": self._url,
            "name": f"{self._prefix}{self._number}",
        }
        command = [word.format(**given) for word in words]
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(MEASURED), str(self._out), *command],
            cwd=ROOT,
            env={**os.environ, "LC_ALL": "C", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with status {done.returncode}")
        seconds, cpu, peak = done.stdout.split()
        return _Run(float(seconds), float(cpu), int(peak))

    def _forget(self, client: Any) -> None:
        for key in client.scan_iter(match=f"*{self._prefix}*", count=1000):
            client.unlink(key)


def _asks(words: tuple[str, ...]) -> bool:
    return "{url}" in words


def _programs() -> dict[str, str]:
    """Return what the other programs say they are."""
    versions = {}
    for name, option in {"awk": "--version", "mawk": "-Wversion", "sort": "--version"}.items():
        if which(name):
            done = subprocess.run([name, option], capture_output=True, text=True, check=False)
            versions[name] = (done.stdout or done.stderr).partition("\n")[0]
    return versions


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make the table."""
    rows = [Row(**row) for row in result["rows"]]
    if not rows:
        return
    awk = next((row for row in rows if row.title.startswith("awk")), None)
    columns = ["", "lines/s", "/ awk", "CPU µs/line", "bytes/new line", "/ awk", "lines written"]
    absent = [[each["title"], "not available", *[""] * 5] for each in result["missing"]]
    made = show.table(
        f"{rows[0].lines:,} lines, {rows[0].new:,} different",
        columns,
        [*(_line(row, awk) for row in rows), *absent],
    )
    programs = (f"{name}: {version}" for name, version in result["programs"].items())
    made.caption, made.caption_justify = "\n".join(programs), "left"
    yield made


def _line(row: Row, awk: Row | None) -> list[str]:
    return [
        row.title,
        f"{summarize(row.rates).median:,.0f}",
        show.ratio(ratios(row.rates, awk.rates)) if awk else "",
        f"{summarize(row.cpu).median:.2f}",
        f"{summarize(row.memory).median:.1f}",
        show.ratio(ratios(row.memory, awk.memory)) if awk else "",
        f"{row.written:,}",
    ]
