"""`bloomlock filter top`: a live view of filters, claims and locks."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

import bloomlock

from .errors import sentence, warn
from .options import example, json_option, key_option, open_as_it_is, time_option, url_option
from .tables import print_json, print_table, size_text, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bloomlock import BloomFilter, FilterInfo
    from bloomlock.catalog import LockInfo

_HEAD = ("FILTER", "ITEMS", "CAPACITY", "FILL", "", "ADDS/S", "ERRORS", "MEMORY", "OPEN", "FAILED")
_LOCK_HEAD = ("LOCK", "HELD", "WAITING", "LEASE")
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
    with ExitStack() as stack:
        watch = _Watch(url, key)
        stack.callback(watch.close)
        if as_json or once or not sys.stdout.isatty():
            look = watch.look()
            for line in look.errors:
                warn(line)
            if as_json:
                print_json(asdict(look))
            else:
                for number, (head, rows) in enumerate(_tables(look)):
                    if number:
                        click.echo("")
                    print_table(rows, head, 1)
            return
        from rich.live import Live  # noqa: PLC0415 - as in progress

        stack.enter_context(suppress(KeyboardInterrupt))
        live = stack.enter_context(Live(screen=True, auto_refresh=False))
        while True:
            live.update(_view(watch.look()), refresh=True)
            time.sleep(max(0.1, interval))


@dataclass(frozen=True, slots=True)
class Row:
    """A filter at one look; only its name where it is broken, or has another key."""

    name: str
    items: int | None = None
    capacity: int = 1
    fill: float = 0
    rate: float | None = None
    error_rate: float = 0
    memory_bytes: int = 0
    open_claims: int = 0
    failed_items: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    filters: list[Row] = field(default_factory=list)
    locks: list[LockInfo] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class _Watch:
    """Looks at a server again and again, with the filters open in between."""

    def __init__(self, url: str | None, key: bytes | None) -> None:
        self._url = url
        self._key = key
        self._open: dict[str, BloomFilter] = {}
        self._before: dict[str, tuple[float, FilterInfo]] = {}

    def close(self) -> None:
        for bloom in self._open.values():
            bloom.close()

    def look(self) -> Look:
        look = Look(locks=bloomlock.catalog.list_locks(client=self._url))
        for name in bloomlock.catalog.list_filters(client=self._url):
            try:
                if name not in self._open:
                    self._open[name] = open_as_it_is(name, self._url, self._key)
                info = self._open[name].info()
            except bloomlock.errors.BloomlockError as error:
                # It may be another one at the next look.
                if bloom := self._open.pop(name, None):
                    bloom.close()
                look.errors.append(sentence(str(error)))
                look.filters.append(Row(name))
                continue
            now, rate = time.monotonic(), None
            then, before = self._before.get(name, (now, info))
            self._before[name] = now, info
            if now > then and before.generation == info.generation:
                rate = max(0, info.estimated_count - before.estimated_count) / (now - then)
            capacity = info.up_to or info.capacity
            look.filters.append(
                Row(
                    name,
                    items=info.estimated_count,
                    capacity=capacity,
                    fill=info.estimated_count / capacity,
                    rate=rate,
                    error_rate=info.current_error_rate,
                    memory_bytes=info.memory_bytes,
                    open_claims=info.claims.open,
                    failed_items=info.claims.failed_items,
                )
            )
        return look


def _view(look: Look) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - as in progress
    from rich.text import Text  # noqa: PLC0415

    parts: list[RenderableType] = []
    for head, rows in _tables(look):
        table = table_of(rows, head, 1)
        table.header_style, table.padding = "bold cyan", (0, 1, 0, 0)
        parts += [table, ""]
    return Group(*parts, *(Text(line, style="red") for line in look.errors))


def _tables(look: Look) -> list[tuple[Sequence[str], list[list[str]]]]:
    tables: list[tuple[Sequence[str], list[list[str]]]] = [
        (_HEAD, [_filter_cells(row) for row in look.filters])
    ]
    if look.locks:
        locks = [
            [o.name, f"{o.holders}", f"{o.waiting}", f"{o.remaining:.0f} s"] for o in look.locks
        ]
        tables.append((_LOCK_HEAD, locks))
    return tables


def _filter_cells(row: Row) -> list[str]:
    if row.items is None:
        return [row.name, *"?" * (len(_HEAD) - 1)]
    cells = min(_CELLS, round(row.fill * _CELLS))
    return [
        row.name,
        f"{row.items}",
        f"{row.capacity}",
        f"{row.fill:.0%}",
        "█" * cells + "░" * (_CELLS - cells),
        "-" if row.rate is None else f"{row.rate:,.0f}",
        f"{row.error_rate:.2g}",
        size_text(row.memory_bytes),
        f"{row.open_claims}",
        f"{row.failed_items}",
    ]


def _lock_cells(lock: LockInfo) -> list[str]:
    return [lock.name, f"{lock.holders}", f"{lock.waiting}", f"{lock.remaining:.0f} s"]
