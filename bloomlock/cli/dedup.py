"""`bloomlock dedup`: the lines that were never seen before."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from redis.exceptions import RedisError

from bloomlock import MemoryBloomFilter
from bloomlock.errors import BloomlockError, CapacityError

from .errors import Failure
from .options import FilterOptions, bytes_for, examples, filter_options, zero_option
from .pipeline import (
    LineFilter,
    add_lines,
    add_lines_in_memory,
    sizer_in_memory,
    sizer_on_server,
)
from .streams import STDIN, check_files, most_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bloomlock import BloomFilter

CAPACITY_FOR_A_PIPE = 10_000_000
"""59 MB at the default rate, taken as they are first used."""


@click.command(
    "dedup",
    epilog=examples(
        "bloomlock dedup urls.txt more-urls.txt > unique.txt",
        "tail -F access.log | cut -d' ' -f7 | bloomlock dedup --name paths",
        "find . -print0 | bloomlock dedup -z --name files --capacity 10000000",
    ),
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--name",
    help="Share the filter of this name.  [default: one in this process, for this run only]",
)
@filter_options
@click.option(
    "--on-full",
    metavar="[warn|raise|grow]",
    help="At the capacity: warn and go on with more and more errors, stop, or (with --name) grow "
    "and keep the error rate.  [default: warn with --name, else raise]",
)
@click.option("--seen", is_flag=True, help="Write the lines seen before instead.")
@click.option("--count", is_flag=True, help="Write only how many lines it would be.")
@zero_option
@click.pass_context
def dedup_command(
    context: click.Context,
    /,
    files: tuple[str, ...],
    *,
    name: str | None,
    seen: bool,
    count: bool,
    delimiter: bytes,
    **options: Any,
) -> None:
    """Write each line that was never seen before, in order, as soon as it comes.

    Lines come from the FILEs one after the other, from standard input if there are none or where
    a FILE is "-". With --name all processes that use that name, now or later, on any machine,
    share what was seen, and each line is written by exactly one of them. Without it the filter is
    in this process, new, and gone in the end, as for: awk '!seen[$0]++'. Then there is no server,
    whatever BLOOMLOCK_URL and REDIS_URL say; with --url alone it is on that one, and deleted.

    A new line is taken for a seen one at the error rate, by default one in a million when the
    filter is full. A new filter has room for as many lines as the files have (counted in samples),
    at least for 1,000,000; for lines from a pipe a filter in this process has room for 10,000,000.
    A line is any bytes up to 256 MiB.

    A line on a slow pipe is answered at once; where more are waiting they go in batches. On a
    server a line is marked as seen, then written. Ctrl-C or a server that fails lose no line; a
    reader that goes away (`| head`), a full disk or a kill -9 lose at most the lines of one batch,
    and what the reader had not read. The first batch has about 1,400 lines, and each that is
    answered and written within a second may be followed by one twice as large, up to 8,192 lines,
    or a 21st of the capacity where that is more, and to 262,144 in any case.

    Exit status: 0, or 2 after an error.
    """
    files = files or (STDIN,)
    total = check_files(files)
    write = None if count else not seen
    lines = most_lines(files, delimiter) if options["capacity"] is None else None
    asked = FilterOptions(**options, lines=lines)
    work: LineFilter[BloomFilter] | LineFilter[MemoryBloomFilter]
    if name is None and asked.url is None:
        _refuse_options_of_servers(context)
        work = LineFilter(add_lines_in_memory, write=write, delimiter=delimiter)
        with _in_process(asked) as memory:
            work.do_files(memory, files, sizer_in_memory(), total)
    else:
        work = LineFilter(add_lines, write=write, delimiter=delimiter)
        with _throw_away(asked) if name is None else _shared(name, asked) as bloom:
            work.do_files(bloom, files, sizer_on_server(bloom), total)
    if count:
        click.echo(work.lines - work.new if seen else work.new)


def _refuse_options_of_servers(context: click.Context) -> None:
    for option in ("strategy", "on_lost"):
        if context.get_parameter_source(option) is not ParameterSource.DEFAULT:
            raise Failure(
                f"--{option.replace('_', '-')} is about a filter on a server; give its --name, "
                "or a --url"
            )


@contextmanager
def _in_process(asked: FilterOptions) -> Iterator[MemoryBloomFilter]:
    if asked.window is not None or asked.slices is not None:
        raise Failure("--window and --slices need --name: only a filter on a server forgets")
    capacity = asked.new_capacity()
    if asked.capacity is None:
        capacity = CAPACITY_FOR_A_PIPE if asked.lines is None else _that_fits(asked)
    with _report_full(capacity):
        try:
            bloom = MemoryBloomFilter(
                capacity,
                asked.new_error_rate(),
                key=asked.new_key(),
                on_full="raise" if asked.on_full is None else asked.on_full,
                **asked.new_shape(),
            )
        except MemoryError:
            raise Failure(
                f"a filter for {capacity} lines does not fit into memory; give a smaller --capacity"
            ) from None
        yield bloom


def _that_fits(asked: FilterOptions) -> int:
    """Return the capacity for all lines, or what half of the machine's memory holds."""
    wanted: int = asked.new_capacity()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        share = memory / 2 / bytes_for(wanted, asked.new_error_rate(), **asked.new_shape())
        # Many lines may be repeats, so it is tried.
        return wanted if share >= 1 else int(wanted * share)
    except (TypeError, ValueError, ArithmeticError):
        return wanted  # for the library to say what is allowed


@contextmanager
def _shared(name: str, asked: FilterOptions) -> Iterator[BloomFilter]:
    if asked.on_full is None:
        asked = replace(asked, on_full="warn")
    with asked.create_or_open(name) as bloom:
        yield bloom


@contextmanager
def _throw_away(asked: FilterOptions) -> Iterator[BloomFilter]:
    """Yield a filter of this run's own on a server; it is deleted afterwards."""
    if asked.on_full is None:
        asked = replace(asked, on_full="raise")
    name = f"dedup-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        bloom = stack.enter_context(asked.create_or_open(name))
        stack.callback(_delete, bloom)
        stack.enter_context(_report_full(bloom.capacity))
        yield bloom


@contextmanager
def _report_full(capacity: int) -> Iterator[None]:
    try:
        yield
    except CapacityError as error:
        raise Failure(
            f"there are more than about {capacity} different lines; give a larger --capacity"
        ) from error


def _delete(bloom: BloomFilter) -> None:
    with suppress(BloomlockError, RedisError, OSError):
        bloom.delete()
