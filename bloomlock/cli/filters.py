"""`bloomlock info`, `ls`, `clear` and `delete`: filters as a whole."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bloomlock.catalog import delete_filter, list_filters
from bloomlock.errors import BloomlockError

from .errors import ERROR, NO, Failure, sentence, warn
from .options import examples, key_option, name_argument, open_as_it_is, url_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock import FilterInfo

_UNIT = 1024
_KEYS = {None: "none", "secret": "secret", "random": "random, stored with the filter"}

_names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME...")
_yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.command(
    "info",
    epilog=examples(
        "bloomlock info urls",
        "bloomlock info urls --json | jq .estimated_count",
    ),
)
@name_argument
@url_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def info_command(name: str, *, url: str | None, key: bytes | None, as_json: bool) -> None:
    """Show a filter's parameters, how full it is, its error rate now and its memory.

    The server reads the whole bitmap for it, about 1 s for 10 GiB.
    """
    with open_as_it_is(name, url, key) as bloom:
        info = bloom.info()
        left = bloom.ttl()
    if as_json:
        click.echo(json.dumps(asdict(info), indent=2))
        return
    rows = _describe(info)
    if left is not None:
        rows.append(("expires in", f"{left:.0f} s"))
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        click.echo(f"{label:<{width}}  {value}")


@click.command(
    "ls",
    epilog=examples(
        "bloomlock ls -l",
        "bloomlock ls | grep '^test-' | xargs -d '\\n' bloomlock delete --yes",
    ),
)
@url_option
@key_option
@click.option(
    "-l", "--long", "long", is_flag=True, help="Show also items, fill and memory, as they are now."
)
def ls_command(*, url: str | None, key: bytes | None, long: bool) -> None:
    """List all filters, one name a line.

    The server goes through all its keys; for -l it reads all bitmaps. Then FILL is the number of
    items as a share of the capacity, or of what the filter can grow to, and ERROR RATE the share of
    new items that are taken for seen ones at that fill.
    """
    names = list_filters(client=url)
    if not long:
        for name in names:
            click.echo(_shown(name))
        return
    head = ("ITEMS", "CAPACITY", "FILL", "ERROR RATE", "MEMORY", "NAME")
    rows = [head, *((*_long(name, url, key), _shown(name)) for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *numbers, name in rows:
        padded = (number.rjust(width) for number, width in zip(numbers, widths, strict=False))
        click.echo("  ".join([*padded, name]))


@click.command(
    "clear",
    epilog=examples(
        "bloomlock clear urls",
    ),
)
@_names_argument
@url_option
@key_option
@_yes_option
def clear_command(names: tuple[str, ...], *, url: str | None, key: bytes | None, yes: bool) -> int:
    """Empty filters for all their users, keeping their parameters.

    Asks first, at the terminal; where there is none --yes has to be given.
    """

    def clear(name: str) -> None:
        with open_as_it_is(name, url, key) as bloom:
            bloom.clear()

    return _for_each(names, "Clear", clear, yes=yes)


@click.command(
    "delete",
    epilog=examples(
        "bloomlock delete urls",
    ),
)
@_names_argument
@url_option
@_yes_option
def delete_command(names: tuple[str, ...], url: str | None, *, yes: bool) -> int:
    """Delete filters, also broken ones.

    Asks first, at the terminal; where there is none --yes has to be given.
    """

    def delete(name: str) -> None:
        if not delete_filter(name, client=url):
            raise BloomlockError(f"there is no filter named {name!r}")

    return _for_each(names, "Delete", delete, yes=yes)


def _for_each(names: Sequence[str], verb: str, act: Callable[[str], None], *, yes: bool) -> int:
    if not yes and not confirm(f"{verb} {', '.join(map(repr, names))}?"):
        return NO
    status = 0
    for name in names:
        try:
            act(name)
        except BloomlockError as error:
            # The others are still wanted gone; rm does the same.
            warn(sentence(str(error)))
            status = ERROR
    return status


def confirm(question: str) -> bool:
    """Ask at the terminal; return whether the answer is yes."""
    # What comes through a pipe does not answer the question.
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise Failure(f"{question} There is no terminal to ask at; give --yes")
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _describe(info: FilterInfo) -> list[tuple[str, str]]:
    seeds = "default hashing" if info.seeds is None else ", ".join(map(str, info.seeds))
    return [
        ("name", _shown(info.name)),
        ("items, estimated", f"{info.estimated_count}"),
        ("capacity", f"{info.capacity}"),
        *([("grows to", f"{info.up_to}"), ("slices", f"{info.slices}")] if info.growth else []),
        ("error rate now", f"{info.current_error_rate:.3g}"),
        ("error rate at capacity", f"{info.error_rate:g}"),
        ("bits", f"{info.num_bits}"),
        ("bits set", f"{info.bits_set} ({info.fill_ratio:.2%})"),
        ("hash functions", f"{info.num_hashes}"),
        ("seeds", seeds),
        ("key", _KEYS[info.key_kind]),
        ("shards", f"{info.shards}"),
        ("generation", f"{info.generation}"),
        ("memory", size_text(info.memory_bytes)),
    ]


def _long(name: str, url: str | None, key: bytes | None) -> tuple[str, ...]:
    try:
        with open_as_it_is(name, url, key) as bloom:
            info = bloom.info()
    except BloomlockError as error:
        warn(sentence(str(error)))
        return ("?",) * 5
    return (
        f"{info.estimated_count}",
        f"{info.capacity}",
        f"{info.estimated_count / (info.up_to or info.capacity):.0%}",
        f"{info.current_error_rate:.2g}",
        size_text(info.memory_bytes),
    )


def _shown(name: str) -> str:
    """Return a name that does nothing to a terminal, as it is for anything else."""
    if not sys.stdout.isatty():
        return name
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def size_text(number: float) -> str:
    """Return a number of bytes in a unit that fits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < _UNIT:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= _UNIT
    return f"{number:.1f} TiB"
