"""The command line of the benchmarks."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import redis.exceptions

from bloomlock.errors import BloomlockError

from . import page, results, tables
from .place import serving
from .suite import Bench
from .suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
_SUITES = "\b\n" + "\n".join(f"{name:9}{suite.about}" for name, suite in SUITES.items())
_names = click.argument("names", nargs=-1, metavar="[SUITE]...", type=click.Choice(list(SUITES)))
_results = click.option(
    "--results",
    "folder",
    type=FOLDER,
    default=results.FOLDER,
    help="Folder of the JSON files, one for each suite.  [default: benchmarks/results]",
)


@click.group()
def main() -> None:
    """Measure bloomlock against its peers, and make a page and plots of what was measured."""


@main.command("run", epilog=_SUITES)
@_names
@click.option("--quick", is_flag=True, help="Less of everything, for a first look.")
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    help="Slices of each contender, in place of each part's own number.",
)
@click.option(
    "--items",
    type=click.IntRange(min=2),
    help="Items (pages, lines) of a slice, in place of each part's own number.",
)
@click.option(
    "--part", "parts", multiple=True, help="Measure only this part of a suite; can be repeated."
)
@click.option(
    "--contender", "contenders", multiple=True, help="Measure only this one; can be repeated."
)
@click.option("--url", help="Server to use.  [default: a throw-away one on a unix socket]")
@click.option(
    "--module",
    type=FILE,
    help="Module for the throw-away server; RedisBloom, if the extra `modules` is there.",
)
@click.option("--server", "program", type=FILE, help="Program of the throw-away server.")
@_results
def run_command(names: tuple[str, ...], folder: Path, **chosen: Any) -> None:
    """Measure the SUITEs, or all, all contenders of each on one server in one run.

    Prints what was measured and writes it to a folder, over what is there of the same suites.
    Without --quick all of it takes an hour or so.
    """
    parts, where = chosen.pop("parts"), [chosen.pop(key) for key in ("url", "module", "program")]
    where[1] = where[1] and where[1].absolute()
    chosen |= {key: chosen[key] or 0 for key in ("repetitions", "items")}
    for name in dict.fromkeys(names or SUITES):
        suite = SUITES[name]
        # Each has a server of its own: none pays for what another one left behind.
        with _failures(), serving(*where) as (url, prefix):
            bench = Bench(url, prefix, **chosen, step=_step)
            result = {
                "suite": name,
                "taken": datetime.now(UTC).isoformat(timespec="seconds"),
                "quick": bench.quick,
                "machine": results.machine(),
                "versions": results.versions(url),
            }
            rows = [
                row
                for part in suite.parts
                if not parts or part.name in parts
                for row in part.measure(bench)
            ]
        _step("")
        results.save(folder, result | {"missing": bench.missing}, rows)
        _show(name, rows, bench.missing)


@main.command("page")
@_results
@click.option(
    "--page",
    "files",
    type=FILE,
    multiple=True,
    default=page.PAGES,
    help="A page; can be repeated.  [default: README.md and those of docs]",
)
@click.option("--pictures", type=FOLDER, default=page.FOLDER, help="Where the pictures are.")
def page_command(folder: Path, files: tuple[Path, ...], pictures: Path) -> None:
    """Write tables and pictures of the results between the markers of README and docs."""
    for file in files:
        file.write_text(page.filled(file, _load(folder), pictures), "utf-8")


@main.command("plot")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=FOLDER, default=page.FOLDER, help="Where the pictures go.")
def plot_command(files: tuple[Path, ...], out: Path) -> None:
    """Draw SVG pictures, light and dark, of the results in FILES; a folder is all in it."""
    # PLC0415: matplotlib is slow to import, and part of the extra `bench`.
    from . import plots  # noqa: PLC0415

    for picture in plots.draw(results.load(*files), out):
        click.echo(picture)


def _show(name: str, rows: list[results.Row], missing: list[str]) -> None:
    click.echo(f"\n## {name}\n")
    for part in SUITES[name].parts:
        for table in tables.plain((row for row in rows if row.part == part.name), part.columns):
            click.echo(tables.text(table))
    for line in missing:
        click.echo(f"not measured: {line}")


def _load(folder: Path) -> dict[str, results.Result]:
    found = results.load(folder)
    if not found:
        raise click.ClickException(
            f"{folder} has no results; measure with: python -m benchmarks run"
        )
    return found


def _step(what: str) -> None:
    """Say what is measured now, where someone looks."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{what}")
        sys.stderr.flush()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (BloomlockError, redis.exceptions.RedisError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
