"""`bloomlock dedup`, `add`, `exists` and `discard`: from lines to answers to lines, in batches.

No line may be lost: one that the server may have marked as seen counts as new if the answer did
not arrive, because no other client will be answered that it is new.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from itertools import compress
from typing import TYPE_CHECKING, Any

import click

from bloomlock import MemoryBloomFilter, errors

from . import options
from .errors import NO, Failure, warn
from .lines import (
    STDIN,
    check_reader,
    count_lines,
    descriptor_of,
    noted_signals,
    read_lines,
    write_lines,
)
from .options import example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Answers = list[bool | None]
    """For each line whether it is new; None: it is not marked as seen."""
    Ask = Callable[[Any, Sequence[bytes], Answers], None]
    """Adds its answers to a list, also if it raises an error then."""

CAPACITY_FOR_A_PIPE = 10_000_000
"""59 MB at the default rate, taken as they are first used."""
_ON_SERVERS = ("url", "window", "grow", "native")
_MOST_LINES = 2**18  # what the library takes as one batch at most
_MOST_IN_PROCESS = 2**13  # what the processor's caches like


def answer(
    ask: Ask,
    bloom: Any,
    files: Sequence[str] = (STDIN,),
    *,
    items: Sequence[str] = (),
    write: bool | None = None,
    delimiter: bytes = b"\n",
) -> int:
    """Answer `items`, or the lines of files where there are none; return how many were new.

    The new ones are written, or (`write=False`) the others, or (None) none.
    """
    output = None if write is None else descriptor_of(sys.stdout, "standard output")
    most = _MOST_IN_PROCESS if isinstance(bloom, MemoryBloomFilter) else _MOST_LINES
    num_new = 0
    with noted_signals() as check:
        batches: Iterable[Sequence[bytes]] = [[os.fsencode(item) for item in items]]
        if not items:
            batches = read_lines(files, check, most, delimiter)
        for batch in batches:
            # A signal, and a reader that has gone, are noticed before anything of a batch is sent,
            # or after all of it is written.
            check()
            if output is not None:
                check_reader(output)
            new: Answers = []
            try:
                ask(bloom, batch, new)
            finally:
                if output is not None:
                    chosen = new if write else [is_new is False for is_new in new]
                    write_lines(output, list(compress(batch, chosen)), delimiter)
            num_new += new.count(True)
        check()
    return num_new


def add(bloom: Any, lines: Sequence[bytes], new: Answers) -> None:
    while len(new) < len(lines):
        asked = lines[len(new) :]
        try:
            # One line needs nothing of what batches import.
            new += [bloom.add(asked[0])] if len(asked) == 1 else bloom.add_many(asked)
        except errors.OutcomeUnknownError as error:
            unknown: dict[bytes, None] = {}
            for line, result in zip(asked, error.results, strict=False):
                # An unknown line is new, once.
                new.append(line not in unknown if result is None else result)
                if result is None:
                    unknown[line] = None
            # After a loss they may have been the first of the generation that follows. A server
            # that is stuck would make a new line of every one that follows.
            if isinstance(error, errors.FilterLostError) or not unknown:
                raise
            warn(f"{error}; {len(unknown)} lines count as new, though others may have had them")
            bloom.update(list(unknown))  # so that no other client gets them
        except errors.PartialResultError as error:
            new += error.results
            raise


def test(bloom: Any, lines: Sequence[bytes], new: Answers) -> None:
    seen = [bloom.exists(lines[0])] if len(lines) == 1 else bloom.exists_many(lines)
    new += [not each for each in seen]


def discard(bloom: Any, lines: Sequence[bytes], new: Answers) -> None:
    # Those that were there count as new. To discard again is harmless.
    new += [bloom.discard(lines[0])] if len(lines) == 1 else bloom.discard_many(lines)


@click.command(
    "dedup", epilog=example("tail -F access.log | cut -d' ' -f7 | bloomlock dedup --name paths")
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--name", metavar="NAME", help="Share this filter; it is created if needed.")
@click.option("--seen", is_flag=True, help="Write the lines seen before instead.")
@click.option("-z", "--zero-terminated", is_flag=True, help="Lines end with NUL, not newline.")
@options.creation_options
def dedup_command(
    files: tuple[str, ...], *, name: str | None, seen: bool, zero_terminated: bool, **given: Any
) -> None:
    """Write each line of FILEs, or of standard input, that was never seen before."""
    if name is None and (about := [option for option in _ON_SERVERS if given[option]]):
        raise Failure(f"--{about[0]} needs --name: it is about a filter on a server")
    files = files or (STDIN,)
    delimiter = b"\0" if zero_terminated else b"\n"
    lines = count_lines(files, delimiter)
    parameters = options.parameters_of(**given)
    if name is None:
        opened: Any = _in_process(parameters, lines)
    else:
        opened = options.create_or_open(name, parameters, lines)
    with opened as bloom:
        answer(add, bloom, files, write=not seen, delimiter=delimiter)


@contextmanager
def _in_process(parameters: dict[str, Any], lines: int | None) -> Iterator[MemoryBloomFilter]:
    room = CAPACITY_FOR_A_PIPE if lines is None else max(options.DEFAULT_CAPACITY, lines)
    shape = {"capacity": room, "error_rate": options.DEFAULT_ERROR_RATE, **parameters}
    del shape["client"]
    try:
        yield MemoryBloomFilter(on_full="raise", **shape)
    except MemoryError:
        raise Failure(
            f"a filter for {shape['capacity']} lines does not fit into memory; give a smaller "
            "--capacity"
        ) from None
    except errors.CapacityError as error:
        raise Failure(
            f"there are more than about {shape['capacity']} different lines; give a larger "
            "--capacity"
        ) from error


@click.command("add", epilog=example('bloomlock add urls "$url" > /dev/null && wget "$url"'))
@options.name_argument
@options.items_argument
@options.where_options
def add_command(name: str, items: tuple[str, ...], **where: Any) -> int:
    """Add ITEMs, or the lines of standard input, and write how many were new.

    `bloomlock filter create` makes the filter. Of all processes that add the same new item
    exactly one finds it new.

    Exit status: 0 if any item was new, 1 if all were seen before, 2 after an error.
    """
    return _count(add, name, items, **where)


@click.command("exists", epilog=example("bloomlock exists urls --new < list-of-urls.txt"))
@options.name_argument
@options.items_argument
@click.option("--seen", "write", flag_value="seen", help="Write the items that were seen before.")
@click.option("--new", "write", flag_value="new", help="Write the items that were not.")
@options.where_options
def exists_command(name: str, items: tuple[str, ...], *, write: str | None, **where: Any) -> int:
    """Say whether ITEMs, or the lines of standard input, were added; adds nothing.

    A yes is wrong at the filter's error rate, a no never.

    Exit status: 0 if all were seen, 1 if some were not, 2 after an error.
    """
    chosen = None if write is None else write == "new"
    with options.open_as_it_is(name, **where) as bloom:
        return NO if answer(test, bloom, items=items, write=chosen) else 0


@click.command("discard", epilog=example('bloomlock discard urls "$url"'))
@options.name_argument
@options.items_argument
@options.where_options
def discard_command(name: str, items: tuple[str, ...], **where: Any) -> int:
    """Discard ITEMs, or the lines of standard input; write how many were there.

    No other item is touched. A discarded item is new to the next that adds it.

    Exit status: 0 if any item was there, 1 if none was, 2 after an error.
    """
    return _count(discard, name, items, **where)


def _count(ask: Ask, name: str, items: Sequence[str], **where: Any) -> int:
    with options.open_as_it_is(name, **where) as bloom:
        count = answer(ask, bloom, items=items)
    click.echo(count)
    return 0 if count else NO
