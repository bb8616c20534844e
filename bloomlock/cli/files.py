"""`bloomlock filter copy`, `export` and `import`: filters to other servers, and to files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bloomlock import BloomFilter

from .errors import Failure, warn
from .lines import STDIN
from .options import (
    example,
    key_option,
    name_argument,
    open_as_it_is,
    opens_filter,
    url_option,
)
from .progress import moving_bytes
from .tables import size_text

if TYPE_CHECKING:
    from .options import Named

_replace_option = click.option(
    "--replace", is_flag=True, help="Replace a filter of that name; it is in use until then."
)


@click.command("copy", epilog=example("bloomlock filter copy urls --to redis://new:6379/0"))
@name_argument
@click.argument("new_name", metavar="[NEW]", required=False)
@click.option("--to", "target", metavar="URL", help="Another server.  [default: the same]")
@_replace_option
@url_option
@key_option
def copy_command(
    name: str,
    new_name: str | None,
    *,
    target: str | None,
    url: str | None,
    key: bytes | None,
    replace: bool,
) -> None:
    """Copy the filter NAME to another server, or to the name NEW.

    All that was added before is in the copy; clients may go on adding. What was
    written is read back and compared, then the copy gets its name.
    """
    with open_as_it_is(name, url, key) as bloom:
        with moving_bytes(2 * _num_bytes(bloom)) as moved:
            made = bloom.copy_to(target or url, new_name or name, replace=replace, progress=moved)
        with made:
            _say("copied", made, made.name)


@click.command("export", epilog=example("bloomlock filter export urls - | zstd > urls.zst"))
@name_argument
@click.argument("file", metavar="FILE")
@click.option("-f", "--force", is_flag=True, help="Replace a FILE that is there.")
@opens_filter
def export_command(named: Named, file: str, *, force: bool) -> None:
    """Write the filter NAME to FILE; "-" is standard output.

    All that was added before is in it; clients may go on adding. FILE has its name
    when it is whole and on the disk, and checksums of all its bytes. A random key is
    in it, a secret one is not.
    """
    if file != STDIN and not force and Path(file).exists():
        raise Failure(f"{file} is there; give --force to replace it")
    if file == STDIN and sys.stdout.isatty():
        raise Failure("a filter is not written to a terminal; give a FILE, or a pipe")
    with named as bloom:
        with moving_bytes(_num_bytes(bloom)) as moved:
            bloom.export_file(sys.stdout.buffer if file == STDIN else file, progress=moved)
        _say("wrote", bloom, "standard output" if file == STDIN else file)


@click.command("import", epilog=example("zstd -dc urls.zst | bloomlock filter import urls -"))
@name_argument
@click.argument("file", metavar="FILE")
@_replace_option
@url_option
@key_option
def import_command(
    name: str, file: str, *, url: str | None, key: bytes | None, replace: bool
) -> None:
    """Make a filter NAME of what `export` wrote to FILE; "-" is standard input.

    Its checksums are compared. NAME is there when all of FILE is; until then other
    clients are refused it, or use the filter that is replaced.
    """
    total = None if file == STDIN else Path(file).stat().st_size
    with moving_bytes(total) as moved:
        source = sys.stdin.buffer if file == STDIN else file
        made = BloomFilter.import_file(
            name, source, client=url, key=key, replace=replace, progress=moved
        )
    with made:
        _say("imported", made, name)


def _num_bytes(bloom: BloomFilter) -> int:
    """Return how long the bits of a filter are, those of all slices if it grows."""
    return (bloom.num_bits if bloom.growth is None else bloom.info().num_bits) // 8


def _say(what: str, bloom: BloomFilter, where: str) -> None:
    """Write one line about what was done to standard error, as data may go to the other."""
    info = bloom.info()
    warn(
        f"{what} {os.fspath(where)}: about {info.estimated_count} items of "
        f"{info.up_to or info.capacity}, {size_text(info.memory_bytes)}"
    )
