"""docs/benchmarks.md."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks import show
from benchmarks.suites import SUITES

from .plots import PICTURES, draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table

    Result = dict[str, Any]

HEAD = """\
# Benchmarks

`python -m benchmarks run` measures, `python -m benchmarks report` makes this page of the results,
and `python -m benchmarks show` prints their full tables: latencies, client time, bytes on the wire,
wrong answers and spreads. The figures of every repetition are in `benchmarks/results/`.

Each contender is a process of its own. All contenders of a suite run on one server, in short slices
that take turns, and two of them are compared within one repetition. Figures depend on the machine,
so the tables have ratios: the median rate over the rate of the contender whose cell is 1.00. Above
1 is faster. In brackets are the microseconds of the server's processor for an item.
"""


def write_report(found: dict[str, Result], docs: Path) -> Iterator[str]:
    """Write the page and its pictures.

    Args:
        found: Results by the names of their suites.
        docs: The folder for the page; pictures go into `benchmarks` in it.

    Yields:
        What was written, as a path.
    """
    pictures = {}
    if find_spec("matplotlib") is not None:
        for picture in PICTURES:
            if picture.suite in found:
                file = docs / "benchmarks" / f"{picture.suite}.svg"
                file.parent.mkdir(parents=True, exist_ok=True)
                draw(picture, found[picture.suite]["rows"], file)
                pictures[picture.suite] = f"![{picture.about}](benchmarks/{file.name})"
                yield str(file)
    page = docs / "benchmarks.md"
    docs.mkdir(parents=True, exist_ok=True)
    parts = list(_parts(found, pictures))
    page.write_text("\n".join(parts).rstrip() + "\n", "utf-8")
    yield str(page)


def _parts(found: dict[str, Result], pictures: dict[str, str]) -> Iterator[str]:
    ordered = {name: found[name] for name in SUITES if name in found}
    yield HEAD
    yield from _measured_on(next(iter(ordered.values())))
    first = _conditions(next(iter(ordered.values())))
    for name, result in ordered.items():
        yield f"## {name}\n"
        yield f"{inspect.getdoc(SUITES[name].module)}\n"
        if _conditions(result) != first:
            yield from _measured_on(result)
        if name in pictures:
            yield f"{pictures[name]}\n"
        for table in SUITES[name].overview(result):
            yield f"**{table.title}**\n"
            yield markdown(table)
            if table.caption:
                yield f"{table.caption}\n"


def _conditions(result: Result) -> tuple[Any, ...]:
    machine = {name: value for name, value in result["machine"].items() if name != "load"}
    return (machine, result["versions"], result["options"], result["taken"][:10])


def _measured_on(result: Result) -> Iterator[str]:
    quick = ", `--quick`" if result["options"]["quick"] else ""
    yield f"Measured {result['taken'][:10]}{quick}.\n"
    yield f"```\n{show.header(result['machine'], result['versions'])}\n```\n"


def markdown(table: Table) -> str:
    """Write a table as Markdown."""
    heads = [_plain(column.header) for column in table.columns]
    cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *map(list, zip(*cells, strict=True))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _plain(cell: object) -> str:
    return str(cell).replace("|", "\\|").replace("\n", " ")
