"""`bloomlock dedup`: the lines nobody has seen before."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from redis.exceptions import RedisError

from bloomlock import BloomlockError, CapacityError

from .answers import add_lines
from .examples import examples
from .failures import Failure
from .lines import STDIN, check_files
from .options import FilterOptions, filter_options
from .work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bloomlock import BloomFilter


@click.command(
    "dedup",
    epilog=examples(
        "bloomlock dedup urls.txt more-urls.txt > unique.txt",
        "tail -F access.log | cut -d' ' -f7 | bloomlock dedup --name paths",
        "find . -print0 | bloomlock dedup -z --name files --capacity 10000000",
    ),
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--name", help="Share the filter of this name.  [default: one for this run only]")
@filter_options
@click.option(
    "--on-full",
    metavar="[warn|raise]",
    help="At the capacity: warn and go on with more and more errors, or stop.  "
    "[default: warn with --name, else raise]",
)
@click.option("--seen", is_flag=True, help="Write the lines seen before instead.")
@click.option("--count", is_flag=True, help="Write only how many lines it would be.")
@click.option("-z", "--zero-terminated", is_flag=True, help="Lines end with NUL, not newline.")
def dedup_command(
    files: tuple[str, ...], *, name: str | None, seen: bool, count: bool, **options: Any
) -> None:
    """Write each line that nobody has seen before, in order, as soon as it comes.

    Lines come from the FILEs one after the other, from standard input if there are none or where
    a FILE is "-". With --name everybody who uses that name, now or later, on any machine, shares
    what was seen, and each line is written by exactly one of them. Without it the filter is new,
    and is deleted in the end, as for: awk '!seen[$0]++'. (It lives in a private server, or where
    --url, BLOOMLOCK_URL or REDIS_URL say.)

    A new line is taken for a seen one at the error rate, by default one in a million when the
    filter is full. A line is any bytes up to 256 MiB.

    A line is marked as seen, then written. Ctrl-C or a server that fails lose no line; a reader
    that goes away (`| head`), a full disk or a kill -9 lose at most the lines of one round trip,
    about 600, and what the reader had not read.

    Exit status: 0, or 2 after an error.
    """
    files = files or (STDIN,)
    total = check_files(files)
    delimiter = b"\0" if options.pop("zero_terminated") else b"\n"
    work = Work(add_lines, write=None if count else not seen, delimiter=delimiter)
    asked = FilterOptions(**options)
    with _throw_away(asked) if name is None else _shared(name, asked) as bloom:
        work.do_files(bloom, files, total)
    if count:
        click.echo(work.lines - work.new if seen else work.new)


@contextmanager
def _shared(name: str, asked: FilterOptions) -> Iterator[BloomFilter]:
    if asked.on_full is None:
        asked = replace(asked, on_full="warn")
    with asked.create_or_open(name) as bloom:
        yield bloom


@contextmanager
def _throw_away(asked: FilterOptions) -> Iterator[BloomFilter]:
    """A filter of one's own; it is gone afterwards, and with a private server in any case."""
    if asked.on_full is None:
        asked = replace(asked, on_full="raise")
    with ExitStack() as stack:
        if not (asked.url or os.environ.get("BLOOMLOCK_URL") or os.environ.get("REDIS_URL")):
            from bloomlock.server import PrivateServer  # noqa: PLC0415 - only this needs it

            asked = replace(asked, url=stack.enter_context(PrivateServer()).url)
        name = f"dedup-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        bloom = stack.enter_context(asked.create_or_open(name))
        stack.callback(_delete, bloom)
        try:
            yield bloom
        except CapacityError as error:
            raise Failure(
                f"there are more than about {bloom.capacity} different lines; give a larger "
                "--capacity"
            ) from error


def _delete(bloom: BloomFilter) -> None:
    with suppress(BloomlockError, RedisError, OSError):
        bloom.delete()
