"""Replies get lost: which items are lost with them?

One process adds distinct items through a proxy that loses every twentieth exchange, half of them
before the server saw the commands and half after. An item is lost if its only add was answered
"seen": no process works on it, now or later. Afterwards all items are looked up
without losses; one that was "new" but is not stored will be new once more: it is worked on twice.
An error that reaches the caller is taken for "new", which is what an error is good for.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, show
from benchmarks.contenders import Entry
from benchmarks.jobs import Job
from benchmarks.loss_proxy import LossProxy
from benchmarks.place import Place
from benchmarks.team import assembled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from benchmarks.options import Options

ABOUT = "5 % of the replies get lost: which items with them"
SHARE = 0.05


def _ours(strategy: str, on_unknown: str) -> Entry:
    return Entry(
        strategy,
        f'bloomlock {strategy}, on_unknown="{on_unknown}"',
        "ours.Shared",
        {"strategy": strategy, "on_unknown": on_unknown},
    )


ENTRIES = (
    *(_ours(strategy, way) for strategy in contenders.STRATEGIES for way in ("new", "raise")),
    Entry("sadd", "SADD, default retries", "sets.Pipelined"),
    Entry("sadd", "SADD, from_url (no retries)", "sets.Pipelined", {"retries": "none"}),
    contenders.SCRAPY_BLOOM,
)


@dataclass(slots=True)
class Row:
    """What became of the items with one contender.

    Attributes:
        contender: Its name.
        title: Its title.
        items: Distinct items, each added once.
        lost_before: Exchanges lost before the server saw them.
        lost_after: Exchanges lost after the server carried them out.
        raised: Adds that raised an error.
        lost: Items answered "seen".
        twice: Items answered "new" (or by an error) that are not stored.
        seconds: What the adds took.
        errors: Exceptions by name.
    """

    contender: str
    title: str
    items: int
    lost_before: int = 0
    lost_after: int = 0
    raised: int = 0
    lost: int = 0
    twice: int = 0
    seconds: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Add the items through each contender; return what became of them as plain data."""
    items = options.items or (1_000 if options.quick else 10_000)
    rows = []
    chosen = contenders.choose(ENTRIES, options.contenders)
    with show.progress(len(chosen)) as step:
        for number, entry in enumerate(chosen):
            step(entry.title)
            name = f"loss {number}"
            capacity = max(2 * items, 1000)
            row = Row(entry.name, entry.title, items)
            with LossProxy(url, SHARE) as proxy:
                place = Place(proxy.url, prefix, name, capacity, options.error_rates[0])
                _lose(entry, place, proxy, row)
            rows.append(row)
    return {"share": SHARE, "rows": [asdict(row) for row in rows]}


def _lose(entry: Entry, place: Place, proxy: LossProxy, row: Row) -> None:
    span = ("lossy", row.items)
    with assembled([(entry, place)], 1) as (team,):
        proxy.losing = True
        started = time.monotonic()
        (added,) = team.run([Job("offer", "add", (span,))])
        row.seconds = time.monotonic() - started
        proxy.losing = False
        (stored,) = team.run([Job("offer", "exists", (span,))])
    row.lost_before, row.lost_after = proxy.lost_before, proxy.lost_after
    row.raised, row.errors = len(added["unknown"]), added["errors"]
    worked_on = {*added["yes"], *added["unknown"]}
    row.lost = row.items - len(worked_on)
    row.twice = len(worked_on.difference(stored["yes"]))


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make the table."""
    rows = [Row(**row) for row in result["rows"]]
    if not rows:
        return
    yield show.table(
        f"{rows[0].items:,} adds, {result['share']:.0%} of the replies lost",
        ["", "lost before/after", "errors", "items lost", "worked on twice", "s"],
        (_line(row) for row in rows),
    )


def _line(row: Row) -> list[str]:
    return [
        row.title,
        f"{row.lost_before}/{row.lost_after}",
        f"{row.raised:,}",
        f"{row.lost:,}",
        f"{row.twice:,}",
        f"{row.seconds:.1f}",
    ]
