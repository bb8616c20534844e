"""`bloomlock filter export`, `import`, `copy`: whole filters to files and other servers."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bloomlock import BloomFilter, FilterNotFoundError, MemoryBloomFilter

from .errors import Failure, Stopped, warn
from .filters import size_text
from .options import examples, key_option, name_argument, open_as_it_is, url_option
from .progress import show_progress
from .streams import STDIN, SignalGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bloomlock import FilterInfo

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
        total = bloom.num_bits // 8
        with _moving(total) as moved:
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
        memory = MemoryBloomFilter.load(file, mode="r", key=key, verify=True)
        _refuse_taken(name, url, key, replace=replace)
        _say("would import", memory.info(), name)
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
        with _moving(bloom.num_bits // 4) as moved:
            made = bloom.copy_to(target, new_name, replace=replace, progress=moved)
    with made:
        _say("copied", made.info(), new_name)


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
        f"{what} {called}: about {info.estimated_count} items of {info.capacity}, "
        f"{size_text(info.memory_bytes)}"
    )
