"""`bloomlock dedup`, `add`, `exists` and `discard`: from lines to answers to lines, in batches.

No line may be lost: one that the server may have marked as seen counts as new if the answer did
not arrive, because no other client will be answered that it is new. Between the moment a server
marks an item and the moment its line is written, signals are only noted.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bloomlock import MemoryBloomFilter, errors

from . import options
from .options import STDIN, example
from .output import NO, Failure, noted_signals, opened, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Answers = list[bool | None]
    """For each line whether it is new; None: it is not marked as seen."""
    Ask = Callable[[Any, Sequence[bytes], Answers], None]
    """Adds its answers to a list, also if it raises an error then."""

CAPACITY_FOR_A_PIPE = 10_000_000
"""59 MB at the default rate, taken as they are first used."""
_ON_SERVERS = {
    "client": "--url",
    "window": "--window",
    "on_full": "--grow",
    "strategy": "--native",
}
FIRST_LINES = 512
"""A kill -9 between answer and output loses a batch on a server, so the first ones are small."""
_MOST_LINES = 2**18  # what the library takes as one batch at most
_MOST_IN_PROCESS = 2**13  # what the processor's caches like
BLOCK_BYTES = 1024 * 1024
LINE_BYTES = 32
"""Of a usual line: so much is read for each line of the largest batch."""
_FILE_GONE = select.POLLERR | select.POLLHUP
_LOOK_SECONDS = 0.1


def answer(
    ask: Ask,
    bloom: Any,
    files: Sequence[str] = (STDIN,),
    *,
    items: Sequence[str] = (),
    write: bool | None = None,
) -> int:
    """Answer `items`, or the lines of files where there are none; return how many were new.

    The new ones are written, or (`write=False`) the others, or (None) none.
    """
    output = None if write is None else opened(sys.stdout, "standard output").fileno()
    most = _MOST_IN_PROCESS if isinstance(bloom, MemoryBloomFilter) else _MOST_LINES
    num_new, check = 0, noted_signals()
    batches: Iterable[Sequence[bytes]] = [[os.fsencode(item) for item in items]]
    if not items:
        batches = read_lines(files, check, most)
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
                write_lines(output, list(compress(batch, chosen)))
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


def count_lines(names: Sequence[str]) -> int | None:
    """Refuse a file that cannot be read; return how many lines all hold at most.

    That is unknown if one is a pipe or the like.
    """
    lines, files = 0, 0
    # Opening a named pipe can be felt at its other end.
    for name in [name for name in names if not Path(name).is_fifo()]:
        with _opened(name) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue
            # Standard input may be a file of which another process has read a part.
            start = os.lseek(descriptor, 0, os.SEEK_CUR)
            while block := os.read(descriptor, BLOCK_BYTES):
                lines += block.count(b"\n")
            os.lseek(descriptor, start, os.SEEK_SET)
            lines, files = lines + 1, files + 1
    return lines if files == len(names) else None


def read_lines(names: Iterable[str], check: Callable[[], None], most: int) -> Iterator[list[bytes]]:
    """Yield the lines of files, without their ends; the end of a file ends a line.

    They come in batches, which double from FIRST_LINES to `most`. Lines of a pipe are not held
    back until there are more.
    """
    size = FIRST_LINES
    for name in names:
        with _opened(name) as descriptor:
            rest = bytearray()
            while block := _read_block(descriptor, check, most * LINE_BYTES):
                rest += block
                if b"\n" in block:
                    *lines, last = bytes(rest).split(b"\n")
                    rest = bytearray(last)
                    while lines:
                        batch, lines = lines[:size], lines[size:]
                        yield batch
                        if len(batch) == size:
                            size = min(2 * size, most)
            if rest:
                yield [bytes(rest)]


def _read_block(descriptor: int, check: Callable[[], None], size: int) -> bytes:
    """Wait for bytes, and return what is there by then; empty at the end."""
    block = b""
    while len(block) < size:
        check()
        if select.select([descriptor], [], [], 0 if block else _LOOK_SECONDS)[0]:
            more = os.read(descriptor, size)
            if not more:
                break
            block += more
        elif block:
            break
    return block


@contextmanager
def _opened(name: str) -> Iterator[int]:
    if name == STDIN:
        yield opened(sys.stdin, "standard input").fileno()
    else:
        with open(name, "rb", buffering=0) as file:  # noqa: PTH123 - the name may be any bytes
            yield file.fileno()


def check_reader(descriptor: int) -> None:
    """Raise BrokenPipeError if the reader has gone.

    Called before items are marked as seen, so that lines without a reader are not.
    """
    poll = select.poll()
    poll.register(descriptor, 0)
    if any(event & _FILE_GONE for _, event in poll.poll(0)):
        raise BrokenPipeError


def write_lines(descriptor: int, lines: Sequence[bytes]) -> None:
    """Write lines and return when the system has all of them."""
    left = memoryview(b"\n".join([*lines, b""]))
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Failure(
                f"cannot write to standard output: {error.strerror}; lines that are marked as "
                f"seen and were not written: at most {len(lines)}"
            ) from error


@click.command(
    "dedup", epilog=example("tail -F access.log | cut -d' ' -f7 | bloomlock dedup --name paths")
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--name", metavar="NAME", help="Share this filter; it is created if needed.")
@click.option("--seen", is_flag=True, help="Write the lines seen before instead.")
@options.creation_options
def dedup_command(files: tuple[str, ...], *, name: str | None, seen: bool, **given: Any) -> None:
    """Write each line of FILEs, or of standard input, that was never seen before."""
    if name is None and (about := [_ON_SERVERS[one] for one in _ON_SERVERS if given[one]]):
        raise Failure(f"{about[0]} needs --name: it is about a filter on a server")
    files = files or (STDIN,)
    lines = count_lines(files)
    if name is not None:
        where = {option: given.pop(option) for option in ("client", "key")}
        with options.create_or_open(name, lines, where, **given) as shared:
            answer(add, shared, files, write=not seen)
        return
    room = CAPACITY_FOR_A_PIPE if lines is None else max(options.DEFAULT_CAPACITY, lines)
    given["capacity"] = given["capacity"] or room
    bloom = MemoryBloomFilter(on_full="raise", **options.shape(**given))
    try:
        answer(add, bloom, files, write=not seen)
    except errors.CapacityError as error:
        raise Failure(
            f"there are more than about {bloom.capacity} different lines; give a larger --capacity"
        ) from error


@click.command("add", epilog=example('bloomlock add urls "$url" > /dev/null && wget "$url"'))
@options.name_argument
@options.items_argument
@options.where_options
def add_command(name: str, items: tuple[str, ...], **where: Any) -> int:
    """Add ITEMs, or the lines of standard input, and write how many were new.

    `bloomlock filter create` makes the filter. Of all processes that add the same new item
    exactly one finds it new. The exit status is 1 if none was new.
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

    A yes is wrong at the filter's error rate, a no never. The exit status is 1 if some
    were not.
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

    No other item is touched. A discarded item is new to the next that adds it. The exit
    status is 1 if none was there.
    """
    return _count(discard, name, items, **where)


def _count(ask: Ask, name: str, items: Sequence[str], **where: Any) -> int:
    with options.open_as_it_is(name, **where) as bloom:
        count = answer(ask, bloom, items=items)
    click.echo(count)
    return 0 if count else NO
