"""The server alone, at 50 connections: what one add takes of its processor.

What each contender writes for an add is taken down once, at a proxy, and then written again by 50
connections: to all of them in turn, and then read from all of them. So nothing of the clients is
measured, and items are seen ones. `busy` is the share of the time that the server worked: where it
is low, the connections were slower than the server.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import hiredis

from benchmarks import contenders as c
from benchmarks import show
from benchmarks.figures import ratios, summarize
from benchmarks.jobs import Job
from benchmarks.loss_proxy import Exchange, LossProxy
from benchmarks.place import Meter, Place, connect, forget, open_socket, sort_out
from benchmarks.tables import number
from benchmarks.team import assembled

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from rich.table import Table

    from benchmarks.contenders import Entry
    from benchmarks.options import Options

ABOUT = "the server alone, at 50 connections"
ENTRIES = (
    c.ATOMIC,
    c.ours("atomic-speed", "atomic, optimize speed", optimize="speed"),
    c.LUA,
    c.NATIVE,
    c.SADD,
    c.REDIS_BLOOM,
    c.PING,
)
CONNECTIONS = 50
ADDS = 2_000
"""Different adds that are taken down of each contender."""


@dataclass(slots=True)
class Row:
    """All repetitions of one contender; lists have a figure for each.

    Attributes:
        contender: Its name.
        title: Its title.
        rates: Adds per second.
        server: Microseconds of the server's processor for an add.
        busy: Share of the time that the server's processor worked.
        to_server: Bytes of an add.
    """

    contender: str
    title: str
    rates: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    to_server: float = 0.0


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    there, missing = sort_out(c.choose(ENTRIES, options.contenders), url)
    adds = max(CONNECTIONS, options.items or ADDS) // CONNECTIONS * CONNECTIONS
    taken = {entry: _take_down(entry, adds, url, prefix) for entry in there}
    rows = {entry: Row(entry.name, entry.title) for entry in there}
    for entry, exchanges in taken.items():
        rows[entry].to_server = sum(len(data) for data, _ in exchanges) / len(exchanges)
    repetitions, order = options.slices(15, 3), random.Random(0)
    with connect(url) as client, ExitStack() as stack:
        sockets = [stack.enter_context(open_socket(url)) for _ in range(CONNECTIONS)]
        meter = Meter(client)
        with show.progress(repetitions * len(there)) as step:
            for _ in range(repetitions):
                order.shuffle(there)
                for entry in there:
                    step(entry.name)
                    meter.start()
                    start = time.perf_counter()
                    _repeat(sockets, taken[entry])
                    seconds, cost = time.perf_counter() - start, meter.stop()
                    rows[entry].rates.append(round(adds / seconds, 1))
                    rows[entry].server.append(round(1e6 * cost.busy / adds, 3))
                    rows[entry].busy.append(round(cost.busy / seconds, 3))
        forget(client, prefix)
    return {"missing": missing, "rows": [asdict(row) for row in rows.values()]}


def _take_down(entry: Entry, adds: int, url: str, prefix: str) -> list[Exchange]:
    """Return what a contender writes for so many adds, and how many replies each has."""
    with LossProxy(url, 0.5) as proxy:
        place = Place(proxy.url, prefix, f"busy-{entry.name}", max(1_000_000, adds), 1e-6)
        with assembled([(entry, place)], 1) as (team,):
            team.run([Job("fill", "add", (("warm-up", 20),))])
            proxy.taken = []
            team.run([Job("fill", "add", (("busy", adds),))])
            return proxy.taken


def _repeat(sockets: list[socket.socket], exchanges: list[Exchange]) -> None:
    """Write one exchange to each connection, then read the replies of each, until all are done."""
    readers = [hiredis.Reader() for _ in sockets]
    for start in range(0, len(exchanges), len(sockets)):
        part = exchanges[start : start + len(sockets)]
        for one, (data, _) in zip(sockets, part, strict=False):
            one.sendall(data)
        for one, reader, (_, replies) in zip(sockets, readers, part, strict=False):
            left = replies
            while left:
                reader.feed(one.recv(65536))
                while left and reader.gets() is not False:
                    left -= 1


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make the table."""
    rows = [Row(**row) for row in result["rows"]]
    base = next((row for row in rows if row.contender == c.SADD.name), None)
    absent = [[each["title"], "not available", "", "", "", ""] for each in result["missing"]]
    lines = [
        [
            row.title,
            number(summarize(row.server).median),
            show.ratio(ratios(row.server, base.server)) if base else "",
            f"{summarize(row.rates).median:,.0f}",
            f"{summarize(row.busy).median:.0%}",
            number(row.to_server),
        ]
        for row in rows
    ]
    columns = ["", "server µs", "/ SADD", "adds/s", "busy", "B to"]
    yield show.table(f"an add of a seen item, {CONNECTIONS} connections", columns, lines + absent)
