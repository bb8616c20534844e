"""`bloomlock load`: files into a filter, as fast as it goes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from .errors import advise, warn
from .options import FilterOptions, examples, filter_options, on_full_option, zero_option
from .pipeline import sizer_of_load
from .progress import show_progress
from .streams import STDIN, SignalGuard, check_files, most_lines, read_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock import BloomFilter

_AGAIN = "run the same command again: adding a line twice changes nothing"


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
@on_full_option
@zero_option
def load_command(files: tuple[str, ...], *, name: str, delimiter: bytes, **options: Any) -> None:
    """Add each line of FILEs to a filter, in bulk, without asking which are new.

    Lines come from standard input if there is no FILE or where it is "-". What is written, to
    standard error, is the number of lines that were read.

    After an interruption (Ctrl-C, kill -9, a server that is gone) run the same command again:
    adding a line twice changes nothing.

    Exit status: 0, or 2 after an error.
    """
    files = files or (STDIN,)
    total = check_files(files)
    most = most_lines(files, delimiter) if options["capacity"] is None else None
    with FilterOptions(**options, lines=most).create_or_open(name) as bloom, advise(_AGAIN):
        lines = _load(bloom, files, delimiter, total)
    warn(f"{lines} lines read")


def _load(bloom: BloomFilter, files: Sequence[str], delimiter: bytes, total: int | None) -> int:
    """Add the lines of files; return how many there were."""
    lines = 0
    sizer = sizer_of_load(bloom)
    with SignalGuard() as guard, show_progress(total, writes=False) as progress:
        for batch in read_lines(files, sizer, guard, delimiter=delimiter, on_read=progress.read):
            guard.check()
            start = time.monotonic()
            bloom.update(batch)
            lines += len(batch)
            progress.answered(lines, None)
            sizer.answered(len(batch), time.monotonic() - start)
        guard.check()
    return lines
