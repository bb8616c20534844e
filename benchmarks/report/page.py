"""docs/benchmarks.md."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks import show
from benchmarks.suites import SUITES

from .asked import asked_tables
from .plots import PICTURES, draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table

    Result = dict[str, Any]

HEAD = """\
# Benchmarks

Made by `python -m benchmarks report` from the results of `python -m benchmarks run`; the figures
of every repetition are in `benchmarks/results/`. Each contender is a process of its own, all of a
suite run in one go on one server, in short slices that take turns, and two of them are compared
within one repetition: figures depend on the machine, the ratios are what counts. Ratios are rates
over rates: above 1 is faster. Brackets hold the least and the greatest of all repetitions.

`/ PING`, `/ SADD` and `/ BF` are the rate over that of a bare round trip by redis-py, of SADD or
SISMEMBER, and of RedisBloom's BF.ADD, BF.EXISTS or BF.MADD. p50 and p99 are of calls, client and
server are microseconds of processor time for an item, `B to` and `B from` are bytes for an item
that the server read and wrote, and wrong are the answers an exact set would not have given.
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
    yield "## What is asked, and what came out\n"
    for table in asked_tables(found):
        yield markdown(table)
    first = _conditions(next(iter(ordered.values())))
    for name, result in ordered.items():
        yield f"## {name}\n"
        yield f"{inspect.getdoc(SUITES[name].module)}\n"
        if _conditions(result) != first:
            yield from _measured_on(result)
        if name in pictures:
            yield f"{pictures[name]}\n"
        yield "<details><summary>Tables</summary>\n"
        for table in SUITES[name].tables(result):
            yield f"**{table.title}**\n"
            yield markdown(table)
            if table.caption:
                yield f"{table.caption}\n"
        yield "</details>\n"


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
