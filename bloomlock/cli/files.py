"""`bloomlock filter export`, `import`, `copy`, `rebuild`: filters and files."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bloomlock import BloomFilter, MemoryBloomFilter, verify_file
from bloomlock.errors import FilterNotFoundError

from .errors import Failure, Stopped, warn
from .filters import size_text
from .options import (
    bytes_for,
    examples,
    key_option,
    name_argument,
    number,
    open_as_it_is,
    url_option,
)
from .progress import show_progress
from .streams import STDIN, SignalGuard, check_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from bloomlock import FilterInfo

_SHOWN_BYTES = 64 * 1024
"""Read between two looks at signals and the bar."""

_dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Say what would be done, after all that can be checked."
)
_replace_option = click.option(
    "--replace",
    is_flag=True,
    help="Take the place of a filter of that name, which stays in use until then.",
)


@click.command(
    "export",
    epilog=examples(
        "bloomlock filter export urls urls.bloom",
        "bloomlock filter export urls - | zstd > urls.bloom.zst",
    ),
)
@name_argument
@click.argument("file", metavar="FILE")
@url_option
@key_option
@click.option("-f", "--force", is_flag=True, help="Replace a FILE that is there.")
@_dry_run_option
def export_command(
    name: str, file: str, *, url: str | None, key: bytes | None, force: bool, dry_run: bool
) -> None:
    """Write the filter NAME to FILE; "-" is standard output.

    All that was added before is in it; clients may go on adding. FILE has its name when it is whole
    and on the disk, and has checksums of all its bytes. A random key is in it, a secret one is not.
    """
    if file != STDIN and not force and Path(file).exists():
        raise Failure(f"{file} is there; give --force to replace it")
    if file == STDIN and not dry_run and sys.stdout.isatty():
        raise Failure("a filter is not written to a terminal; give a FILE, or a pipe")
    with open_as_it_is(name, url, key) as bloom:
        if dry_run:
            _say("would write", bloom.info(), file)
            return
        with _moving(_num_bytes(bloom)) as moved:
            target = sys.stdout.buffer if file == STDIN else file
            bloom.export_file(target, progress=moved)
        info = bloom.info()
    _say("wrote", info, file)


@click.command(
    "import",
    epilog=examples(
        "bloomlock filter import urls urls.bloom",
        "zstd -dc urls.bloom.zst | bloomlock filter import urls -",
        "bloomlock filter import --dry-run urls urls.bloom",
    ),
)
@name_argument
@click.argument("file", metavar="FILE")
@url_option
@key_option
@_replace_option
@_dry_run_option
def import_command(
    name: str, file: str, *, url: str | None, key: bytes | None, replace: bool, dry_run: bool
) -> None:
    """Make a filter NAME of what `export` wrote to FILE; "-" is standard input.

    Its checksums are compared. NAME is there when all of FILE is; until then other clients are
    refused it, or use the filter that is replaced. After an interruption run the same command
    again.

    --dry-run reads all of FILE, and looks whether NAME is free.
    """
    if dry_run:
        if file == STDIN:
            raise Failure("--dry-run needs a FILE, as what a pipe gives could not be read again")
        holds = verify_file(file, key=key)
        _refuse_taken(name, url, key, replace=replace)
        if holds.window is None and not holds.grows and not holds.forgotten:
            _say("would import", MemoryBloomFilter.load(file, mode="r", key=key).info(), name)
        else:
            size = size_text(holds.num_bytes)
            warn(f"would import {name}: a filter of {holds.capacity} items, {size}")
        return
    total = None if file == STDIN else Path(file).stat().st_size
    with _moving(total) as moved:
        source = sys.stdin.buffer if file == STDIN else file
        made = BloomFilter.import_file(
            name, source, client=url, key=key, replace=replace, progress=moved
        )
    with made:
        _say("imported", made.info(), name)


@click.command(
    "copy",
    epilog=examples(
        "bloomlock filter copy urls --to redis://new-server:6379/0",
        "bloomlock filter copy urls urls-of-may",
    ),
)
@name_argument
@click.argument("new_name", metavar="[NEW]", required=False)
@url_option
@click.option(
    "--to", "target", metavar="URL", help="The other server.  [default: the filter's own]"
)
@key_option
@_replace_option
@_dry_run_option
def copy_command(
    name: str,
    new_name: str | None,
    *,
    url: str | None,
    target: str | None,
    key: bytes | None,
    replace: bool,
    dry_run: bool,
) -> None:
    """Copy the filter NAME to another server, or to the name NEW.

    All that was added before is in the copy; clients may go on adding. What was written is read
    back and compared, then the copy gets its name. After an interruption run the same command
    again.
    """
    target = url if target is None else target
    new_name = name if new_name is None else new_name
    with open_as_it_is(name, url, key) as bloom:
        if dry_run:
            _refuse_taken(new_name, target, key, replace=replace)
            _say("would copy", bloom.info(), new_name)
            return
        with _moving(2 * _num_bytes(bloom)) as moved:
            made = bloom.copy_to(target, new_name, replace=replace, progress=moved)
    with made:
        _say("copied", made.info(), new_name)


@click.command(
    "rebuild",
    epilog=examples(
        "bloomlock filter rebuild urls all-urls.log --capacity 50000000",
        "bloomlock filter rebuild urls all-urls.log --error-rate 1e-4 --dry-run",
    ),
)
@name_argument
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--capacity", type=number(int), metavar="N", help="Of the new filter.")
@click.option("--error-rate", type=number(float), metavar="P", help="Of the new filter.")
@url_option
@key_option
@_dry_run_option
def rebuild_command(
    name: str,
    files: tuple[str, ...],
    *,
    capacity: int | None,
    error_rate: float | None,
    url: str | None,
    key: bytes | None,
    dry_run: bool,
) -> None:
    """Make the filter NAME anew from the lines of FILEs, with another capacity or error rate.

    FILEs are where its items are kept, and may grow meanwhile. NAME is in use while they are read.
    Then it takes no items until the lines that came since are added too. What was acknowledged is
    never absent, if it is written to a FILE before it is added. The key stays.
    """
    total = check_files(files)
    with open_as_it_is(name, url, key) as bloom:
        capacity = bloom.capacity if capacity is None else capacity
        error_rate = bloom.error_rate if error_rate is None else error_rate
        if dry_run:
            size = size_text(bytes_for(capacity, error_rate))
            warn(f"would rebuild {name}: {capacity} items at {error_rate:g}, about {size}")
            return
        with ExitStack() as stack, _moving(total) as moved:
            opened = [stack.enter_context(Path(file).open("rb")) for file in files]
            journal = Journal(opened, lambda count: moved(count, 0))
            bloom.rebuild(journal.lines(), capacity, error_rate, late=journal.rest_of_lines)
        _say("rebuilt", bloom.info(), name)


class Journal:
    """The lines of files that grow."""

    def __init__(self, files: Sequence[BinaryIO], read: Callable[[int], None]) -> None:
        self._files = files
        self._read = read
        self._bytes = self._shown = 0
        # What stands at the ends of the files without the end of a line.
        self._begun = [b""] * len(files)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that are whole and were not yielded yet."""
        for index, file in enumerate(self._files):
            for found in file:
                self._bytes += len(found)
                if self._bytes - self._shown >= _SHOWN_BYTES:
                    self._shown = self._bytes
                    self._read(self._bytes)
                line = self._begun[index] + found
                if line.endswith(b"\n"):
                    self._begun[index] = b""
                    yield line[:-1]
                else:
                    self._begun[index] = line

    def rest_of_lines(self) -> Iterator[bytes]:
        """Yield the lines that came since, and what may be a line without its end."""
        yield from self.lines()
        yield from filter(None, self._begun)


def _num_bytes(bloom: BloomFilter) -> int:
    """Return how long the bits of a filter are, those of all slices if it grows."""
    return (bloom.num_bits if bloom.growth is None else bloom.info().num_bits) // 8


@contextmanager
def _moving(total: int | None) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of the bytes, and let a signal end what goes on between two parts."""
    with SignalGuard() as guard, show_progress(total, writes=False, what="bytes") as progress:
        before = 0

        def moved(done: int, _all: int) -> None:
            nonlocal before
            guard.check()
            progress.read(done - before)
            progress.answered(done, None)
            before = done

        try:
            yield moved
            guard.check()
        except Stopped:
            warn("interrupted; nothing is left of it: run the same command again")
            raise


def _refuse_taken(name: str, url: str | None, key: bytes | None, *, replace: bool) -> None:
    try:
        open_as_it_is(name, url, key).close()
    except FilterNotFoundError:
        return
    if not replace:
        raise Failure(f"name {name!r} is taken by another filter; give --replace to replace it")


def _say(what: str, info: FilterInfo, where: str) -> None:
    """Write one line about what was done to standard error, as data may go to the other."""
    called = "standard output" if where == STDIN else os.fspath(where)
    warn(
        f"{what} {called}: about {info.estimated_count} items of {info.up_to or info.capacity}, "
        f"{size_text(info.memory_bytes)}"
    )
