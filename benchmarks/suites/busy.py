"""The server alone: the bytes of adds, written again by 50 connections."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.jobs import WARM_UP, cut, items
from benchmarks.place import Meter, Place, connect, open_socket
from benchmarks.proxies import LossProxy, exchange
from benchmarks.results import Row
from benchmarks.suite import Bench, Part
from benchmarks.tables import Column

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

ENTRIES = (c.ATOMIC, c.SPEED, c.MEMORY, c.LUA, c.NATIVE, c.SADD, c.BF, c.PING)
CONNECTIONS = 50
ADDS = 2_000
"""Different adds that are taken down of each contender."""


def measure(bench: Bench) -> Iterable[Row]:
    entries = bench.choose(ENTRIES)
    adds = bench.count(ADDS, 0, CONNECTIONS)
    taken = {entry: _take_down(entry, adds, bench) for entry in entries}
    rows = {
        entry: Row.of("busy", "an add of a seen item at 50 connections", entry) for entry in entries
    }
    order = random.Random(0)
    with connect(bench.url) as client, ExitStack() as stack:
        stack.callback(client.flushall)
        sockets = [stack.enter_context(open_socket(bench.url)) for _ in range(CONNECTIONS)]
        meter = Meter(client)
        for entry in chain(*(order.sample(entries, len(entries)) for _ in bench.slices(15, 3))):
            exchanges = taken[entry]
            meter.start()
            start = time.perf_counter()
            for some in cut(exchanges, CONNECTIONS):
                _at_once(sockets, some)
            seconds, cost = time.perf_counter() - start, meter.stop(len(exchanges))
            busy = cost["server"] * len(exchanges) / 1e6 / seconds
            rows[entry].note(rate=len(exchanges) / seconds, busy=busy, **cost)
    return rows.values()


def _take_down(entry: c.Entry, adds: int, bench: Bench) -> list[tuple[bytes, int]]:
    """Return what a contender writes for so many adds, and how many replies each has."""
    with LossProxy(bench.url) as proxy:
        made = c.make(entry, Place(proxy.url, f"busy-{entry.name}"))
        for item in items(*WARM_UP):
            made.add(item)
        before = len(proxy.taken)
        for item in items("busy", adds):
            made.add(item)
        return proxy.taken[before:]


def _at_once(sockets: Sequence[socket.socket], exchanges: Sequence[tuple[bytes, int]]) -> None:
    """Write one exchange to each connection, then read the replies of each."""
    for one, (data, _) in zip(sockets, exchanges, strict=False):
        one.sendall(data)
    for one, (_, replies) in zip(sockets, exchanges, strict=False):
        exchange(one, replies)


PART = Part(
    "busy",
    measure,
    (
        Column("server µs", "server"),
        Column("/ SADD", "server", "sadd", "spread"),
        Column("adds/s", "rate"),
        Column("busy", "busy", form="percent"),
        Column("B to", "to"),
    ),
)
