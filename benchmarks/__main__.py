"""The command line of the benchmarks: `python -m benchmarks`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import redis.exceptions

from bloomlock.errors import BloomlockError

from . import page, results, tables
from .place import serving
from .suite import Bench
from .suites import SUITES

_SUITES = "\b\n" + "\n".join(f"{name:9}{suite.about}" for name, suite in SUITES.items())


@click.group()
def main() -> None:
    """Measure bloomlock against its peers, and make a page and plots of what was measured."""


@main.command("run", epilog=_SUITES)
@click.argument("names", nargs=-1, metavar="[SUITE]...", type=click.Choice(list(SUITES)))
@click.option("--quick", is_flag=True, help="Less of everything, for a first look.")
@click.option("--repetitions", type=int, default=0, help="Slices of each contender.")
@click.option("--items", type=int, default=0, help="Items (pages, lines) of a slice.")
@click.option("--part", "parts", multiple=True, help="Measure only this part of a suite.")
@click.option("--contender", "contenders", multiple=True, help="Measure only this one.")
@click.option(
    "--results",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=results.FOLDER,
    help="Folder of the JSON files, one for each suite.  [default: benchmarks/results]",
)
def run_command(
    names: tuple[str, ...], folder: Path, parts: tuple[str, ...], **chosen: Any
) -> None:
    """Measure the SUITEs, or all, all contenders of each on one throw-away server in one run.

    Prints what was measured and writes it to a folder, over what is there of the same suites.
    Without --quick all of it takes an hour or so.
    """
    for name in names or SUITES:
        wanted = [part for part in SUITES[name].parts if not parts or part.name in parts]
        try:
            # Each has a server of its own: none pays for what another one left behind.
            with serving() as address:
                bench = Bench(address, **chosen)
                result = {
                    "suite": name,
                    "taken": datetime.now(UTC).isoformat(timespec="seconds"),
                    "quick": bench.quick,
                    "machine": results.machine(),
                    "versions": results.versions(address),
                }
                click.echo(f"\n## {name}\n")
                rows: list[results.Row] = []
                for part in wanted:
                    measured = list(part.measure(bench))
                    for table in tables.plain(measured, part.columns):
                        click.echo(tables.text(table))
                    rows += measured
        except (BloomlockError, redis.exceptions.RedisError, RuntimeError, OSError) as error:
            raise click.ClickException(str(error)) from error
        results.save(folder, result | {"missing": bench.missing}, rows)
        for line in bench.missing:
            click.echo(f"not measured: {line}")


@main.command("page")
def page_command() -> None:
    """Draw the results, and write tables and pictures between the markers of README and docs."""
    # PLC0415: matplotlib is slow to import, and part of the extra `bench`.
    from . import plots  # noqa: PLC0415

    found = results.load()
    for picture in plots.draw(found, page.FOLDER):
        click.echo(picture)
    for file in page.PAGES:
        file.write_text(page.filled(file, found), "utf-8")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
