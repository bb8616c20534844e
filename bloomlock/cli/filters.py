"""`bloomlock filter ls`, `info`, `plan`, `create`, `clear`, `delete`: filters as a whole."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import bloomlock

from .errors import ERROR, NO, Failure, sentence, warn
from .options import (
    DEFAULT_ERROR_RATE,
    Count,
    create,
    creation_options,
    error_rate_option,
    example,
    json_option,
    key_option,
    name_argument,
    open_as_it_is,
    opens_filter,
    optimize_option,
    parameters_of,
    slices_option,
    url_option,
    window_of,
    window_option,
)
from .tables import print_fields, print_json, shown, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .options import Named

_GIB = 2**30
_names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME...")
_yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.command("ls", epilog=example("bloomlock filter ls | grep ^test-"))
@url_option
def ls_command(*, url: str | None) -> None:
    """Write the names of all filters, one a line; `filter top` shows more of each.

    The server looks at all its keys.
    """
    for name in bloomlock.catalog.list_filters(client=url):
        click.echo(shown(name))


@click.command("info", epilog=example("bloomlock filter info urls --json | jq .fill_ratio"))
@name_argument
@json_option
@opens_filter
def info_command(named: Named, *, as_json: bool) -> None:
    """Show a filter's parameters, fill, error rate now and memory.

    The server reads the whole bitmap for it, about 1 s for 10 GiB.
    """
    with named as bloom:
        info = bloom.info()
        left = bloom.ttl()
    fields = asdict(info) | {"ttl": left}
    if as_json:
        print_json(fields)
        return
    del fields["claims"]  # see `claims ls`
    print_fields(fields)


@click.command("create", epilog=example("bloomlock filter create urls --capacity 50e6 --window 7d"))
@name_argument
@creation_options
def create_command(name: str, **options: Any) -> None:
    """Create a filter, and write what it will take.

    It may exist already, with the same parameters; it keeps its items then.
    """
    with create(name, parameters_of(**options)) as bloom:
        shards = "1 shard" if bloom.shards == 1 else f"{bloom.shards} shards"
        click.echo(
            f"{shown(name)}: {bloom.capacity} items at {bloom.error_rate:g}, {bloom.num_hashes} "
            f"hash functions, {size_text(bloom.num_bits // 8)} of memory in {shards}"
        )


@click.command("clear", epilog=example("bloomlock filter clear urls"))
@_names_argument
@_yes_option
@url_option
@key_option
def clear_command(names: tuple[str, ...], *, url: str | None, key: bytes | None, yes: bool) -> int:
    """Empty filters for all their users, keeping their parameters.

    Asks first, at the terminal; where there is none --yes has to be given.
    """

    def clear(name: str) -> None:
        with open_as_it_is(name, url, key) as bloom:
            bloom.clear()

    return _for_each(names, "Clear", clear, yes=yes)


@click.command("delete", epilog=example("bloomlock filter delete urls"))
@_names_argument
@_yes_option
@url_option
def delete_command(names: tuple[str, ...], *, url: str | None, yes: bool) -> int:
    """Delete filters, also broken ones.

    Asks first, at the terminal; where there is none --yes has to be given.
    """

    def delete(name: str) -> None:
        if not bloomlock.catalog.delete_filter(name, client=url):
            raise bloomlock.errors.FilterNotFoundError(f"there is no filter named {name!r}")

    return _for_each(names, "Delete", delete, yes=yes)


def _for_each(names: Sequence[str], verb: str, act: Callable[[str], None], *, yes: bool) -> int:
    question = f"{verb} {', '.join(map(repr, names))}?"
    if not yes:
        # What comes through a pipe does not answer the question.
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
            raise Failure(f"{question} There is no terminal to ask at; give --yes")
        if not click.confirm(question, prompt_suffix=" ", err=True):
            return NO
    status = 0
    for name in names:
        try:
            act(name)
        except bloomlock.errors.BloomlockError as error:
            # The others are still wanted gone; rm does the same.
            warn(sentence(str(error)))
            status = ERROR
    return status


@click.command(
    "plan", epilog=example("bloomlock filter plan 41e9 --rate 111200 --server-memory 64")
)
@click.argument("items", type=Count())
@error_rate_option
@optimize_option
@window_option
@slices_option
@click.option("--shards", type=click.IntRange(1), metavar="N", help="Redis strings of its bits.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True, max=float("inf"), max_open=True),
    metavar="N",
    help="Items checked in a second.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    metavar="N",
    default=1000,
    show_default=True,
    help="Items of a batch.",
)
@click.option(
    "--server-memory",
    type=click.FloatRange(0, min_open=True, max=float("inf"), max_open=True),
    metavar="GIB",
    help="GiB of one server for it.",
)
@json_option
def plan_command(
    *,
    items: int,
    error_rate: float | None,
    rate: float | None,
    server_memory: float | None,
    as_json: bool,
    window: float | None,
    slices: int | None,
    **shape: Any,
) -> None:
    """Say what a filter for so many different ITEMS takes. It needs no server.

    Sizes follow from the formulas that filters are made by, times from measured
    constants. With --window ITEMS are those of that time.
    """
    made = bloomlock.plan(
        items,
        DEFAULT_ERROR_RATE if error_rate is None else error_rate,
        **shape,
        window=window_of(window, slices),
        items_per_s=rate,
        server_bytes=None if server_memory is None else server_memory * _GIB,
    )
    fields = asdict(made) | {"servers": made.servers}
    if as_json:
        print_json(fields)
    else:
        print_fields(fields)
