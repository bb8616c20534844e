"""`bloomlock crawl`: several Scrapy processes crawl one site, and nothing is fetched twice."""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click
import redis.exceptions

from bloomlock.errors import BloomlockError, ConfigurationError

from .errors import NO, SIGNALLED, Failure, sentence, warn
from .options import (
    DEFAULT_ERROR_RATE,
    error_rate_option,
    example,
    json_option,
    url_option,
    value_option,
)
from .output import print_json, print_table, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from scrapy_ext.crawl.job import Report

_SHOWN = 10
_SILENT_S = 3.0
"""Where there is no terminal a line is written this often."""


@click.command(
    "crawl",
    epilog=example("bloomlock crawl https://example.org/ --name example --max-pages 500"),
)
@click.argument("source", required=False, metavar="[URL|FOLDER]")
@click.option("--name", metavar="NAME", help="Go on with this crawl, if it was stopped.")
@click.option("--restart", is_flag=True, help="Begin the crawl of --name from the start.")
@value_option("--workers", kind=click.IntRange(1, 64), default=4, what="Scrapy processes.")
@value_option("--capacity", kind=click.IntRange(1), what="Links to reckon with.")
@error_rate_option
@value_option("--max-pages", kind=click.IntRange(0), what="Then stop.  [default: 10000 for a URL]")
@click.option(
    "--robots/--no-robots", default=None, help="Obey robots.txt.  [default: for a URL, yes]"
)
@value_option(
    "--concurrency", kind=click.IntRange(1, 256), default=8, what="Pages at a time, each."
)
@click.option(
    "--delay",
    type=click.FloatRange(min=0),
    metavar="S",
    default=0.0,
    help="Between two pages, of all together.  [default: by answers]",
)
@click.option("--watch", is_flag=True, help="Show live figures on a page of this machine.")
@json_option
@url_option
def crawl_command(*, as_json: bool, watch: bool, **options: Any) -> None:
    """Crawl a site with several Scrapy processes that share one filter and queue.

    Without an argument: the documentation of Python's library.
    """
    if options["restart"] and options["name"] is None:
        raise Failure("--restart needs --name: a crawl without a name keeps nothing.")
    if importlib.util.find_spec("scrapy") is None:
        raise Failure("crawling needs Scrapy: pip install 'bloomlock[scrapy]'", NO)
    options["error_rate"] = options["error_rate"] or DEFAULT_ERROR_RATE
    context = click.get_current_context()
    # SIGTERM ends the workers and cleans up like Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    context.call_on_close(lambda: signal.signal(signal.SIGTERM, before))
    try:
        report = _run(options, watch=watch)
    except KeyboardInterrupt:
        context.exit(SIGNALLED + signal.SIGINT)
    except ConfigurationError as error:
        raise Failure(sentence(str(error))) from error
    except (BloomlockError, redis.exceptions.RedisError, OSError, RuntimeError) as error:
        raise Failure(str(error), NO) from error
    if as_json:
        print_json(report.as_json())
    else:
        click.echo(f"Crawl of {report.title}")
        print_table((what, f"{number:>12}", more) for what, number, more in _rows(report))
    for line in (*report.notes, *report.failures):
        warn(line)
    status = SIGNALLED + signal.SIGINT if report.interrupted else not report.ok
    context.exit(status)


def _run(options: dict[str, Any], *, watch: bool) -> Report:
    # PLC0415: these import Scrapy, which takes its time.
    from scrapy_ext.crawl.job import run  # noqa: PLC0415
    from scrapy_ext.crawl.watch import watched  # noqa: PLC0415

    with watched() if watch else nullcontext() as page, _telling() as tell:
        if page is not None:
            click.echo(f"live figures: {page.url}", err=True)

        def show(report: Report) -> None:
            if page is not None:
                page.report = report
            tell(report)

        def rendered(done: int, total: int) -> None:
            where = f"{done:,} of {total:,} pages"
            tell(f"rendering the documentation of this Python, once: {where}")

        return run(options, show, rendered)


@contextmanager
def _telling() -> Iterator[Callable[[Report | str], object]]:
    """Yield what shows how far the job is; where there is no terminal, a line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - see output.py
        from rich.live import Live  # noqa: PLC0415

        with Live(console=Console(stderr=True), transient=True, refresh_per_second=5) as live:
            yield lambda report: live.update(report if isinstance(report, str) else _view(report))
        return
    shown_at = 0.0

    def show(report: Report | str) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _SILENT_S:
            shown_at = time.monotonic()
            click.echo(report if isinstance(report, str) else _line(report), err=True)

    yield show


def _view(report: Report) -> Table:
    from rich.table import Table  # noqa: PLC0415 - see output.py
    from rich.text import Text  # noqa: PLC0415

    rows = Table.grid(padding=(0, 2))
    for worker in report.workers:
        state = worker.last if worker.is_running else "has ended"
        pages = f"{worker.pages:,} pages"
        row = (f"process {worker.process.pid}", pages, f"{worker.links:,} links", state)
        rows.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    rows.add_row(Text("all", style="bold"), Text(_line(report), style="bold"))
    return rows


def _line(report: Report) -> str:
    pages, seconds = len(report.fetched), max(report.seconds, 0.1)
    waiting = report.state.waiting if report.state else 0
    return (
        f"{pages:,} pages ({pages / seconds:.0f}/s), {waiting:,} wait, {report.links:,} links, "
        f"{report.duplicates:,} duplicates"
    )


def _rows(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield the table that ends a job."""
    seconds, pages = max(report.seconds, 1e-3), len(report.fetched)
    share = report.duplicates / report.links if report.links else 0.0
    processes = "1 process" if len(report.workers) == 1 else f"{len(report.workers)} processes"
    yield "pages fetched", f"{pages:,}", f"by {processes} in {seconds:.1f} s"
    yield "links checked", f"{report.links:,}", f"{len(report.found):,} different"
    yield "duplicates filtered", f"{report.duplicates:,}", f"{share:.1%} of the links"
    yield "pages fetched twice", f"{len(report.twice):,}", _urls(report.twice)
    if report.missed is not None:
        explained = f"; the error rate explains {report.tolerated}" if report.tolerated else ""
        text = _urls(report.missed) or f"links found and never fetched{explained}"
        yield "pages missed", f"{len(report.missed):,}", text
    for name, reasons in (("refused", report.refused), ("failed", report.failed)):
        if reasons:
            yield f"pages {name}", f"{len(reasons):,}", _reasons(reasons)
    if report.queued:
        yield "pages left in the queue", f"{report.queued:,}", "stopped before the end"
    yield "rate", f"{pages / seconds:,.0f} pages/s", f"{report.links / seconds:,.0f} links/s"
    for holder, size, what in (
        ("the filter", report.filter_bytes, ""),
        ("an exact set", report.set_bytes, f"the same {len(report.found):,} fingerprints"),
    ):
        yield f"memory of {holder}", "unknown" if size is None else size_text(size), what


def _urls(urls: list[str]) -> str:
    more = f", and {len(urls) - _SHOWN:,} more" if len(urls) > _SHOWN else ""
    return ", ".join(urls[:_SHOWN]) + more


def _reasons(pages: dict[str, str]) -> str:
    """Return the reasons, the most frequent first, each with an example."""
    examples: dict[str, list[str]] = {}
    for url, why in pages.items():
        examples.setdefault(why, []).append(url)
    ordered = sorted(examples.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{why}: {len(urls):,}, as {urls[0]}" for why, urls in ordered[:3])
