"""`bloomlock filter top`: a live view of filters, claims and locks."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

import bloomlock

from .crawls import connected
from .errors import sentence, warn
from .options import example, json_option, key_option, open_as_it_is, time_option, url_option
from .output import print_json, size_text, table_text

if TYPE_CHECKING:
    Before = dict[str, tuple[float, int]]
    """When each filter was looked at, and how many items it held."""

_HEAD = ("FILTER", "ITEMS", "CAPACITY", "FILL", "", "ADDS/S", "ERRORS", "MEMORY", "OPEN", "FAILED")
_LOCK_HEAD = ("LOCK", "HELD", "WAITING", "LEASE")
_LOCK = re.compile(rb"(bloomlock:\{[^{}/]+\}:lock)(:queue)?", re.DOTALL)
_CELLS = 10


@click.command("top", epilog=example("bloomlock filter top --json | jq .filters[].fill"))
@time_option("--interval", default=2.0, what="Between two looks.")
@click.option("--once", is_flag=True, help="Look once and stop, as where there is no terminal.")
@json_option
@url_option
@key_option
def top_command(*, interval: float, once: bool, as_json: bool, **where: Any) -> None:
    """Watch filters fill, their claims, and locks; Ctrl-C ends it.

    FILL is the items as a share of the capacity, or of what the filter can grow to;
    OPEN and FAILED are claims. At each look the server goes through its keys and
    reads all bitmaps, 1 s for 10 GiB.
    """
    before: Before = {}
    if not (as_json or once) and sys.stdout.isatty():
        from rich.live import Live  # noqa: PLC0415 - see output.py
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
        warn(line)
    if as_json:
        print_json(look)
    else:
        click.echo(_text(look))


def _look(before: Before, url: str | None, key: bytes | None) -> dict[str, list[Any]]:
    rows: list[dict[str, Any]] = []
    errors = []
    for name in bloomlock.catalog.list_filters(client=url):
        try:
            with open_as_it_is(name, url, key) as bloom:
                info = bloom.info()
        except bloomlock.errors.BloomlockError as error:
            errors.append(sentence(str(error)))
            rows.append({"name": name})
            continue
        items, capacity = info.estimated_count, info.up_to or info.capacity
        now, rate = time.monotonic(), None
        then, held = before.get(name, (now, 0))
        before[name] = now, items
        if now > then:
            rate = max(0, items - held) / (now - then)  # fewer: it was cleared
        rows.append(
            {
                "name": name,
                "items": items,
                "capacity": capacity,
                "fill": items / capacity,
                "rate": rate,
                "error_rate": info.current_error_rate,
                "memory_bytes": info.memory_bytes,
                "open_claims": info.claims.open,
                "failed_items": info.claims.failed_items,
            }
        )
    return {"filters": rows, "locks": _locks(url), "errors": errors}


def _locks(url: str | None) -> list[dict[str, Any]]:
    """Return the locks that are held or waited for."""
    rows = []
    with connected(url) as (client, _):
        keys = (_LOCK.fullmatch(key) for key in client.scan_iter("bloomlock:{*}:lock*", count=1000))
        for lock in sorted({match[1] for match in keys if match}):
            with client.pipeline(transaction=False) as pipeline:
                pipeline.strlen(lock).pttl(lock)
                pipeline.zcard(lock + b":holders").zcard(lock + b":queue")
                replies = pipeline.execute(raise_on_error=False)
            # A key of another type is no lock.
            if all(isinstance(reply, int) for reply in replies) and (replies[0] or replies[3]):
                held, ttl_ms, shared, waiting = replies
                name = unquote(lock.decode(errors="replace")[len("bloomlock:{") : -len("}:lock")])
                holders = max(shared, 1) if held else 0
                lease = {"remaining": max(0, ttl_ms) / 1000}
                rows.append({"name": name, "holders": holders, "waiting": waiting, **lease})
    return rows


def _text(look: dict[str, list[Any]]) -> str:
    text = table_text([_filter_cells(row) for row in look["filters"]], _HEAD, 1)
    locks = [
        [row["name"], f"{row['holders']}", f"{row['waiting']}", f"{row['remaining']:.0f} s"]
        for row in look["locks"]
    ]
    return f"{text}\n\n{table_text(locks, _LOCK_HEAD, 1)}" if locks else text


def _filter_cells(row: dict[str, Any]) -> list[str]:
    if "items" not in row:  # broken, or with another key
        return [row["name"], *"?" * (len(_HEAD) - 1)]
    cells = min(_CELLS, round(row["fill"] * _CELLS))
    return [
        row["name"],
        f"{row['items']}",
        f"{row['capacity']}",
        f"{row['fill']:.0%}",
        "█" * cells + "░" * (_CELLS - cells),
        "-" if row["rate"] is None else f"{row['rate']:,.0f}",
        f"{row['error_rate']:.2g}",
        size_text(row["memory_bytes"]),
        f"{row['open_claims']}",
        f"{row['failed_items']}",
    ]
