"""What `micro` times, as pyperf's own program: `python -m benchmarks.micro_parts [OPTION...]`.

Each part is a statement and what comes before it, as for `timeit`. These alone look below the
public names: to time hashing and encoding is to call them.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec

WANTED = "BLOOMLOCK_BENCHMARK"
"""Environment variable with the server, a prefix for keys and the names of parts, as JSON."""
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
_BLOCKED = _MEMORY.replace("1_000_000", "1_000_000, layout='blocked'")
_RBLOOM = f"""{_ITEMS}
from rbloom import Bloom
bloom = Bloom(1_000_000, 1e-6)
bloom.update(items)
item = items[0]
"""
_SHARED = f"""{_ITEMS}
import json, os
from benchmarks.place import connect
from bloomlock import BloomFilter
wanted = json.loads(os.environ["{WANTED}"])
client = connect(wanted["url"])
shared = BloomFilter("micro", 1_000_000, client=client, prefix=wanted["prefix"], near_cache=NEAR)
shared.update(items)
item = items[0]
shared.add(item)
"""
_NEAR = _SHARED.replace("NEAR", "100_000")
_FAR = _SHARED.replace("NEAR", "0")


@dataclass(frozen=True, slots=True)
class Part:
    """One statement to time.

    Attributes:
        name: As on the command line.
        title: As in the tables.
        statement: What is timed.
        setup: What comes before it.
        items: How many items it deals with.
        package: Package it needs that may not be installed.
    """

    name: str
    title: str
    statement: str
    setup: str
    items: int = 1
    package: str = ""


PARTS = (
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
    Part("memory-in-blocked", "in MemoryBloomFilter, blocked, seen", "item in memory", _BLOCKED),
    Part("memory-update", "MemoryBloomFilter.update, 1,000", "memory.update(items)", _MEMORY, MANY),
    Part(
        "memory-exists",
        "MemoryBloomFilter.exists_many, 1,000",
        "memory.exists_many(items)",
        _MEMORY,
        MANY,
    ),
    Part(
        "memory-exists-blocked",
        "MemoryBloomFilter.exists_many, 1,000, blocked",
        "memory.exists_many(items)",
        _BLOCKED,
        MANY,
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


def chosen(names: tuple[str, ...]) -> list[Part]:
    """Return the parts of these names, all if there are none, that can be timed here."""
    wanted = [part for part in PARTS if not names or part.name in names]
    return [part for part in wanted if not part.package or find_spec(part.package)]


def main() -> None:
    """Let pyperf time the parts that are wanted."""
    from pyperf import Runner  # noqa: PLC0415 - may not be installed

    runner = Runner(program_args=("-m", __spec__.name))
    # pyperf empties the environment of its processes, but for what is named here.
    sys.argv += ["--inherit-environ", WANTED]
    for part in chosen(tuple(json.loads(os.environ[WANTED])["parts"])):
        runner.timeit(part.title, part.statement, setup=part.setup)


if __name__ == "__main__":
    main()
