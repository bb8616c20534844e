"""docs/benchmarks.md, made of the results."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from . import show
from .suites import SUITES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table

    Result = dict[str, Any]

HEAD = """\
# Benchmarks

`python -m benchmarks page` measures everything and makes this page; `run SUITE` measures one suite,
`report` makes the page of the results there are, and `show` prints their full tables: latencies,
bytes on the wire, wrong answers and spreads. The figures of every repetition are in
`benchmarks/results/`.

Each contender is a process of its own. All contenders of a suite run on one server, in short slices
that take turns, and two of them are compared within one repetition. Figures depend on the machine,
so rates are ratios: the median over the rate of the contender whose cell is 1.00. Above 1 is
faster. Beside them stands what an item takes of the processors, which is what a busy server pays.
"""


def write_report(found: dict[str, Result], docs: Path) -> Path:
    """Write the page from the results by the names of their suites; return its path."""
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / "benchmarks.md"
    page.write_text("\n".join(_parts(found)).rstrip() + "\n", "utf-8")
    return page


def _parts(found: dict[str, Result]) -> Iterator[str]:
    ordered = {name: found[name] for name in SUITES if name in found}
    yield HEAD
    yield from _measured_on(next(iter(ordered.values())))
    first = _conditions(next(iter(ordered.values())))
    for name, result in ordered.items():
        yield f"## {name}\n"
        yield f"{inspect.getdoc(SUITES[name])}\n"
        if _conditions(result) != first:
            yield from _measured_on(result)
        for table in tables(result, short=True):
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
