"""Filters of every kind, and the ways in which one is copied."""

from __future__ import annotations

import io

from flat_options import given

from bloomlock import BloomFilter
from bloomlock.filters import files, tombstones

SECRET = b"a secret of more than 16 bytes"
ITEMS = [f"item {number}" for number in range(600)]
ABSENT = [f"never {number}" for number in range(600)]
GONE = [f"gone {number}" for number in range(40)]
"""Items that were in a filter with discards, and are not."""
KINDS = {
    "plain": {"capacity": 6_000, "shards": 3},
    "seeds": {"capacity": 20_000, "seeds": tuple(range(1, 31))},
    "keyed": {"capacity": 20_000, "key": SECRET, "shards": 2},
    "discards": {"capacity": 3_000, "shards": 2},
    "window": {"capacity": 6_000, "window": 6_000, "slices": 6, "shards": 2},
    "grown": {"capacity": 50, "on_full": "grow", "shards": 2},
    "window, discards": {"capacity": 6_000, "window": 6_000, "slices": 6},
    "grown, discards": {"capacity": 50, "on_full": "grow", "key": True},
}
IN_MEMORY = ("plain", "seeds", "keyed")
"""Those whose file a MemoryBloomFilter can load."""


def filled(client, kind="plain", name="x", items=ITEMS):
    """Make a filter of a kind, and add items; with discards some of them again, after others."""
    made = BloomFilter(name, error_rate=1e-9, client=client, **given(KINDS[kind]))
    if "discards" in kind:
        made.update([*GONE, *items[:20]])
        assert made.discard_many([*GONE, *items[:20]]) == [True] * (len(GONE) + len(items[:20]))
    for start in range(0, len(items), 25):
        made.update(items[start : start + 25])
    return made


def key_of(kind):
    """Return what `open` and `import_file` have to be told."""
    key = KINDS[kind].get("key")
    return {} if key is True or key is None else {"key": key}


class Pipe(io.BytesIO):
    """A file that cannot be sought, and gives what it has in pieces."""

    def seekable(self):
        return False

    def read(self, size=-1):
        return super().read(min(size, 5_000) if size > 0 else size)


def by_file(made, client, path, **options):
    made.export_file(path)
    return type(made).import_file("y", path, client=client, **options)


def by_pipe(made, client, path, **options):
    made.export_file(path)
    return type(made).import_file("y", Pipe(path.read_bytes()), client=client, **options)


WAYS = {
    "copy": lambda made, _client, _path, **_: made.copy("y"),
    "copy_to": lambda made, client, _path, **_: made.copy_to(client, "y"),
    "file": by_file,
    "pipe": by_pipe,
}
"""By name: what copies a filter to the name "y"; "copy" leaves it on its own server."""


def small_parts(monkeypatch, size=1_009):
    """Let parts have about a thousand bytes, not a divisor of anything."""
    monkeypatch.setattr(files, "BYTES_PER_TRIP", 2 * size)
    monkeypatch.setattr(files, "PIECE_BYTES", size)
    monkeypatch.setattr(tombstones, "IDENTITIES_PER_COMMAND", 3)
