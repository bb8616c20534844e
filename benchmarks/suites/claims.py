"""Claims: an item is claimed, worked on and committed; beside idemkit, and a Lock and a set.

Times are those of a claim and the end of it, without work in between, over those of a bare round
trip in the same repetition. "reads" are the round trips as the server counts them. A seen item is
claimed again. `near-cache` has claimed it before, and asks the server once in 60 seconds. idemkit
is for asyncio: its calls are run one after the other on a loop, and so is `AsyncBloomFilter` here.
Its batches are as many requests at the same time, on as many connections. The one with a lock
asks a set, takes redis-py's Lock of the item, asks again, adds to the set and releases.

A finished item of idemkit, with the result that it is for, is kept for a day, one of the others for
good. Memory is the MEMORY USAGE of all keys.

In the last table workers go through all items until these are done. 2 % of the exchanges get lost,
every second one before the server saw it. Every two seconds a worker is killed with -9 and
replaced. An item is worked on again if its worker was killed between its work and the commit, or if
the commit ended in an error, or was refused because it came too late. What must not see such work
twice has to check the fence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks import claims_rig, contenders, engine, show
from benchmarks.contenders import Entry, make
from benchmarks.engine import Case, Row, Stage
from benchmarks.figures import ratios, summarize
from benchmarks.jobs import cut
from benchmarks.place import Place, connect, forget, memory_of, sort_out
from benchmarks.tables import number
from benchmarks.workloads import items
from bloomlock import NearCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from benchmarks.options import Options

ABOUT = "claim, work, commit, beside idemkit and a lock with a set"

OURS = Entry("claims", "bloomlock", "claims.Claims")
NEAR = Entry(
    "claims-near-cache",
    "bloomlock, near-cache",
    "claims.Claims",
    {"near_cache": NearCache(10_000, max_staleness=60.0)},
    operations=("exists",),
)
ASYNC = Entry(
    "claims-asyncio", "bloomlock, asyncio", "claims.AsyncClaims", operations=contenders.SINGLE
)
IDEMKIT = Entry("idemkit", "idemkit, backend", "claims.Idemkit", needs="package:idemkit")
DECORATOR = Entry(
    "idemkit-decorator",
    "idemkit, decorator",
    "claims.IdemkitDecorator",
    operations=contenders.SINGLE,
    needs="package:idemkit",
    slow=2,
)
LOCK = Entry("lock-sadd", "redis-py Lock + SADD", "claims.LockAndSet", slow=2)
ENTRIES = (
    OURS,
    NEAR,
    ASYNC,
    IDEMKIT,
    DECORATOR,
    LOCK,
    contenders.PING.only(*contenders.SINGLE),
    contenders.PING_BYTES.only(*contenders.SINGLE),
)
BATCH = 100
LINK_MS = 0.5
SINGLES = 200
KEPT = 10_000
"""Items of which the memory is taken."""
CHUNK = 1000
WORKERS = 8
KILL_EVERY = 2.0


@dataclass(slots=True)
class MemoryRow:
    """Memory of one contender.

    Attributes:
        contender: Its name.
        title: Its title.
        finished: Bytes for a finished item, in a filter that is full.
        open: Bytes for an open claim.
    """

    contender: str
    title: str
    finished: float
    open: float


@dataclass(slots=True)
class FlatRow:
    """The keys of claims, all but the bitmap, while items are claimed and committed.

    Attributes:
        done: Items that were committed.
        bytes: What those keys take.
    """

    done: int
    bytes: int


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure all of it; return what was measured as plain data."""
    result = engine.run(_stages(options), options, url, prefix)
    wanted = contenders.choose((OURS, IDEMKIT, LOCK), options.contenders)
    there, _ = sort_out(wanted, url)
    total = options.items or (2_000 if options.quick else 20_000)
    workers = max(options.processes or (WORKERS,))
    kept = min(options.items or KEPT, KEPT)
    result |= {"kept": kept, "memory": [], "flat": [], "rig": []}
    with connect(url) as client, show.progress(2 * len(there) + 1) as step:
        for entry in there:
            step(f"memory {entry.title}")
            place = Place(url, f"{prefix}m:{entry.name}:", "kept", kept, 1e-6)
            result["memory"].append(asdict(_memory(client, entry, place)))
            forget(client, prefix)
        if OURS in there:
            step("memory of claims that are over")
            result["flat"] = [asdict(row) for row in _flat(client, url, prefix, options)]
            forget(client, prefix)
        for entry in there:
            step(f"killed workers {entry.title}")
            row = claims_rig.Row(entry.name, entry.title, total, workers)
            claims_rig.run(entry, url, f"{prefix}r:{entry.name}:", row, KILL_EVERY)
            result["rig"].append(asdict(row))
            forget(client, prefix)
    return result


def _stages(options: Options) -> Iterator[Stage]:
    rate = options.error_rates[0]
    count = options.offered(SINGLES)
    single = (Case("add", count), Case("exists", count, "seen"))
    batch = Case("add_many", options.offered(10 * BATCH, BATCH), batch=BATCH)
    near = Stage(ENTRIES, (*single, batch), options.slices(20, 3), error_rate=rate)
    yield near
    far = (OURS, IDEMKIT, LOCK, contenders.PING_BYTES.only(*contenders.SINGLE))
    few = Case("add", options.offered(SINGLES // 4))
    yield replace(
        near,
        entries=far,
        cases=(few, replace(batch, items=options.offered(4 * BATCH, BATCH))),
        repetitions=options.slices(8, 2),
        round_trip_ms=LINK_MS,
    )


def _memory(client: Any, entry: Entry, place: Place) -> MemoryRow:
    scheme: Any = make(entry.made_by, place, entry.options)
    count, before = place.capacity, memory_of(client, place.prefix)
    handles = [one.handle for some in _kept(count) for one in scheme.take(some)]
    claimed = memory_of(client, place.prefix)
    for some in cut(handles, CHUNK):
        scheme.finish(some)
    finished = memory_of(client, place.prefix)
    return MemoryRow(
        entry.name, entry.title, round(finished / count, 2), round((claimed - before) / count, 1)
    )


def _flat(client: Any, url: str, prefix: str, options: Options) -> Iterator[FlatRow]:
    most = options.items or (50_000 if options.quick else 1_000_000)
    scheme: Any = make(OURS.made_by, Place(url, prefix, "flat", most, 1e-6), OURS.options)
    steps = [most // 100 or 1, most // 10 or 1, most]
    done = 0
    for some in _kept(most):
        scheme.add_many(some)
        done += len(some)
        while steps and done >= steps[0]:
            steps.pop(0)
            yield FlatRow(done, memory_of(client, prefix, ":bits"))


def _kept(count: int) -> Iterator[list[str]]:
    for start in range(0, count, CHUNK):
        yield items(f"kept/{start}", min(CHUNK, count - start))


_WHAT = {
    "add": "claim and commit a new item",
    "exists": "claim a seen item",
    "add_many": f"claim_many of {BATCH} and commit_many, for each item",
}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make a table for each case, and those of memory, of memory after the end, and of kills."""
    groups: dict[tuple[float, str], list[Row]] = {}
    for row in (Row(**plain) for plain in result["rows"]):
        groups.setdefault((row.round_trip_ms, row.operation), []).append(row)
    for (trip_ms, operation), rows in groups.items():
        # What a bare round trip is for a batch: that of the single items over the same link.
        pings = groups.get((trip_ms, "add"), []) if operation == "add_many" else rows
        yield _times(rows, pings, result["missing"])
        if operation == "add_many" and trip_ms:
            yield _rates(rows, pings)
    if result["memory"]:
        yield _memory_table([MemoryRow(**row) for row in result["memory"]], result["kept"])
    if result["flat"]:
        yield _flat_table([FlatRow(**row) for row in result["flat"]])
    if result["rig"]:
        yield _rig_table([claims_rig.Row(**row) for row in result["rig"]])


def _times(rows: list[Row], pings: list[Row], missing: list[dict[str, str]]) -> Table:
    named = {row.contender: row for row in pings}
    bases = {
        title: named[entry.name]
        for title, entry in (("PING bytes", contenders.PING_BYTES), ("PING", contenders.PING))
        if entry.name in named
    }
    columns = [
        "",
        "µs",
        *(f"/ {title}" for title in bases),
        "reads",
        "server µs",
        "client µs",
        "B to",
        "B from",
        "wrong",
    ]
    lines = [
        [
            row.title,
            number(1e6 / summarize(row.rates).median),
            *(show.ratio(ratios(base.rates, row.rates)) for base in bases.values()),
            f"{summarize(row.round_trips).median:.2f}",
            *(
                number(summarize(figures).median)
                for figures in (row.server, row.client, row.to_server, row.from_server)
            ),
            f"{row.wrong}",
        ]
        for row in rows
    ]
    absent = [[each["title"], "not available", *[""] * (len(columns) - 2)] for each in missing]
    link = f"round trip {rows[0].round_trip_ms:g} ms" if rows[0].round_trip_ms else "unix socket"
    return show.table(f"{_WHAT[rows[0].operation]}, {link}", columns, lines + absent)


def _rates(rows: list[Row], singles: list[Row]) -> Table:
    named = {row.contender: row for row in singles}
    return show.table(
        f"rate of batches of {BATCH} over that of single items, round trip {LINK_MS:g} ms",
        ["", "items/s", "/ its singles", "/ bloomlock's singles"],
        (
            [
                row.title,
                f"{summarize(row.rates).median:,.0f}",
                *(
                    show.ratio(ratios(row.rates, named[name].rates)) if name in named else ""
                    for name in (row.contender, OURS.name)
                ),
            ]
            for row in rows
        ),
    )


def _memory_table(rows: list[MemoryRow], kept: int) -> Table:
    return show.table(
        f"bytes for each of {kept:,} items",
        ["", "finished", "open claim"],
        ([row.title, f"{row.finished:.2f}", f"{row.open:.0f}"] for row in rows),
    )


def _flat_table(rows: list[FlatRow]) -> Table:
    return show.table(
        "bytes of all keys but the bitmap, after items that were claimed and committed",
        ["committed", "bytes"],
        ([f"{row.done:,}", f"{row.bytes:,}"] for row in rows),
    )


def _rig_table(rows: list[claims_rig.Row]) -> Table:
    first = rows[0]
    return show.table(
        f"{first.workers} workers, {first.items:,} items, one killed every {KILL_EVERY:g} s, "
        f"{claims_rig.SHARE:.0%} of the exchanges lost",
        [
            "",
            "done",
            "claims left",
            "worked on more than once",
            "its worker killed",
            "commit failed",
            "commit refused",
            "finished twice",
            "kills",
            "lost before/after",
            "s",
            "errors",
        ],
        (
            [
                row.title,
                f"{row.done:,}",
                f"{row.open}",
                f"{row.again}",
                f"{row.killed}",
                f"{row.unanswered}",
                f"{row.lost}",
                f"{row.finished_twice}",
                f"{row.kills}",
                f"{row.lost_before}/{row.lost_after}",
                f"{row.seconds:.0f}",
                ", ".join(f"{count} {name}" for name, count in row.errors.items()) or "none",
            ]
            for row in rows
        ),
    )
