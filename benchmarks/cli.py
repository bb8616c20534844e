"""The command line of the benchmarks."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import redis.exceptions

from bloomlock.errors import BloomlockError

from . import results, show, suites
from .options import ERROR_RATES, Options
from .place import serving
from .report import write_report
from .results import machine, versions
from .suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

RATE = click.FloatRange(0, 1, min_open=True, max_open=True)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
DOCS = Path(__file__).parent.parent / "docs"

_names = click.argument(
    "names", nargs=-1, metavar="[SUITE]...", type=click.Choice(list(SUITES)), required=False
)
_results = click.option(
    "--results",
    "folder",
    type=FOLDER,
    default=results.FOLDER,
    help="Folder of the JSON files, one for each suite.  [default: benchmarks/results]",
)
_docs = click.option(
    "--docs", type=FOLDER, default=DOCS, help="Where benchmarks.md goes.  [default: docs]"
)
_OPTIONS = (
    click.option("--quick", is_flag=True, help="Less of everything, for a first look."),
    click.option(
        "--repetitions",
        type=click.IntRange(min=1),
        help="Slices of each contender, in place of each suite's own number.",
    ),
    click.option(
        "--items",
        type=click.IntRange(min=2),
        help="Items of a slice, offered in all (winners, losses), lines (dedup) or cycles (locks), "
        "in place of each suite's own number.",
    ),
    click.option(
        "--error-rate",
        "error_rates",
        type=RATE,
        multiple=True,
        default=ERROR_RATES,
        show_default=True,
        help="Error rate of the filters; can be repeated. Only batch uses more than the first.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 64),
        multiple=True,
        help="Client processes; can be repeated (clients, winners, locks).",
    ),
    click.option(
        "--contender",
        "contenders",
        type=click.Choice(suites.contender_names()),
        multiple=True,
        help="Measure only this one; can be repeated.",
    ),
    click.option(
        "--seconds",
        type=click.FloatRange(min=0, min_open=True),
        help="Length of a slice with several clients on one lock (locks).  [default: 0.8; 0.4 "
        "with --quick; more where each of them could not hold it 4 times]",
    ),
    click.option(
        "--hold",
        "holds",
        type=click.FloatRange(min=0),
        multiple=True,
        help="Milliseconds for which a lock is held (locks); can be repeated.  "
        "[default: 0, 1 and 10]",
    ),
    click.option(
        "--site",
        "sites",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        multiple=True,
        help="Folder of HTML whose links are replayed; can be repeated.  [default: the pages of "
        "the standard library, and of four packages]",
    ),
    click.option("--url", help="Server to use.  [default: a throw-away one on a unix socket]"),
    click.option(
        "--module",
        type=FILE,
        help="Module for the throw-away server; RedisBloom, if the extra is there.",
    ),
    click.option("--server", "program", type=FILE, help="Program of the throw-away server."),
    _results,
)


def _measuring(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Measure bloomlock against its peers, and make a page of what was measured."""


_SUITES = "\b\n" + "\n".join(f"{name:9} {suite.ABOUT}" for name, suite in SUITES.items())


@main.command("run", epilog=_SUITES)
@_names
@_measuring
def run_command(names: tuple[str, ...], **chosen: Any) -> None:
    """Measure the SUITEs, or all, all contenders of each on one server in one run.

    Prints what was measured and writes it to a folder, over what is there of the same suites.
    """
    _measure(names or SUITES, **chosen)


@main.command("page", epilog=_SUITES)
@_docs
@_measuring
def page_command(docs: Path, *, folder: Path, **chosen: Any) -> None:
    """Measure everything and write docs/benchmarks.md: an hour or so, ten minutes with --quick."""
    _measure(SUITES, folder=folder, **chosen)
    click.echo(write_report(_load(folder), docs))


def _measure(
    names: Iterable[str],
    *,
    url: str | None,
    module: Path | None,
    program: Path | None,
    folder: Path,
    **chosen: Any,
) -> None:
    options = Options(**chosen)
    out = show.console()
    for name in dict.fromkeys(names):
        # Each has a server of its own: none pays for what another one left behind.
        with _failures(), serving(url, module and module.absolute(), program) as (where, prefix):
            result = _about(name, options, where)
            out.rule(f"{name}: {SUITES[name].ABOUT}")
            out.print(show.header(result["machine"], result["versions"]))
            result |= suites.run(name, options, where, prefix)
        results.save(folder, result)
        _print(result)


@main.command("show")
@_names
@_results
def show_command(names: tuple[str, ...], folder: Path) -> None:
    """Print all tables of the results of the SUITEs, or of all suites."""
    found = _load(folder)
    for name in names or found:
        if name not in found:
            raise click.ClickException(f"{folder} has no result of {name}")
        _print(found[name])


@main.command("report")
@_results
@_docs
def report_command(folder: Path, docs: Path) -> None:
    """Write docs/benchmarks.md from the results."""
    click.echo(write_report(_load(folder), docs))


def _print(result: dict[str, Any]) -> None:
    out = show.console()
    for table in suites.tables(result):
        out.print()
        out.print(table)


def _load(folder: Path) -> dict[str, dict[str, Any]]:
    found = results.load(folder)
    if not found:
        raise click.ClickException(
            f"{folder} has no results; measure with: python -m benchmarks run"
        )
    return found


def _about(name: str, options: Options, url: str) -> dict[str, Any]:
    return {
        "suite": name,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": options.plain(),
        "machine": machine(),
        "versions": versions(url),
    }


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (BloomlockError, redis.exceptions.RedisError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
