"""`bloomlock filter top`: a live view of filters, claims and locks."""

from __future__ import annotations

import sys
import time
from contextlib import closing, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import bloomlock

from .errors import sentence, warn
from .options import example, json_option, key_option, open_as_it_is, time_option, url_option
from .output import print_json, print_table, size_text, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from bloomlock import BloomFilter

    Tables = list[tuple[Sequence[str], list[list[str]]]]

_HEAD = ("FILTER", "ITEMS", "CAPACITY", "FILL", "", "ADDS/S", "ERRORS", "MEMORY", "OPEN", "FAILED")
_ROW = (
    *("{name}", "{items}", "{capacity}", "{fill:.0%}", "{bar}", "{rate_text}", "{error_rate:.2g}"),
    *("{memory}", "{open_claims}", "{failed_items}"),
)
_LOCK_HEAD = ("LOCK", "HELD", "WAITING", "LEASE")
_LOCK_ROW = ("{name}", "{holders}", "{waiting}", "{remaining:.0f} s")
_CELLS = 10


@click.command("top", epilog=example("bloomlock filter top --json | jq .filters[].fill"))
@time_option("--interval", default=2.0, what="Between two looks.")
@click.option("--once", is_flag=True, help="Look once and stop, as where there is no terminal.")
@json_option
@url_option
@key_option
def top_command(
    *, interval: float, once: bool, as_json: bool, url: str | None, key: bytes | None
) -> None:
    """Watch filters fill, their claims, and locks; Ctrl-C ends it.

    FILL is the items as a share of the capacity, or of what the filter can grow to;
    OPEN and FAILED are claims. At each look the server goes through its keys and
    reads all bitmaps, 1 s for 10 GiB.
    """
    with closing(_Watch(url, key)) as watch:
        if not (as_json or once) and sys.stdout.isatty():
            from rich.live import Live  # noqa: PLC0415 - see output.py

            with suppress(KeyboardInterrupt), Live(screen=True, auto_refresh=False) as live:
                while True:
                    live.update(_view(watch.look()), refresh=True)
                    time.sleep(max(0.1, interval))
            return
        look = watch.look()
    for line in look["errors"]:
        warn(line)
    if as_json:
        print_json(look)
        return
    for number, (head, rows) in enumerate(_tables(look)):
        if number:
            click.echo("")
        print_table(rows, head, 1)


class _Watch:
    """Looks at a server again and again, with the filters open in between."""

    def __init__(self, url: str | None, key: bytes | None) -> None:
        self._url = url
        self._key = key
        self._open: dict[str, BloomFilter] = {}
        self._before: dict[str, tuple[float, int, int]] = {}

    def close(self) -> None:
        for bloom in self._open.values():
            bloom.close()

    def look(self) -> dict[str, list[Any]]:
        locks = [asdict(one) for one in bloomlock.catalog.list_locks(client=self._url)]
        rows, errors = [], []
        for name in bloomlock.catalog.list_filters(client=self._url):
            try:
                rows.append(self._row(name))
            except bloomlock.errors.BloomlockError as error:
                # It may be another one at the next look.
                if bloom := self._open.pop(name, None):
                    bloom.close()
                errors.append(sentence(str(error)))
                rows.append({"name": name})
        return {"filters": rows, "locks": locks, "errors": errors}

    def _row(self, name: str) -> dict[str, Any]:
        if name not in self._open:
            self._open[name] = open_as_it_is(name, self._url, self._key)
        info = self._open[name].info()
        count, capacity = info.estimated_count, info.up_to or info.capacity
        now, rate = time.monotonic(), None
        then, before, generation = self._before.get(name, (now, 0, 0))
        self._before[name] = now, count, info.generation
        if now > then and generation == info.generation:
            rate = max(0, count - before) / (now - then)
        return {
            "name": name,
            "items": count,
            "capacity": capacity,
            "fill": count / capacity,
            "rate": rate,
            "error_rate": info.current_error_rate,
            "memory_bytes": info.memory_bytes,
            "open_claims": info.claims.open,
            "failed_items": info.claims.failed_items,
        }


def _view(look: dict[str, list[Any]]) -> Group:
    from rich.console import Group  # noqa: PLC0415 - see output.py
    from rich.text import Text  # noqa: PLC0415

    parts: list[Any] = []
    for head, rows in _tables(look):
        table = table_of(rows, head, 1)
        table.header_style, table.padding = "bold cyan", (0, 1, 0, 0)
        parts += [table, ""]
    return Group(*parts, *(Text(line, style="red") for line in look["errors"]))


def _tables(look: dict[str, list[Any]]) -> Tables:
    tables: Tables = [(_HEAD, [_filter_cells(row) for row in look["filters"]])]
    if look["locks"]:
        rows = [[form.format(**row) for form in _LOCK_ROW] for row in look["locks"]]
        tables.append((_LOCK_HEAD, rows))
    return tables


def _filter_cells(row: dict[str, Any]) -> list[str]:
    if "items" not in row:  # broken, or with another key
        return [row["name"], *"?" * (len(_HEAD) - 1)]
    cells = min(_CELLS, round(row["fill"] * _CELLS))
    texts = {
        "bar": "█" * cells + "░" * (_CELLS - cells),
        "rate_text": "-" if row["rate"] is None else f"{row['rate']:,.0f}",
        "memory": size_text(row["memory_bytes"]),
    }
    return [form.format(**row, **texts) for form in _ROW]
