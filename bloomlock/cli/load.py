"""`bloomlock load`: files into a filter, as fast as it goes, and on where it was interrupted."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .examples import examples
from .failures import warn
from .files import STDIN, check_files, most_lines
from .journal import Journal
from .loading import Loading
from .options import FilterOptions, filter_options
from .progress import show_progress
from .signals import SignalGuard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock import BloomFilter


@click.command(
    "load",
    epilog=examples(
        "bloomlock load --name urls old-urls.txt older-urls.txt",
        "zcat urls.gz | bloomlock load --name urls --capacity 50000000",
    ),
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--name", required=True, help="The filter; it is created if there is none.")
@filter_options
@click.option(
    "--on-full",
    default="warn",
    show_default=True,
    metavar="[warn|raise]",
    help="At the capacity: warn and go on with more and more errors, or stop.",
)
@click.option("-z", "--zero-terminated", is_flag=True, help="Lines end with NUL, not newline.")
@click.option("--restart", is_flag=True, help="Read all, whatever an interrupted load has read.")
def load_command(
    files: tuple[str, ...], *, name: str, zero_terminated: bool, restart: bool, **options: Any
) -> None:
    """Add each line of FILEs to a filter, in bulk, without asking which are new.

    Lines come from standard input if there is no FILE or where it is "-". What is written, to
    standard error, is the number of lines that were read.

    Interrupted (Ctrl-C, kill -9, a server that is gone), the same command goes on where the load
    certainly was: how far the server has acknowledged it is written down about once a second, in
    BLOOMLOCK_HOME or the user's directory for state. It is never ahead, and to add a line twice
    changes nothing, so every line is in the filter in the end, as surely as the server keeps what
    it acknowledges. A file that has changed, or a filter that was cleared, starts over, and so does
    standard input.

    Exit status: 0, or 2 after an error.
    """
    files = files or (STDIN,)
    total = check_files(files)
    delimiter = b"\0" if zero_terminated else b"\n"
    lines = most_lines(files, delimiter) if options["capacity"] is None else None
    with (
        FilterOptions(**options, lines=lines).create_or_open(name) as bloom,
        SignalGuard() as patience,
        show_progress(total, writes=False) as progress,
    ):
        server = _server(options["url"])
        journals = [_journal(bloom, server, file, delimiter) for file in files]
        if restart:
            _forget(journals)
        _tell(files, journals)
        loading = Loading(bloom, patience, progress, delimiter)
        for file, journal in zip(files, journals, strict=True):
            loading.load(file, journal)
        # Not before, so that who goes on with the last file does not begin with the first.
        _forget(journals)
    before = f", {loading.before} before" if loading.before else ""
    warn(f"{loading.lines} lines read{before}")


def _server(url: str | None) -> str:
    return url or os.environ.get("BLOOMLOCK_URL") or os.environ.get("REDIS_URL") or ""


def _journal(bloom: BloomFilter, server: str, file: str, delimiter: bytes) -> Journal | None:
    """Return the journal of a file that can be read from the middle."""
    if file == STDIN or not stat.S_ISREG(Path(file).stat().st_mode):
        return None
    return Journal(bloom, server, file, delimiter)


def _forget(journals: Sequence[Journal | None]) -> None:
    for journal in journals:
        if journal is not None:
            journal.remove()


def _tell(files: Sequence[str], journals: Sequence[Journal | None]) -> None:
    """Say where the load goes on, if it was interrupted, or why it cannot."""
    done = size = 0
    for file, journal in zip(files, journals, strict=True):
        if journal is not None:
            found = Path(file).stat()
            offset = journal.begin(found).offset
            if not offset and journal.exists:
                warn(
                    f"{file} has changed since it was loaded in part, or the filter: starting over"
                )
            done += offset
            size += found.st_size
    if done:
        warn(f"going on at {100 * done // size} % (--restart reads all)")
