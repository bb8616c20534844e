"""`bloomlock claims`: what is claimed, what failed, and what is done about it."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from .errors import NO, Failure, warn
from .options import example, items_argument, json_option, name_argument, opens_filter
from .output import print_fields, print_json, print_table, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .options import Named

_LONGEST = 60
"""Characters of a cell."""
_all_option = click.option("-a", "--all", "every", is_flag=True, help="All that failed for good.")


@click.command("ls", epilog=example("bloomlock claims ls orders --json"))
@name_argument
@json_option
@opens_filter
def ls_command(named: Named, *, as_json: bool) -> None:
    """Show the claims of a filter: counts, and what is open, over or failed.

    A claim is over when its worker has died. Claims nothing. The server reads the
    whole bitmap for the counts, about 1 s for 10 GiB.
    """
    with named as bloom:
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


@click.command("retry", epilog=example("bloomlock claims retry orders --all"))
@name_argument
@items_argument
@_all_option
@opens_filter
def retry_command(named: Named, items: tuple[str, ...], *, every: bool) -> int:
    """Give items that failed, or whose workers died, to workers again.

    They get all their attempts again.

    Exit status: 0 if all are, 1 if one had not failed, 2 after an error.
    """
    return _settle(named, items, "retry_failed", "retried", every=every)


@click.command("drop", epilog=example("bloomlock claims drop orders order-17"))
@name_argument
@items_argument
@_all_option
@opens_filter
def drop_command(named: Named, items: tuple[str, ...], *, every: bool) -> int:
    """Drop items that failed, or whose workers died; the next claim gets them as new.

    To have an item never worked on again, `bloomlock add` it. What a worker has is
    left to it.

    Exit status: 0 if all are, 1 if one had not failed, 2 after an error.
    """
    return _settle(named, items, "drop_failed", "dropped", every=every)


def _settle(named: Named, items: Sequence[str], method: str, done: str, *, every: bool) -> int:
    if every == bool(items):
        raise Failure("give ITEMs, or --all")
    with named as bloom:
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
