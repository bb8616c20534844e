"""`bloomlock filter`: unions, when filters expire, and what they are called."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

import bloomlock

from . import LazyGroup
from .errors import NO, Failure
from .filters import size_text
from .options import duration, examples, key_option, name_argument, open_as_it_is, url_option
from .progress import show_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMANDS = {
    "export": ("files:export_command", "Write a filter to a file."),
    "import": ("files:import_command", "Make a filter of what export wrote."),
    "copy": ("files:copy_command", "Copy a filter to another server, or to another name."),
    "rebuild": ("files:rebuild_command", "Make a filter anew, with other parameters."),
    "union": ("filter_group:union_command", "Add to a filter what another holds."),
    "rename": ("filter_group:rename_command", "Give a filter another name."),
    "expire": ("filter_group:expire_command", "Let a filter go after some time."),
    "persist": ("filter_group:persist_command", "Let a filter stay that was to expire."),
    "ttl": ("filter_group:ttl_command", "Write in how many seconds a filter expires."),
}

_other_argument = click.argument("other")
_other_url_option = click.option(
    "--other-url", metavar="URL", help="Server of OTHER.  [default: that of NAME]"
)
_dry_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Check everything, say what would be done, and stop."
)


@click.group(
    "filter",
    cls=LazyGroup,
    places=COMMANDS,
    epilog=examples(
        "bloomlock filter union seen archive",
        "bloomlock filter export seen seen.bloom",
        "bloomlock filter rename seen seen-2026",
        "bloomlock filter expire session 7d",
    ),
)
def filter_group() -> None:
    """Bring filters to files and other servers, combine them, let them expire, rename them."""


@click.command("union", epilog=examples("bloomlock filter union seen archive"))
@name_argument
@_other_argument
@url_option
@_other_url_option
@key_option
@_dry_option
def union_command(
    name: str,
    other: str,
    *,
    url: str | None,
    other_url: str | None,
    key: bytes | None,
    dry_run: bool,
) -> None:
    """Add to NAME everything that OTHER holds.

    Both need the same parameters, and may be in use meanwhile. What is added to NAME meanwhile
    stays; what is added to OTHER may come too. It may be repeated.
    """
    with _pair(name, other, url, other_url, key) as (mine, theirs):
        if dry_run:
            click.echo(f"would add {other!r} to {name!r}: {_size(mine)}")
            return
        with _bar() as progress:
            mine.union_update(theirs, progress=progress)


@click.command(
    "expire",
    epilog=examples("bloomlock filter expire session 1.5h", "bloomlock filter ttl session"),
)
@name_argument
@click.argument("ttl", metavar="TTL")
@url_option
@key_option
def expire_command(name: str, ttl: str, *, url: str | None, key: bytes | None) -> None:
    """Let a filter go after TTL: seconds, or a number with m, h, d or w; `persist` undoes it."""
    seconds = duration(ttl)
    if not isinstance(seconds, float):
        raise Failure(f"TTL must be a number of seconds, or one with s, m, h, d or w, not {ttl!r}")
    with open_as_it_is(name, url, key) as bloom:
        bloom.expire(seconds)


@click.command("persist", epilog=examples("bloomlock filter persist session"))
@name_argument
@url_option
@key_option
def persist_command(name: str, *, url: str | None, key: bytes | None) -> None:
    """Let a filter stay that was to expire."""
    with open_as_it_is(name, url, key) as bloom:
        bloom.persist()


@click.command("ttl", epilog=examples("bloomlock filter ttl session"))
@name_argument
@url_option
@key_option
def ttl_command(name: str, *, url: str | None, key: bytes | None) -> int:
    """Write in how many seconds a filter expires.

    Exit status: 0 if it does, 1 if not (nothing is written then), 2 after an error.
    """
    with open_as_it_is(name, url, key) as bloom:
        left = bloom.ttl()
    if left is None:
        return NO
    click.echo(f"{left:.3f}")
    return 0


@click.command("rename", epilog=examples("bloomlock filter rename seen seen-2026"))
@name_argument
@click.argument("new_name", metavar="NEW_NAME")
@url_option
@_dry_option
def rename_command(name: str, new_name: str, *, url: str | None, dry_run: bool) -> None:
    """Give a filter another name, which must be free; its users find it lost."""
    if dry_run:
        names = bloomlock.catalog.list_filters(client=url)
        if name not in names:
            raise Failure(f"there is no filter named {name!r}")
        if new_name == name:
            raise Failure(f"the new name must not be {name!r}, the one that it has")
        if new_name in names:
            raise Failure(f"name {new_name!r} is taken by another filter")
        click.echo(f"would rename {name!r} to {new_name!r}")
        return
    bloomlock.catalog.rename_filter(name, new_name, client=url)


@contextmanager
def _pair(
    name: str, other: str, url: str | None, other_url: str | None, key: bytes | None
) -> Iterator[tuple[bloomlock.BloomFilter, bloomlock.BloomFilter]]:
    """Open two filters whose bits can be combined."""
    with ExitStack() as stack:
        mine = stack.enter_context(open_as_it_is(name, url, key))
        theirs = stack.enter_context(open_as_it_is(other, other_url or url, key))
        if found := mine.differences(theirs):
            raise Failure(f"filters {name!r} and {other!r} cannot be combined: {'; '.join(found)}")
        yield mine, theirs


def _size(bloom: bloomlock.BloomFilter) -> str:
    shards = "1 shard" if bloom.shards == 1 else f"{bloom.shards} shards"
    return f"{size_text(bloom.num_bits / 8)} in {shards}"


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Show how much is done, at a terminal."""
    with show_progress(100, writes=False) as shown:
        done = 0.0

        def progress(now: int, total: int) -> None:
            nonlocal done
            shown.read(round(100 * now / total - done))
            done += round(100 * now / total - done)

        yield progress
