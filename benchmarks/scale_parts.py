"""Parts of the suite `scale` that need servers and processes of their own; see there."""

from __future__ import annotations

import contextlib
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import redis

from bloomlock import BloomFilter

from . import scale_jobs as jobs
from . import show
from .cluster_rig import client_of, clustered, cpu_seconds, moving
from .place import connect
from .workloads import fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

    from .options import Options

    Row = dict[str, Any]

IRLBOT_RATE = 111_200
"""Links that IRLbot checked in a second."""
STREAM_CAPACITY = 10_000_000
NEAR_CACHE = 100_000
MASTERS = (1, 2, 3)
SHARDS = 24
MOVING_SHARDS = 12
MOVING_PROCESSES = 3
MOVING_RATE = 1e-9
SEED = 7


class Part(NamedTuple):
    """One part of a suite.

    Attributes:
        name: In the result, and for `--contender`.
        run: Measures it; returns its rows.
        tables: Makes its tables of these.
    """

    name: str
    run: Callable[[Options, str, str], list[Row]]
    tables: Callable[[list[Row]], Iterator[Table]]


def run_stream(options: Options, url: str, prefix: str) -> list[Row]:
    """Check links through the near-cache."""
    rows: dict[tuple[int, int], Row] = {}
    count = options.items or (50_000 if options.quick else 400_000)
    kept = {"near_cache": NEAR_CACHE, "prefix": prefix}
    made = BloomFilter("stream", STREAM_CAPACITY, options.error_rates[0], client=url, prefix=prefix)
    cases = [(processes, batch) for batch in (1000, 10_000) for processes in (1, 2)]
    with (
        connect(url) as client,
        jobs.working(2, jobs.check_links, url, "stream", kept) as workers,
        show.progress(len(cases) * options.slices(5, 2)) as step,
    ):
        for repetition in range(options.slices(5, 2)):
            for processes, batch in cases:
                step(f"{repetition + 1} stream x{processes} {batch:,}")
                tags = [f"{repetition}/{processes}/{batch}/{p}" for p in range(processes)]
                orders = [{"links": (tag, count), "batch": batch} for tag in tags]
                row = rows.setdefault((processes, batch), {"processes": processes, "batch": batch})
                _measure(row, workers, orders, [client], processes * count)
    made.delete()
    made.close()
    return list(rows.values())


def run_masters(options: Options, url: str, prefix: str) -> list[Row]:  # noqa: ARG001 - its own
    """Add new items on clusters of 1, 2 and 3 masters, which take turns."""
    rows: dict[tuple[int, int], Row] = {}
    count = options.offered(5_000 if options.quick else 40_000, 1000)
    most = (1, 2) if options.quick else (1, 2, 4)
    with contextlib.ExitStack() as stack:
        rigs = []
        for masters in MASTERS:
            ports = stack.enter_context(clustered(masters))
            client = stack.enter_context(client_of(ports[0]))
            rate = options.error_rates[0]
            BloomFilter("masters", 10_000_000, rate, client=client, shards=SHARDS).close()
            workers = stack.enter_context(
                jobs.working(max(most), jobs.add_new, ports[0], "masters")
            )
            rigs.append((masters, workers, [redis.Redis(port=port) for port in ports]))
        with show.progress(len(rigs) * len(most) * options.slices(9, 2)) as step:
            for repetition in range(options.slices(9, 2)):
                for processes in most:
                    for masters, workers, servers in rigs:
                        step(f"{repetition + 1} {masters} masters x{processes}")
                        tags = [f"{masters}/{processes}/{repetition}/{p}" for p in range(processes)]
                        orders = [{"items": (tag, count), "batch": 1000} for tag in tags]
                        made = {"masters": masters, "processes": processes, "batch": 1000}
                        row = rows.setdefault((processes, masters), made)
                        _measure(row, workers, orders, servers, processes * count)
    return [rows[key] for key in sorted(rows)]


def _measure(
    row: Row,
    workers: jobs.Workers,
    orders: Sequence[Row],
    servers: Sequence[redis.Redis],
    items: int,
) -> None:
    """Let processes do what they are ordered; note rates, processor time and wrong answers."""
    some = workers.prepare(orders)
    before = cpu_seconds(servers)
    answers = workers.go(some)
    spent = cpu_seconds(servers) - before
    start, end = min(a["start"] for a in answers), max(a["end"] for a in answers)
    new, unique = (sum(a[name] for a in answers) for name in ("new", "unique"))
    figures = {
        "rates": items / ((end - start) / 1e9),
        "client": 1e6 * sum(a["cpu"] for a in answers) / items,
        "server": 1e6 * spent / items,
        "new": unique / items,
    }
    for name, value in figures.items():
        row.setdefault(name, []).append(float(f"{value:.6g}"))
    row["items"] = items
    row["wrong"] = row.get("wrong", 0) + abs(new - unique)


def run_moving(options: Options, url: str, prefix: str) -> list[Row]:  # noqa: ARG001 - its own
    """Offer the same items to a filter whose slots move."""
    count = options.items or (20_000 if options.quick else 1_000_000)
    orders = [
        {"items": ("moving", count), "seed": SEED + process, "batch": 1000}
        for process in range(MOVING_PROCESSES)
    ]
    with clustered(3) as ports, client_of(ports[0]) as client:
        # With room, so that no item looks like another one.
        made = BloomFilter("moving", 2 * count, MOVING_RATE, client=client, shards=MOVING_SHARDS)
        with jobs.working(MOVING_PROCESSES, jobs.offer_all, ports[0], "moving") as workers:
            some = workers.prepare(orders)
            nodes = [redis.Redis(port=port) for port in ports]
            slots = {client.keyslot(key) for node in nodes for key in node.scan_iter("*:bits")}
            with moving(ports, sorted(slots), SEED) as mover:
                answers = workers.go(some)
            moves = mover.moves
        won = np.zeros(count, np.int64)
        for answer in answers:
            won += np.unpackbits(np.frombuffer(answer["won"], np.uint8), count=count)
        there = made.exists_many(fingerprints("moving", count))
    start, end = min(a["start"] for a in answers), max(a["end"] for a in answers)
    return [
        {
            "items": count,
            "processes": MOVING_PROCESSES,
            "shards": MOVING_SHARDS,
            "moves": moves,
            "seconds": (end - start) / 1e9,
            "one_winner": int((won == 1).sum()),
            "none": int((won == 0).sum()),
            "several": int((won > 1).sum()),
            "denied": sum(a["denied"] for a in answers) + there.count(False),
        }
    ]


def stream_tables(rows: list[Row]) -> Iterator[Table]:
    """Make the table of the stream."""
    share = median(rows[0]["new"])
    yield show.table(
        f"links of a crawl, {share:.1%} new, near-cache {NEAR_CACHE:,}",
        [
            "batch",
            "processes",
            "links/s",
            f"over {IRLBOT_RATE:,}",
            "client µs",
            "server µs",
            "wrong",
        ],
        (
            [
                f"{row['batch']:,}",
                str(row["processes"]),
                f"{median(row['rates']):,.0f} ({min(row['rates']):,.0f}-{max(row['rates']):,.0f})",
                f"{median(row['rates']) / IRLBOT_RATE:.2f}",
                f"{median(row['client']):.2f}",
                f"{median(row['server']):.2f}",
                str(row["wrong"]),
            ]
            for row in rows
        ),
    )


def masters_tables(rows: list[Row]) -> Iterator[Table]:
    """Make the table of the masters."""
    alone = {row["processes"]: row for row in rows if row["masters"] == 1}
    yield show.table(
        f"add_many of 1,000 new items over {SHARDS} shards on a cluster of this machine",
        ["processes", "masters", "items/s", "over one master", "client µs", "servers µs", "wrong"],
        (
            [
                str(row["processes"]),
                str(row["masters"]),
                f"{median(row['rates']):,.0f}",
                f"{median(_over(row['rates'], alone[row['processes']]['rates'])):.2f}",
                f"{median(row['client']):.2f}",
                f"{median(row['server']):.2f}",
                str(row["wrong"]),
            ]
            for row in rows
        ),
    )


def _over(some: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(some, others, strict=True)]


def moving_tables(rows: list[Row]) -> Iterator[Table]:
    """Make the table of the slots that move."""
    yield show.table(
        f"{rows[0]['processes']} processes offer the same items while slots move",
        ["items", "moves of a slot", "s", "one winner", "none", "several", "denied"],
        (
            [
                f"{row['items']:,}",
                f"{row['moves']:,}",
                f"{row['seconds']:.0f}",
                *(f"{row[name]:,}" for name in ("one_winner", "none", "several", "denied")),
            ]
            for row in rows
        ),
    )


PARTS = (
    Part("stream", run_stream, stream_tables),
    Part("masters", run_masters, masters_tables),
    Part("moving", run_moving, moving_tables),
)
