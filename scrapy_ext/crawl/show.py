"""How a job looks in a terminal: a line while it runs, a table at its end."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from scrapy_ext.crawl.report import Rendering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from scrapy_ext.crawl.report import Progress, Report

_SHOWN = 10
_KIB = 1024


@contextmanager
def live(console: Console) -> Iterator[Callable[[Progress | Rendering], None]]:
    """Show a line that says how far the job is, where the console is a terminal.

    Elsewhere only what takes long before the crawl begins is announced, in a line of text.

    Args:
        console: Where to; standard error, so that the table can be piped.

    Yields:
        What takes the progress.
    """
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


def table(report: Report) -> Table:
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
    if size is None:
        return "not told"
    if size < 100 * _KIB:
        return f"{size:,} bytes"
    return f"{size / _KIB:,.0f} KiB" if size < 100 * _KIB**2 else f"{size / _KIB**2:,.0f} MiB"
