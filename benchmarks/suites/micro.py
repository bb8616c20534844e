"""Single parts, by timeit: hashing, encoding, a filter in the process, a near-cache's hit.

Each is a statement and what comes before it, repeated for as long as timeit finds necessary. These
alone look below the public names: to time hashing and encoding is to call them.
"""

from __future__ import annotations

import timeit
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, show
from benchmarks.figures import summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from benchmarks.options import Options

ABOUT = "single parts, by timeit"
NANOSECONDS = 1e9
MANY = 1000
_ITEMS = f"from benchmarks.workloads import fingerprints; items = fingerprints('micro', {MANY})"
_ENCODED = f"{_ITEMS}; encoded = [item.encode() for item in items]; item = encoded[0]"
_HASHER = f"""{_ENCODED}
from bloomlock.hashing import Hasher
hasher = Hasher(28_755_176, 20)
rows = hasher.place(hasher.digests(encoded))[1]
"""
_KEYED = _HASHER.replace("28_755_176, 20", "28_755_176, 20, key=bytes(32)")
_ATOMIC = f"""{_HASHER}
from bloomlock.strategies.atomic import Bitfields, encode_few
from bloomlock.strategies.base import Shard
shard, offsets = Shard("bloomlock:{{name}}:bits", 1, 8), rows[0].tolist()
"""
_MEMORY = f"""{_ITEMS}
from bloomlock import MemoryBloomFilter
memory = MemoryBloomFilter(1_000_000)
memory.update(items)
item = items[0]
"""
_RBLOOM = f"""{_ITEMS}
from rbloom import Bloom
bloom = Bloom(1_000_000, 1e-6)
bloom.update(items)
item = items[0]
"""
_MURMUR = _RBLOOM.replace(
    "bloom = Bloom(1_000_000, 1e-6)",
    "from benchmarks.contenders.filters import _lasting as hash_func\n"
    "bloom = Bloom(1_000_000, 1e-6, hash_func)",
)
_SHARED = f"""{_ITEMS}
from benchmarks.place import connect
from bloomlock import BloomFilter
client = connect(url)
shared = BloomFilter("micro", 1_000_000, client=client, prefix=prefix, near_cache=NEAR)
shared.update(items)
item = items[0]
shared.add(item)
"""
_NEAR = _SHARED.replace("NEAR", "100_000")
_FAR = _SHARED.replace("NEAR", "0")


@dataclass(frozen=True, slots=True)
class Part:
    """One statement to time; `package` is one it needs that may not be installed."""

    name: str
    title: str
    statement: str
    setup: str
    items: int = 1
    package: str = ""


ENTRIES = (
    Part(
        "digest",
        "mmh3: digest of an item",
        "digest(item)",
        f"import mmh3; digest = mmh3.mmh3_x64_128_digest; {_ENCODED}",
    ),
    Part(
        "digest-keyed",
        "blake2b with a key: digest of an item",
        "digest(item)",
        f"{_KEYED}digest = hasher._digest",
    ),
    Part("locate", "hashing: 20 offsets of an item", "hasher.locate(item)", _HASHER),
    Part("locate-keyed", "hashing: 20 offsets, with a key", "hasher.locate(item)", _KEYED),
    Part(
        "place",
        "hashing: offsets of 1,000 items",
        "hasher.place(hasher.digests(encoded))",
        _HASHER,
        MANY,
    ),
    Part(
        "place-keyed",
        "hashing: offsets of 1,000 items, with a key",
        "hasher.place(hasher.digests(encoded))",
        _KEYED,
        MANY,
    ),
    Part(
        "encode",
        "encoding: BITFIELD of an item",
        "encode_few(shard, offsets, True)",
        _ATOMIC,
    ),
    Part(
        "encode-many",
        "encoding: BITFIELDs of 1,000 items",
        "list(Bitfields(shard, rows, True))",
        _ATOMIC,
        MANY,
    ),
    Part("memory-add", "MemoryBloomFilter.add, seen", "memory.add(item)", _MEMORY),
    Part("memory-in", "in MemoryBloomFilter, seen", "item in memory", _MEMORY),
    Part("memory-in-new", "in MemoryBloomFilter, new", "'new' in memory", _MEMORY),
    Part("memory-update", "MemoryBloomFilter.update, 1,000", "memory.update(items)", _MEMORY, MANY),
    Part(
        "memory-exists",
        "MemoryBloomFilter.exists_many, 1,000",
        "memory.exists_many(items)",
        _MEMORY,
        MANY,
    ),
    Part(
        "memory-add-many",
        "MemoryBloomFilter.add_many, 1,000",
        "memory.add_many(items)",
        _MEMORY,
        MANY,
    ),
    Part("rbloom-add-murmur", "rbloom.add, Murmur3", "bloom.add(item)", _MURMUR, package="rbloom"),
    Part("rbloom-in-murmur", "in rbloom, Murmur3", "item in bloom", _MURMUR, package="rbloom"),
    Part(
        "rbloom-update-murmur",
        "rbloom.update, Murmur3, 1,000",
        "bloom.update(items)",
        _MURMUR,
        MANY,
        "rbloom",
    ),
    Part("rbloom-in", "in rbloom, seen", "item in bloom", _RBLOOM, package="rbloom"),
    Part("rbloom-in-new", "in rbloom, new", "'new' in bloom", _RBLOOM, package="rbloom"),
    Part("rbloom-update", "rbloom.update, 1,000", "bloom.update(items)", _RBLOOM, MANY, "rbloom"),
    Part("near-hit", "BloomFilter.add, in the near-cache", "shared.add(item)", _NEAR),
    Part(
        "near-hit-many",
        "BloomFilter.add_many, 1,000 in the near-cache",
        "shared.add_many(items)",
        _NEAR,
        MANY,
    ),
    Part("far", "BloomFilter.add, seen, whole call", "shared.add(item)", _FAR),
    Part(
        "far-many",
        "BloomFilter.add_many, 1,000 seen, whole call",
        "shared.add_many(items)",
        _FAR,
        MANY,
    ),
    Part("ping", "PING by redis-py, whole call", "client.ping()", _FAR),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Nanoseconds of an item, one for each repetition."""

    name: str
    title: str
    items: int
    values: list[float]


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Time each part; return the times as plain data."""
    wanted = contenders.choose(ENTRIES, options.contenders)
    there = [part for part in wanted if not part.package or find_spec(part.package)]
    missing = [
        {"title": part.title, "why": f"{part.package} is not installed"}
        for part in wanted
        if part not in there
    ]
    rows = []
    with show.progress(len(there)) as step:
        for part in there:
            step(part.title)
            given = {"url": url, "prefix": prefix}
            timer = timeit.Timer(part.statement, part.setup, globals=given)
            number, _ = timer.autorange()
            times = timer.repeat(options.slices(9, 3), number)
            values = [round(NANOSECONDS * each / number / part.items, 2) for each in times]
            rows.append(Row(part.name, part.title, part.items, values))
    return {"missing": missing, "rows": [asdict(row) for row in rows]}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make the table."""
    rows = [Row(**row) for row in result["rows"]]
    absent = [[each["title"], "", "not available", ""] for each in result["missing"]]
    columns = ["", "items", "ns/item, median", "least-most"]
    yield show.table("single parts", columns, [*map(_line, rows), *absent])


def _line(row: Row) -> list[str]:
    found = summarize(row.values)
    return [
        row.title,
        f"{row.items:,}",
        f"{found.median:,.0f}",
        f"{found.low:,.0f}-{found.high:,.0f}",
    ]
