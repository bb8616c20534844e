"""`bloomlock claims`: what is claimed, what failed, and what is done about it."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from . import options
from .options import example
from .output import NO, Failure, print_fields, print_json, print_table, text_of, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST = 60
"""Characters of a cell."""
_all_option = click.option("-a", "--all", "every", is_flag=True, help="All that failed for good.")


@click.group("claims", epilog=example("bloomlock claims ls --help"))
def group() -> None:
    """Look after items that were claimed, or failed."""


@group.command("ls", epilog=example("bloomlock claims ls orders --json"))
@options.name_argument
@options.json_option
@options.where_options
def ls_command(name: str, *, as_json: bool, **where: Any) -> None:
    """Show the claims of a filter, and what failed.

    Counts, and what is open, over or failed: over when its worker has died. Claims
    nothing. The server reads the whole bitmap for the counts, about 1 s for 10 GiB.
    """
    with options.open_as_it_is(name, **where) as bloom:
        counts = asdict(bloom.info().claims)
        open_claims, failed = bloom.open_claims(), bloom.failed()
    rows = [
        *({"state": "open" if one.remaining else "over", **asdict(one)} for one in open_claims),
        *({"state": "failed" if one.is_final else "failing", **asdict(one)} for one in failed),
    ]
    if as_json:
        print_json({"counts": counts, "items": rows})
        return
    print_fields(counts)
    if rows:
        click.echo("")
        head = ("STATE", "AGE", "ATTEMPTS", "ITEM", "PAYLOAD", "ERROR")
        print_table(map(_cells, rows), head)


@group.command("retry", epilog=example("bloomlock claims retry orders --all"))
@options.name_argument
@options.items_argument
@_all_option
@options.where_options
def retry_command(name: str, items: tuple[str, ...], *, every: bool, **where: Any) -> int:
    """Give items that failed, or whose workers died, to workers again.

    They get all their attempts again. The exit status is 1 if one had not failed.
    """
    return _settle("retry_failed", "retried", items, every, name, **where)


@group.command("drop", epilog=example("bloomlock claims drop orders order-17"))
@options.name_argument
@options.items_argument
@_all_option
@options.where_options
def drop_command(name: str, items: tuple[str, ...], *, every: bool, **where: Any) -> int:
    """Drop items that failed, or whose workers died.

    The next claim gets them as new. To have an item never worked on again,
    `bloomlock add` it. What a worker has is left to it. The exit status is 1 if one
    had not failed.
    """
    return _settle("drop_failed", "dropped", items, every, name, **where)


def _settle(
    method: str, done: str, items: Sequence[str], every: bool, name: str, **where: Any
) -> int:
    if every == bool(items):
        raise Failure("give ITEMs, or --all")
    with options.open_as_it_is(name, **where) as bloom:
        chosen: list[str | bytes] = [os.fsencode(item) for item in items]
        if every:
            chosen = [one.item for one in bloom.failed() if one.is_final]
        answers = getattr(bloom, method)(chosen)
    for item, answer in zip(chosen, answers, strict=True):
        if not answer:
            warn(f"{text_of(item)}: it did not fail")
    click.echo(f"{sum(answers)} {done}")
    return 0 if all(answers) else NO


def _cells(row: dict[str, Any]) -> list[str]:
    age = str(timedelta(seconds=int(row["age"]))) if "age" in row else "-"
    texts = [text_of(row.get(name) or "") for name in ("item", "payload", "error")]
    return [row["state"], age, f"{row['attempts']}", *(text[:_LONGEST] for text in texts)]
