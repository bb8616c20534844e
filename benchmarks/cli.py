"""The command line of the benchmarks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import click
import redis.exceptions

from bloomlock import BloomlockError

from . import locks, locks_tables, losses, show, speed, speed_tables, winners
from .machine import machine, versions
from .options import ERROR_RATES, Options
from .place import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    Suite = tuple[
        Callable[[Options, str, str], dict[str, Any]],
        Callable[[dict[str, Any]], Iterator[Table]],
    ]

SUITES: dict[str, Suite] = {
    "speed": (speed.run, speed_tables.tables),
    "winners": (winners.run, winners.tables),
    "losses": (losses.run, losses.tables),
    "locks": (locks.run, locks_tables.tables),
}
NAMES = sorted({entry.name for suite in (speed, winners, losses, locks) for entry in suite.ENTRIES})
RATE = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command()
@click.argument("suite", type=click.Choice(list(SUITES)), default="speed")
@click.option("--quick", is_flag=True, help="Less of everything: about a minute.")
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    help="Slices of each contender.  [default: speed 60, 8 with --quick; locks 60 alone, "
    "9 with 8 clients and no hold time, 2 with 64, else 3; 12, 5 and 2 with --quick]",
)
@click.option(
    "--items",
    type=click.IntRange(min=2),
    help="Items of a slice (speed: 250; 100 with --quick) or offered in all "
    "(winners: 20000, losses: 10000; a tenth with --quick). Locks: cycles of a slice alone (200).",
)
@click.option(
    "--error-rate",
    "error_rates",
    type=RATE,
    multiple=True,
    default=ERROR_RATES,
    show_default=True,
    help="Error rate of the filters; can be repeated. Only speed uses more than the first.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    multiple=True,
    help="Client processes; can be repeated.  [default: speed 1 and 4, winners 8, locks 1, 2, 8 "
    "and 64; 1 and 8 with --quick]",
)
@click.option(
    "--contender",
    "contenders",
    type=click.Choice(NAMES),
    multiple=True,
    help="Measure only this one; can be repeated.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Length of a slice with several clients on one lock (locks).  [default: 0.8; 0.4 "
    "with --quick; more where each of them could not hold it 4 times]",
)
@click.option(
    "--hold",
    "holds",
    type=click.FloatRange(min=0),
    multiple=True,
    help="Milliseconds for which a lock is held (locks); can be repeated.  [default: 0, 1 and 10]",
)
@click.option("--url", help="Server to use.  [default: a throw-away one on a unix socket]")
@click.option(
    "--json",
    "file",
    type=click.File("w", lazy=False),
    help="Write all figures of all repetitions to this file as well.",
)
def main(suite: str, file: TextIO | None, **chosen: Any) -> None:
    """Measure bloomlock against its peers, all on one server in one run.

    \b
    speed    calls per second and their ratios to SADD and to a bare round trip
    winners  8 processes offer the same items: how many were told "new"
    losses   5 % of the replies get lost: how many items are lost with them
    locks    acquire + release: alone, and with 1 to 64 clients on one lock (about six minutes)

    Prints what was measured; of locks also which of the figures asked of them hold and which are
    lost. The exit status is 0 all the same.
    """  # noqa: D301 - \b is click's mark for lines that must not be joined
    options = Options(**chosen)
    try:
        result = _run(suite, options)
    except (BloomlockError, redis.exceptions.RedisError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if file is not None:
        file.write(json.dumps(result, indent=1) + "\n")
    out = show.console()
    out.print(show.header(result["machine"], result["versions"]))
    for table in SUITES[suite][1](result):
        out.print()
        out.print(table)


def _run(suite: str, options: Options) -> dict[str, Any]:
    about = {"suite": suite, "options": asdict(options), "machine": machine()}
    with serving(options.url) as (url, prefix):
        about["versions"] = versions(url)
        return about | SUITES[suite][0](options, url, prefix)
