"""`bloomlock crawl`: several Scrapy processes crawl one site, and nothing is fetched twice."""

from __future__ import annotations

import importlib.util
import signal
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import click
import redis.exceptions
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bloomlock.errors import BloomlockError, ConfigurationError

from .errors import Failure, sentence, warn
from .options import example, url_option
from .tables import print_json, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_ext.crawl.job import Report

_INTERRUPTED = 130
_WIDE = 10_000
"""Columns of what is no terminal: nothing is cut there, and no line is broken."""
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
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    metavar="N",
    default=4,
    show_default=True,
    help="Scrapy processes.",
)
@click.option("--capacity", type=click.IntRange(min=1), metavar="N", help="Links to reckon with.")
@click.option(
    "--error-rate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="P",
    default=1e-6,
    show_default=True,
    help="Rate of false positives.",
)
@click.option(
    "--max-pages",
    type=click.IntRange(min=0),
    metavar="N",
    help="Then stop.  [default: 10000 for a URL]",
)
@click.option(
    "--robots/--no-robots", default=None, help="Obey robots.txt.  [default: for a URL, yes]"
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    metavar="N",
    default=8,
    show_default=True,
    help="Pages at a time, each.",
)
@click.option(
    "--delay",
    type=click.FloatRange(min=0),
    metavar="S",
    default=0.0,
    help="Between two pages, of all together.  [default: by answers]",
)
@click.option("--watch", is_flag=True, help="Show live figures on a page of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@url_option
@click.pass_context
def crawl_command(context: click.Context, /, *, as_json: bool, watch: bool, **options: Any) -> None:
    """Crawl a site with several Scrapy processes that share one filter and queue.

    Without an argument: the documentation of Python's library.
    """
    if options["restart"] and options["name"] is None:
        raise Failure("--restart needs --name: a crawl without a name keeps nothing.")
    if importlib.util.find_spec("scrapy") is None:
        raise click.ClickException("crawling needs Scrapy: pip install 'bloomlock[scrapy]'")
    try:
        with _terminated_like_interrupted():
            report = _run(options, watch=watch)
    except KeyboardInterrupt:
        context.exit(_INTERRUPTED)
    except ConfigurationError as error:
        raise Failure(sentence(str(error))) from error
    except (BloomlockError, redis.exceptions.RedisError, OSError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(report.as_json())
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=_WIDE)
        console.print(_table(report))
    for line in (*report.notes, *report.failures):
        warn(line)
    context.exit(_INTERRUPTED if report.interrupted else not report.ok)


def _run(options: dict[str, Any], *, watch: bool) -> Report:
    # PLC0415: these import Scrapy, which takes its time.
    from scrapy_ext.crawl.job import JobOptions, run  # noqa: PLC0415
    from scrapy_ext.crawl.watch import watched  # noqa: PLC0415

    with watched() if watch else nullcontext() as page, _shown(Console(stderr=True)) as shown:
        show, on_render = shown
        if page is not None:
            click.echo(f"live figures: {page.url}", err=True)

        def show_all(report: Report) -> None:
            if page is not None:
                page.report = report
            show(report)

        return run(JobOptions(**options), show_all, on_render)


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


@contextmanager
def _shown(
    console: Console,
) -> Iterator[tuple[Callable[[Report], None], Callable[[int, int], None]]]:
    """Show how far the job is: a line for each process; a line of text now and then elsewhere."""
    if not console.is_terminal:
        said_at = 0.0

        def say(text: str) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= _SILENT_S:
                said_at = time.monotonic()
                console.file.write(f"{text}\n")
                console.file.flush()

        yield lambda report: say(_line(report)), lambda done, total: say(_rendering(done, total))
        return
    with Live(console=console, transient=True, refresh_per_second=5) as live:

        def show(report: Report) -> None:
            rows = Table.grid(padding=(0, 2))
            for worker in report.workers:
                state = worker.last if worker.is_running else "has ended"
                pages = f"{worker.pages:,} pages"
                row = (f"process {worker.process.pid}", pages, f"{worker.links:,} links", state)
                rows.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
            rows.add_row(Text("all", style="bold"), Text(_line(report), style="bold"))
            live.update(rows)

        yield show, lambda done, total: live.update(_rendering(done, total))


def _rendering(done: int, total: int) -> str:
    return f"rendering the documentation of this Python, once: {done:,} of {total:,} pages"


def _line(report: Report) -> str:
    pages, seconds = len(report.fetched), max(report.seconds, 0.1)
    waiting = report.state.waiting if report.state else 0
    return (
        f"{pages:,} pages ({pages / seconds:.0f}/s), {waiting:,} wait, {report.links:,} links, "
        f"{report.duplicates:,} duplicates"
    )


def _table(report: Report) -> Table:
    """Return the table that ends a job."""
    table = Table(title=f"Crawl of {report.title}", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim", overflow="fold")
    for row in _rows(report):
        table.add_row(*row)
    return table


def _rows(report: Report) -> Iterator[tuple[str, str, str]]:
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
    yield "memory of the filter", _size(report.filter_bytes), ""
    exact = f"the same {len(report.found):,} fingerprints"
    yield "memory of an exact set", _size(report.set_bytes), exact


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


def _size(size: int | None) -> str:
    return "unknown" if size is None else size_text(size)
