"""`bloomlock filter`: filters as a whole, looked at, made, emptied, moved and deleted."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

import bloomlock

from . import options, output
from .crawls import connected
from .options import STDIN, example
from .output import NO, Failure, noted_signals, opened

_POSITIVE = click.FloatRange(0, min_open=True, max=float("inf"), max_open=True)
_HEAD = ("FILTER", "ITEMS", "CAPACITY", "FILL", "", "ADDS/S", "ERRORS", "MEMORY", "OPEN", "FAILED")
_LOCK_HEAD = ("LOCK", "HELD", "WAITING", "LEASE")
_CELLS = 10
_file_argument = click.argument("file", metavar="FILE")
_yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
_replace_option = click.option(
    "--replace", is_flag=True, help="Replace a filter of that name; it is in use until then."
)


@click.group("filter", epilog=example("bloomlock filter ls --help"))
def group() -> None:
    """Create filters, look at them, move and delete them."""


@group.command("ls", epilog=example("bloomlock filter ls | grep ^test-"))
@options.url_option
def ls_command(*, client: str | None) -> None:
    """Write the names of all filters, one a line.

    `filter top` shows more of each. The server looks at all its keys.
    """
    for name in bloomlock.catalog.list_filters(client=client):
        click.echo(output.shown(name))


@group.command("info", epilog=example("bloomlock filter info urls --json | jq .fill_ratio"))
@options.name_argument
@options.json_option
@options.where_options
def info_command(name: str, *, as_json: bool, **where: Any) -> None:
    """Show a filter's parameters, fill, error rate now and memory.

    The server reads the whole bitmap for it, about 1 s for 10 GiB.
    """
    with options.open_as_it_is(name, **where) as bloom:
        fields = asdict(bloom.info()) | {"ttl": bloom.ttl()}
    if as_json:
        output.print_json(fields)
        return
    del fields["claims"]  # see `claims ls`
    output.print_fields(fields)


@group.command("top", epilog=example("bloomlock filter top --json | jq .filters[].fill"))
@options.time_option("--interval", default=2.0, what="Between two looks.")
@click.option("--once", is_flag=True, help="Look once and stop, as where there is no terminal.")
@options.json_option
@options.where_options
def top_command(*, interval: float, once: bool, as_json: bool, **where: Any) -> None:
    """Watch filters fill, their claims, and locks; Ctrl-C ends it.

    FILL is the items as a share of the capacity, or of what the filter can grow to;
    OPEN and FAILED are claims. At each look the server goes through its keys and
    reads all bitmaps, 1 s for 10 GiB.
    """
    before: dict[str, tuple[float, int]] = {}
    if not (as_json or once) and output.is_terminal(sys.stdout):
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        with suppress(KeyboardInterrupt), Live(screen=True, auto_refresh=False) as live:
            while True:
                look = _look(before, **where)
                text = "\n".join([_text(look), *look["errors"]])
                live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)
                time.sleep(max(0.1, interval))
        return
    look = _look(before, **where)
    for line in look["errors"]:
        output.warn(line)
    if as_json:
        output.print_json(look)
    else:
        click.echo(_text(look))


def _look(
    before: dict[str, tuple[float, int]], client: str | None, key: bytes | None
) -> dict[str, list[Any]]:
    """Return rows of filters and locks; `before` has when and how full each was seen last."""
    rows: list[dict[str, Any]] = []
    errors = []
    for name in bloomlock.catalog.list_filters(client=client):
        try:
            with options.open_as_it_is(name, client, key) as bloom:
                info = bloom.info()
        except bloomlock.errors.BloomlockError as error:
            errors.append(output.sentence(str(error)))
            rows.append({"name": name})
            continue
        items, now, rate = info.estimated_count, time.monotonic(), None
        then, held = before.get(name, (now, 0))
        before[name] = now, items
        if now > then:
            rate = max(0, items - held) / (now - then)  # fewer: it was cleared
        fill = items / (info.up_to or info.capacity)
        rows.append(asdict(info) | {"fill": fill, "rate": rate})
    return {"filters": rows, "locks": _locks(client), "errors": errors}


def _locks(client: str | None) -> list[dict[str, Any]]:
    rows = []
    with connected(client) as (server, _):
        for lock in sorted(server.scan_iter("bloomlock:{*}:lock", count=1000)):
            with server.pipeline(transaction=False) as pipeline:
                pipeline.strlen(lock).pttl(lock)
                pipeline.zcard(lock + b":holders").zcard(lock + b":queue")
                replies = pipeline.execute(raise_on_error=False)
            # A key of another type is no lock, and this one may be released by now.
            if all(isinstance(reply, int) for reply in replies) and replies[0]:
                _, ttl_ms, shared, waiting = replies
                name = unquote(lock.decode(errors="replace")[len("bloomlock:{") : -len("}:lock")])
                lease = {"remaining": max(0, ttl_ms) / 1000}
                rows.append({"name": name, "holders": max(shared, 1), "waiting": waiting, **lease})
    return rows


def _text(look: dict[str, list[Any]]) -> str:
    text = output.table_text([_filter_cells(row) for row in look["filters"]], _HEAD, 1)
    locks = [
        [row["name"], f"{row['holders']}", f"{row['waiting']}", f"{row['remaining']:.0f} s"]
        for row in look["locks"]
    ]
    return f"{text}\n\n{output.table_text(locks, _LOCK_HEAD, 1)}" if locks else text


def _filter_cells(row: dict[str, Any]) -> list[str]:
    if "fill" not in row:  # broken, or with another key
        return [row["name"], *"?" * (len(_HEAD) - 1)]
    cells = min(_CELLS, round(row["fill"] * _CELLS))
    return [
        row["name"],
        f"{row['estimated_count']}",
        f"{row['up_to'] or row['capacity']}",
        f"{row['fill']:.0%}",
        "█" * cells + "░" * (_CELLS - cells),
        "-" if row["rate"] is None else f"{row['rate']:,.0f}",
        f"{row['current_error_rate']:.2g}",
        output.size_text(row["memory_bytes"]),
        f"{row['claims']['open']}",
        f"{row['claims']['failed_items']}",
    ]


@group.command(
    "plan", epilog=example("bloomlock filter plan 41e9 --rate 111200 --server-memory 64")
)
@click.argument("capacity", metavar="ITEMS", type=options.count)
@options.error_rate_option
@options.optimize_option
@options.window_option
@options.value_option("--rate", "items_per_s", kind=_POSITIVE, what="Items checked in a second.")
@options.value_option(
    "--server-memory", kind=_POSITIVE, metavar="GIB", what="GiB of one server for it."
)
@options.json_option
def plan_command(*, server_memory: float | None, as_json: bool, **given: Any) -> None:
    """Say what a filter for so many different ITEMS takes. It needs no server.

    Sizes follow from the formulas that filters are made by, times from measured
    constants. With --window ITEMS are those of that time.
    """
    server_bytes = None if server_memory is None else server_memory * 2**30
    made = bloomlock.plan(**options.shape(server_bytes=server_bytes, **given))
    fields = asdict(made) | {"servers": made.servers}
    (output.print_json if as_json else output.print_fields)(fields)


@group.command("create", epilog=example("bloomlock filter create urls --capacity 50e6 --window 7d"))
@options.name_argument
@options.creation_options
def create_command(name: str, **given: Any) -> None:
    """Create a filter, and write what it will take.

    It may exist already, with the same parameters; it keeps its items then.
    """
    with options.create(name, **given) as bloom:
        memory = output.size_text(bloom.num_bits // 8)
        click.echo(
            f"{output.shown(name)}: {bloom.capacity} items at {bloom.error_rate:g}, "
            f"{bloom.num_hashes} hash functions, {memory} of memory, shards: {bloom.shards}"
        )


@group.command("clear", epilog=example("bloomlock filter clear urls"))
@options.name_argument
@_yes_option
@options.where_options
def clear_command(name: str, *, yes: bool, **where: Any) -> None:
    """Empty a filter for all its users, keeping its parameters.

    Asks first, at the terminal; where there is none --yes has to be given.
    """
    _confirm("Clear", name, yes=yes)
    with options.open_as_it_is(name, **where) as bloom:
        bloom.clear()


@group.command("delete", epilog=example("bloomlock filter delete urls"))
@options.name_argument
@_yes_option
@options.url_option
def delete_command(name: str, *, yes: bool, client: str | None) -> None:
    """Delete a filter, also a broken one.

    Asks first, at the terminal; where there is none --yes has to be given.
    """
    _confirm("Delete", name, yes=yes)
    if not bloomlock.catalog.delete_filter(name, client=client):
        raise Failure(f"there is no filter named {name!r}")


def _confirm(verb: str, name: str, *, yes: bool) -> None:
    question = f"{verb} {name!r}?"
    # What comes through a pipe does not answer the question.
    if not (yes or all(map(output.is_terminal, (sys.stdin, sys.stderr)))):
        raise Failure(f"{question} There is no terminal to ask at; give --yes")
    if not (yes or click.confirm(question, prompt_suffix=" ", err=True)):
        raise click.exceptions.Exit(NO)


@group.command("copy", epilog=example("bloomlock filter copy urls --to redis://new:6379/0"))
@options.name_argument
@click.argument("new_name", metavar="[NEW]", required=False)
@click.option("--to", "target", metavar="URL", help="Another server.  [default: the same]")
@_replace_option
@options.where_options
def copy_command(
    name: str, new_name: str | None, *, target: str | None, replace: bool, **where: Any
) -> None:
    """Copy the filter NAME to another server, or to the name NEW.

    All that was added before is in the copy; clients may go on adding. The copy
    gets its name when it is whole.
    """
    to = target or where["client"], new_name or name
    with options.open_as_it_is(name, **where) as bloom:
        bloom.copy_to(*to, replace=replace, progress=noted_signals()).close()


@group.command("export", epilog=example("bloomlock filter export urls - | zstd > urls.zst"))
@options.name_argument
@_file_argument
@click.option("-f", "--force", is_flag=True, help="Replace a FILE that is there.")
@options.where_options
def export_command(name: str, file: str, *, force: bool, **where: Any) -> None:
    """Write the filter NAME to FILE; "-" is standard output.

    All that was added before is in it; clients may go on adding. FILE has its name
    when it is whole and on the disk, and checksums of all its bytes. A random key is
    in it, a secret one is not.
    """
    if file != STDIN and not force and Path(file).exists():
        raise Failure(f"{file} is there; give --force to replace it")
    if file == STDIN and output.is_terminal(sys.stdout):
        raise Failure("a filter is not written to a terminal; give a FILE, or a pipe")
    target: Any = opened(sys.stdout, "standard output").buffer if file == STDIN else file
    with options.open_as_it_is(name, **where) as bloom:
        bloom.export_file(target, progress=noted_signals())


@group.command("import", epilog=example("zstd -dc urls.zst | bloomlock filter import urls -"))
@options.name_argument
@_file_argument
@_replace_option
@options.where_options
def import_command(name: str, file: str, **given: Any) -> None:
    """Make a filter NAME of what `export` wrote to FILE.

    "-" is standard input. Its checksums are compared. NAME is there when all of
    FILE is; until then other clients are refused it, or use the filter that is
    replaced.
    """
    source: Any = opened(sys.stdin, "standard input").buffer if file == STDIN else file
    check = noted_signals()
    bloomlock.BloomFilter.import_file(name, source, progress=check, **given).close()
