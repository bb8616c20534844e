"""`bloomlock claims`: what is claimed, what failed, and what a server promises."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .errors import NO, Failure, warn
from .options import examples, key_option, name_argument, open_as_it_is, url_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock import BloomFilter, FailedItem, OpenClaim

    Row = dict[str, Any]

_COLUMNS = ("STATE", "AGE", "ATTEMPTS", "ITEM", "PAYLOAD", "ERROR")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_LONGEST = 60
"""Characters of a cell."""

_items_argument = click.argument("items", nargs=-1, metavar="[ITEM]...")
_all_option = click.option("-a", "--all", "every", is_flag=True, help="All that failed for good.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")


@click.group(
    "claims",
    epilog=examples(
        "bloomlock claims ls orders",
        "bloomlock claims retry orders --all",
        "bloomlock claims check --client redis://proxy:6379/0",
    ),
)
def claims_group() -> None:
    """Look after items that workers have claimed, or that failed."""


@claims_group.command(
    "ls", epilog=examples("bloomlock claims ls orders", "bloomlock claims ls orders --json")
)
@name_argument
@url_option
@key_option
@_json_option
def ls_command(name: str, *, url: str | None, key: bytes | None, as_json: bool) -> None:
    """Show the claims of a filter: their counts, what is open, over (its worker died) or failed.

    Claims nothing. The server reads the whole bitmap for the counts, about 1 s for 10 GiB.
    """
    with open_as_it_is(name, url, key) as bloom:
        counts = asdict(bloom.info().claims)
        rows = [*map(_open_row, bloom.open_claims()), *map(_failed_row, bloom.failed())]
    if as_json:
        click.echo(json.dumps({"counts": counts, "items": rows}, indent=2))
        return
    width = max(map(len, counts))
    for label, number in counts.items():
        click.echo(f"{label.replace('_', ' '):<{width}}  {number}")
    if rows:
        click.echo("")
        _write(rows)


@claims_group.command("expired", epilog=examples("bloomlock claims expired orders"))
@name_argument
@url_option
@key_option
@_json_option
def expired_command(name: str, *, url: str | None, key: bytes | None, as_json: bool) -> int:
    """Show the items whose workers died, and that no other has taken over; claims none.

    Exit status: 0 if there are any, 1 if not, 2 after an error.
    """
    with open_as_it_is(name, url, key) as bloom:
        rows = [_open_row(claim) for claim in bloom.open_claims() if not claim.remaining]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        _write(rows)
    return 0 if rows else NO


@claims_group.command(
    "retry",
    epilog=examples("bloomlock claims retry orders order-17", "bloomlock claims retry orders -a"),
)
@name_argument
@_items_argument
@_all_option
@url_option
@key_option
def retry_command(name: str, items: tuple[str, ...], **options: Any) -> int:
    """Give items that failed, or whose workers died, to workers again, with all their attempts.

    Exit status: 0 if all are, 1 if one had not failed, 2 after an error.
    """
    return _settle(name, items, "retried", "it did not fail", _retry, **options)


@claims_group.command(
    "drop",
    epilog=examples("bloomlock claims drop orders order-17"),
)
@name_argument
@_items_argument
@_all_option
@url_option
@key_option
def drop_command(name: str, items: tuple[str, ...], **options: Any) -> int:
    """Forget items that failed, or whose workers died; the next that claims one gets it as new.

    To have it never worked on again, `bloomlock add` it. What a worker has is left to it.

    Exit status: as retry.
    """
    return _settle(name, items, "dropped", "there was nothing to forget", _drop, **options)


@claims_group.command("check", epilog=examples("bloomlock claims check --client redis://proxy/0"))
@click.option(
    "--client",
    "--url",
    "url",
    metavar="URL",
    help="Server, proxy or service.  [default: as the other commands]",
)
@_json_option
def check_command(*, url: str | None, as_json: bool) -> int:
    """Try each promise of claims on a server, through whatever stands before it.

    Works on keys with a random prefix, deletes them in the end, and takes some seconds.

    Exit status: 0 if all hold, 1 if one does not, 2 after an error.
    """
    from .claims_check import run_checks  # noqa: PLC0415 - only for this command

    results = []
    for result in run_checks(url):
        results.append(result)
        if not as_json:
            click.echo(f"{'holds' if result.holds else 'FAILS'}  {result.promise}")
        if not as_json and not result.holds:
            warn(f"{result.promise}: {result.why}")
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
    return 0 if all(result.holds for result in results) else NO


def _retry(bloom: BloomFilter, items: Sequence[str | bytes]) -> list[bool]:
    return bloom.retry_failed(items)


def _drop(bloom: BloomFilter, items: Sequence[str | bytes]) -> list[bool]:
    return bloom.drop_failed(items)


def _settle(
    name: str,
    items: tuple[str, ...],
    done: str,
    not_done: str,
    act: Callable[[BloomFilter, Sequence[str | bytes]], list[bool]],
    *,
    every: bool,
    url: str | None,
    key: bytes | None,
) -> int:
    if every == bool(items):
        raise Failure("give ITEMs, or --all")
    with open_as_it_is(name, url, key) as bloom:
        chosen: list[str | bytes] = [os.fsencode(item) for item in items]
        if every:
            chosen = [one.item for one in bloom.failed() if one.is_final]
        answers = act(bloom, chosen)
    for item, answer in zip(chosen, answers, strict=True):
        if not answer:
            warn(f"{_text(item)}: {not_done}")
    click.echo(f"{sum(answers)} {done}")
    return 0 if all(answers) else NO


def _open_row(claim: OpenClaim) -> Row:
    return {
        "state": "open" if claim.remaining else "over",
        "age": round(claim.age, 3),
        "remaining": round(claim.remaining, 3),
        "attempts": claim.attempts,
        "item": _text(claim.item),
        "payload": None if claim.payload is None else _text(claim.payload),
        "error": None,
    }


def _failed_row(failed: FailedItem) -> Row:
    return {
        "state": "failed" if failed.is_final else "failing",
        "age": None,
        "remaining": None,
        "attempts": failed.attempts,
        "item": _text(failed.item),
        "payload": None if failed.payload is None else _text(failed.payload),
        "error": failed.error,
    }


def _write(rows: Iterable[Row]) -> None:
    cells = [_COLUMNS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row["state"],
        "-" if row["age"] is None else age_text(row["age"]),
        f"{row['attempts']}",
        *(_short(row[name] or "") for name in ("item", "payload", "error")),
    )


def age_text(seconds: float) -> str:
    """Return a number of seconds in a unit that fits it.

    >>> [age_text(seconds) for seconds in (0.4, 90, 7300, 200_000)]
    ['0 s', '1 min', '2 h', '2 d']
    """
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _text(item: str | bytes) -> str:
    return item if isinstance(item, str) else item.decode(errors="backslashreplace")


def _short(text: str) -> str:
    """Return what fits into a cell and does nothing to a terminal."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."
