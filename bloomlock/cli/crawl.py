"""`bloomlock crawl`: several Scrapy processes crawl one site, and nothing is fetched twice."""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from .crawls import connected
from .errors import NO, SIGNALLED, Failure, warn
from .options import example, json_option, time_option, url_option, value_option
from .output import print_json, print_table, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
@value_option("--capacity", kind=click.IntRange(1), default=100_000, what="Links to reckon with.")
@value_option("--max-pages", kind=click.IntRange(0), default=10_000, what="Then stop; 0: never.")
@click.option("--robots/--no-robots", default=True, help="Obey robots.txt, or not.")
@value_option(
    "--concurrency", kind=click.IntRange(1, 256), default=8, what="Pages at a time, each."
)
@time_option("--delay", what="Between two pages, of all together.  [default: by answers]")
@click.option("--watch", is_flag=True, help="Show live figures on a page of this machine.")
@json_option
@url_option
def crawl_command(*, as_json: bool, watch: bool, **options: Any) -> None:
    """Crawl a site with several Scrapy processes that share one filter and queue.

    Without an argument: the documentation of Python's library.
    """
    if importlib.util.find_spec("scrapy") is None:
        raise Failure("crawling needs Scrapy: pip install 'bloomlock[scrapy]'", NO)
    # These import Scrapy, which takes its time.
    from scrapy_ext.crawl.job import Job  # noqa: PLC0415
    from scrapy_ext.crawl.watch import watched  # noqa: PLC0415

    # SIGTERM ends the workers and cleans up like Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = Job(options)
    try:
        with (
            connected(options["url"]) as (client, url),
            watched(job) if watch else nullcontext("") as page,
            _telling() as tell,
        ):
            if page:
                click.echo(f"live figures: {page}", err=True)
            job.run(client, url, lambda text: tell([text] if text else _lines(job.figures())))
    finally:
        signal.signal(signal.SIGTERM, before)
    figures = job.figures()
    if as_json:
        print_json(figures)
    else:
        click.echo(f"Crawl of {figures['title']}")
        print_table((what, f"{number:>12}", more) for what, number, more in _rows(figures))
    for line in (*figures["notes"], *figures["failures"]):
        warn(line)
    status = SIGNALLED + signal.SIGINT if figures["interrupted"] else not figures["ok"]
    click.get_current_context().exit(status)


@contextmanager
def _telling() -> Iterator[Callable[[list[str]], object]]:
    """Yield what shows lines; where there is no terminal, the last of them now and then."""
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - see output.py
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        with Live(console=Console(stderr=True), transient=True, refresh_per_second=5) as live:
            yield lambda lines: live.update(
                Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
            )
        return
    shown_at = 0.0

    def show(lines: list[str]) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _SILENT_S:
            shown_at = time.monotonic()
            click.echo(lines[-1], err=True)

    yield show


def _lines(job: dict[str, Any]) -> list[str]:
    """Return a line for each process, and one for all."""
    what = "process {pid}  {pages:>6,} pages  {links:>8,} links  {last}"
    rate = job["pages"] / max(job["seconds"], 0.1)
    return [
        *(what.format(**worker) for worker in job["workers"]),
        "{pages:,} pages ({rate:.0f}/s), {waiting:,} wait, {links:,} links, {duplicates:,} "
        "duplicates".format(rate=rate, **job),
    ]


def _rows(job: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the table that ends a job."""
    seconds, pages, links = max(job["seconds"], 1e-3), job["pages"], job["links"]
    share = job["duplicates"] / links if links else 0.0
    yield "pages fetched", f"{pages:,}", f"by {len(job['workers'])} processes in {seconds:.1f} s"
    yield "links checked", f"{links:,}", f"{job['distinct']:,} different"
    yield "duplicates filtered", f"{job['duplicates']:,}", f"{share:.1%} of the links"
    yield "pages fetched twice", f"{len(job['twice']):,}", _urls(job["twice"])
    if (missed := job["missed"]) is not None:
        yield "pages missed", f"{len(missed):,}", _urls(missed) or "links found and never fetched"
    if failed := [f"{url}: {why}" for url, why in job["failed"].items()]:
        yield "pages not to be had", f"{len(failed):,}", _urls(failed)
    if job["waiting"]:
        yield "pages left in the queue", f"{job['waiting']:,}", "stopped before the end"
    yield "rate", f"{pages / seconds:,.0f} pages/s", f"{links / seconds:,.0f} links/s"
    if size := job["filter_bytes"]:
        yield "memory of the filter", size_text(size), f"{job['fill']:.3%} full"


def _urls(urls: list[str]) -> str:
    more = f", and {len(urls) - _SHOWN:,} more" if len(urls) > _SHOWN else ""
    return ", ".join(urls[:_SHOWN]) + more
