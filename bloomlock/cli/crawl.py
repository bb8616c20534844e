"""`bloomlock crawl`: several Scrapy processes crawl one site, and nothing is fetched twice."""

from __future__ import annotations

import importlib.util
import json
import signal
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click
import redis.exceptions
from rich.console import Console

from bloomlock import BloomlockError, ConfigurationError

from .errors import Failure, sentence, warn
from .options import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_ext.crawl.report import Report

_INTERRUPTED = 130
_WIDE = 10_000
"""Columns of what is no terminal: nothing is cut there, and no line is broken."""
_STRATEGIES = ("atomic", "lua", "transaction", "lock", "pipeline")


@click.command(
    "crawl",
    epilog=examples(
        "bloomlock crawl",
        "bloomlock crawl build/html --workers 2",
        "bloomlock crawl https://example.org/ --name example --max-pages 500",
    ),
)
@click.argument("source", required=False, metavar="[URL|FOLDER]")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=4, show_default=True, help="Scrapy processes."
)
@click.option("--name", help="Go on with the filter (and queue) of this name, and keep it.")
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    help="Distinct links to reckon with.  [default: twice the files of a folder; 100000 for a URL]",
)
@click.option(
    "--error-rate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of new links taken for seen ones at that fill.  [default: 1e-06]",
)
@click.option("--url", help="Redis URL.  [default: BLOOMLOCK_URL, REDIS_URL, the embedded server]")
@click.option("--strategy", type=click.Choice(_STRATEGIES), default="atomic", show_default=True)
@click.option(
    "--max-pages",
    type=click.IntRange(min=0),
    help="Stop after about so many pages; 0: never.  [default: 10000 for a URL, else 0]",
)
@click.option(
    "--keep/--clear",
    default=None,
    help="Keep the filter at the end, or delete it.  [default: keep with --name]",
)
@click.option(
    "--robots/--no-robots", default=None, help="Obey robots.txt.  [default: for a URL, yes]"
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    default=8,
    show_default=True,
    help="Pages each process fetches at the same time.",
)
@click.option(
    "--delay",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Seconds each process waits between two pages.  [default: for a URL, as its answers take]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, 600, min_open=True),
    default=20.0,
    show_default=True,
    help="Longest wait for one page, in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def crawl_command(context: click.Context, /, *, as_json: bool, **options: Any) -> None:
    """Crawl a site with several Scrapy processes that share one filter and one queue.

    Without an argument the site is the standard library's documentation, rendered by pydoc and
    served on this machine. A FOLDER of HTML is served here too. Of a URL only pages of the same
    host are fetched.

    The exit status is 0 if no page was fetched twice, none was missed beyond the error rate, and
    no worker failed; 1 if not, or if the site or the server cannot be reached; 2 if an argument is
    not usable; 130 after Ctrl-C.
    """
    _need_scrapy()
    with _terminated_like_interrupted():
        try:
            report = _run(options)
        except KeyboardInterrupt:
            context.exit(_INTERRUPTED)
        except ConfigurationError as error:
            raise Failure(sentence(str(error))) from error
        except (BloomlockError, redis.exceptions.RedisError, OSError, RuntimeError) as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({**asdict(report), "ok": report.ok}, indent=2))
    else:
        _print(report)
    for failure in report.failures:
        warn(failure)
    if report.interrupted:
        context.exit(_INTERRUPTED)
    context.exit(0 if report.ok else 1)


def _need_scrapy() -> None:
    """Say in one sentence what to install where Scrapy is missing."""
    if not all(importlib.util.find_spec(name) for name in ("scrapy", "scrapy_redis")):
        raise click.ClickException(
            "crawling needs Scrapy and scrapy-redis: pip install 'bloomlock[scrapy]'"
        )


def _run(options: dict[str, Any]) -> Report:
    """Run the job, with a live line on standard error where that is a terminal."""
    # PLC0415: these import Scrapy, which may be missing and takes its time.
    from scrapy_ext.crawl.job import JobOptions, run  # noqa: PLC0415
    from scrapy_ext.crawl.show import live  # noqa: PLC0415

    with live(Console(stderr=True)) as show:
        return run(JobOptions(**options), show)


def _print(report: Report) -> None:
    """Print the table to standard output."""
    from scrapy_ext.crawl.show import table  # noqa: PLC0415 - as above

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(table(report))


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Make SIGTERM end the workers and clean up like Ctrl-C."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
