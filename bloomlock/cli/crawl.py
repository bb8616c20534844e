"""`bloomlock crawl`: several Scrapy processes crawl one site, and nothing is fetched twice."""

from __future__ import annotations

import importlib.util
import json
import signal
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click
import redis.exceptions
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from bloomlock.errors import BloomlockError, ConfigurationError

from .errors import Failure, sentence, warn
from .options import example, url_option
from .tables import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_ext.crawl.stats import Progress, Rendering, Report

_INTERRUPTED = 130
_WIDE = 10_000
"""Columns of what is no terminal: nothing is cut there, and no line is broken."""
_SHOWN = 10


@click.command(
    "crawl",
    epilog=example("bloomlock crawl https://example.org/ --name example --max-pages 500"),
)
@click.argument("source", required=False, metavar="[URL|FOLDER]")
@click.option("--name", metavar="NAME", help="Go on with this filter and queue, and keep them.")
@click.option("--restart", is_flag=True, help="Delete the filter and the queue of --name first.")
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
    help="Rate of false positives.  [default: 1e-06]",
)
@click.option(
    "--max-pages",
    type=click.IntRange(min=0),
    metavar="N",
    help="Then stop.  [default: 10000 for a URL]",
)
@click.option("--keep/--clear", default=None, help="What to do with filter and queue at the end.")
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
    help="Between two pages.  [default: by answers]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, 600, min_open=True),
    metavar="S",
    default=20.0,
    show_default=True,
    help="For one page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@url_option
@click.pass_context
def crawl_command(context: click.Context, /, *, as_json: bool, **options: Any) -> None:
    """Crawl a site with several Scrapy processes that share one filter and queue.

    Without an argument: the documentation of Python's library.
    """
    if options["restart"] and options["name"] is None:
        raise Failure("--restart needs --name: a crawl without a name keeps nothing.")
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
    for line in (*report.notes, *report.failures):
        warn(line)
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

    with _live(Console(stderr=True)) as show:
        return run(JobOptions(**options), show)


def _print(report: Report) -> None:
    """Print the table to standard output."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(_table(report))


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
def _live(console: Console) -> Iterator[Callable[[Progress | Rendering], None]]:
    """Show a line that says how far the job is, where the console is a terminal.

    Elsewhere only what takes long before the crawl begins is announced, in a line of text.
    """
    from scrapy_ext.crawl.stats import Rendering  # noqa: PLC0415 - as above

    if not console.is_terminal:
        yield _announce(console)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
    )
    started = time.monotonic()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: Progress | Rendering) -> None:
            if isinstance(progress, Rendering):
                bar.update(
                    task,
                    description=f"rendering {progress.total:,} pages of documentation",
                    completed=progress.done,
                    total=progress.total,
                )
                return
            rate = progress.pages / max(time.monotonic() - started, 0.1)
            text = (
                f"{progress.pages:,} pages ({rate:.0f}/s) · {progress.queued:,} queued · "
                f"{progress.links:,} links, {progress.duplicates:,} duplicates · "
                f"{progress.workers} workers"
            )
            bar.update(task, description=text, total=None)

        yield show


def _announce(console: Console) -> Callable[[Progress | Rendering], None]:
    from scrapy_ext.crawl.stats import Rendering  # noqa: PLC0415 - as above

    announced = False

    def show(progress: Progress | Rendering) -> None:
        nonlocal announced
        if isinstance(progress, Rendering) and not announced:
            announced = True
            console.file.write(
                f"rendering {progress.total} pages of documentation, once for this Python; it "
                "takes about half a minute\n"
            )
            console.file.flush()

    return show


def _table(report: Report) -> Table:
    """Return the table that ends a job."""
    rows = Table(title=f"Crawl of {report.title}", show_header=False, title_justify="left")
    rows.add_column()
    rows.add_column(justify="right")
    rows.add_column(style="dim", overflow="fold")
    for row in _rows(report):
        rows.add_row(*row)
    return rows


def _rows(report: Report) -> Iterator[tuple[str, str, str]]:
    seconds = max(report.seconds, 1e-3)
    share = report.duplicates / report.links if report.links else 0.0
    processes = f"by {report.workers} {'process' if report.workers == 1 else 'processes'}"
    yield "pages fetched", f"{report.pages:,}", f"{processes} in {seconds:.1f} s"
    yield "links checked", f"{report.links:,}", f"{report.distinct:,} different"
    yield "duplicates filtered", f"{report.duplicates:,}", f"{share:.1%} of the links"
    yield "pages fetched twice", f"{len(report.twice):,}", _urls(report.twice)
    yield "pages missed", f"{len(report.missed):,}", _missed(report)
    if report.refused:
        yield "pages refused", f"{len(report.refused):,}", _reasons(report.refused)
    if report.failed:
        yield "pages failed", f"{len(report.failed):,}", _reasons(report.failed)
    if report.put_back:
        yield "pages put back", f"{len(report.put_back):,}", "in flight when a worker died"
    if report.taken_over:
        yield "pages taken over", f"{report.taken_over:,}", "left by an earlier crawl"
    if report.queued:
        yield "pages left in the queue", f"{report.queued:,}", "stopped before the end"
    if report.earlier:
        yield "links seen earlier", f"{report.earlier:,}", f"by crawls with {report.filter_name!r}"
    rate = f"{report.pages / seconds:,.0f} pages/s"
    yield "rate", rate, f"{report.links / seconds:,.0f} links/s"
    room = f"room for {report.filter_capacity:,} at {report.filter_error_rate:g}"
    yield "memory of the filter", _size(report.filter_bytes), room
    exact = f"the same {report.distinct:,} fingerprints"
    yield "memory of an exact set", _size(report.set_bytes), exact


def _missed(report: Report) -> str:
    if not report.missed:
        explained = f"; the error rate explains {report.tolerated}" if report.tolerated else ""
        return f"links found and never fetched{explained}"
    return f"{report.lost} lost, {len(report.missed) - report.lost} taken for seen; " + _urls(
        report.missed
    )


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
