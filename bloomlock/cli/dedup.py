"""`bloomlock dedup`: the lines that were never seen before."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

import bloomlock

from .answers import add, add_in_memory, answer
from .errors import Failure
from .lines import STDIN, measure
from .options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    create,
    creation_options,
    example,
    open_as_it_is,
    parameters_of,
    zero_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bloomlock import BloomFilter, MemoryBloomFilter

CAPACITY_FOR_A_PIPE = 10_000_000
"""59 MB at the default rate, taken as they are first used."""
_ON_SERVERS = {
    "client": "--url",
    "window": "--window",
    "on_full": "--grow",
    "strategy": "--native",
}


@click.command(
    "dedup", epilog=example("tail -F access.log | cut -d' ' -f7 | bloomlock dedup --name paths")
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--name", metavar="NAME", help="Share this filter; it is created if needed.")
@click.option("--seen", is_flag=True, help="Write the lines seen before instead.")
@click.option("--count", is_flag=True, help="Write only how many lines it would be.")
@zero_option
@click.option("--recreate", is_flag=True, help="Go on if the filter is cleared or deleted.")
@creation_options
def dedup_command(
    files: tuple[str, ...],
    *,
    name: str | None,
    seen: bool,
    count: bool,
    delimiter: bytes,
    recreate: bool,
    **options: Any,
) -> None:
    """Write each line of FILEs, or of standard input, that was never seen before."""
    files = files or (STDIN,)
    total, lines = measure(files, delimiter)
    parameters = parameters_of(**options)
    answered = partial(
        answer, files=files, total=total, write=None if count else not seen, delimiter=delimiter
    )
    if name is None:
        if recreate:
            raise Failure("--recreate is about a filter on a server; give its --name")
        with _in_process(parameters, lines) as memory:
            found = answered(add_in_memory, memory)
    else:
        policies = {"on_lost": "recreate"} if recreate else {}
        with create_or_open(name, parameters, lines, **policies) as bloom:
            found = answered(add, bloom)
    if count:
        click.echo(found.lines - found.new if seen else found.new)


@contextmanager
def _in_process(parameters: dict[str, Any], lines: int | None) -> Iterator[MemoryBloomFilter]:
    for name, option in _ON_SERVERS.items():
        if parameters.get(name) is not None:
            raise Failure(f"{option} needs --name: it is about a filter on a server")
    shape = {"error_rate": DEFAULT_ERROR_RATE, **parameters}
    del shape["client"]
    capacity = shape.pop("capacity", None)
    if capacity is None:
        capacity = CAPACITY_FOR_A_PIPE if lines is None else _that_fits(lines, **shape)
    try:
        yield bloomlock.MemoryBloomFilter(capacity, on_full="raise", **shape)
    except MemoryError:
        raise Failure(
            f"a filter for {capacity} lines does not fit into memory; give a smaller --capacity"
        ) from None
    except bloomlock.errors.CapacityError as error:
        raise Failure(
            f"there are more than about {capacity} different lines; give a larger --capacity"
        ) from error


def _that_fits(lines: int, error_rate: float, **shape: Any) -> int:
    """Return the capacity for all lines, or what half of the machine's memory holds."""
    wanted = max(DEFAULT_CAPACITY, lines)
    one = bloomlock.MemoryBloomFilter(DEFAULT_CAPACITY, error_rate, **shape)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Many lines may be repeats, so it is tried.
    return min(wanted, int(memory / 2 * 8 * DEFAULT_CAPACITY / one.num_bits))


def create_or_open(
    name: str, parameters: dict[str, Any], lines: int | None, **policies: Any
) -> BloomFilter:
    """Open a filter, to which `parameters` must fit, or create one with room for `lines`."""
    client, key = parameters["client"], parameters.get("key")
    secret = key if isinstance(key, bytes) else None
    try:
        found = open_as_it_is(name, client, secret, **policies)
    except bloomlock.errors.FilterNotFoundError:
        sized = {"capacity": max(DEFAULT_CAPACITY, lines or 0), **parameters}
        try:
            return create(name, sized, **policies)
        except bloomlock.errors.FilterMismatchError:
            # Another process may have created it since, for another number of lines.
            found = open_as_it_is(name, client, secret, **policies)
    if not parameters.keys() - {"client", "key"} and key is not True:
        return found
    # What the user did not say is as it is stored; the library compares the rest.
    stored: dict[str, Any] = {"capacity": found.capacity, "error_rate": found.error_rate}
    if found.seeds is not None:
        stored["seeds"] = found.seeds
    elif "optimize" not in parameters:
        stored["num_hashes"] = found.num_hashes
    if found.window is not None:
        stored["window"] = bloomlock.Window(found.window, found.slices)
    if found.growth is not None:
        stored["on_full"] = "grow"
    found.close()
    return create(name, {**stored, **parameters}, **policies)
