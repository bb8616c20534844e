"""Filters with a time window, and filters that grow: copied, exported, moved and renamed.

A shard may grow, or turn to its next slice, at any step of a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import time
from itertools import product

import pytest
import redis
from moved_clock import moved_server
from stepped import Stepped

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ConfigurationError,
    MemoryBloomFilter,
    list_filters,
    verify_file,
)
from bloomlock.descriptor import slices_of
from bloomlock.filters import combining, file_format, files, transfer, versions
from bloomlock.keys import forgotten_key
from bloomlock.server import PrivateServer
from bloomlock.strategies.base import header_from_bytes
from bloomlock.strategies.sliced import TRUST_S

LENGTH = 6 * 3600
"""Seconds of a window; less than a prepared key lives, which goes by the same clock."""
SLICE = LENGTH / 14
ITEMS = [f"item {number}" for number in range(600)]
ABSENT = [f"never {number}" for number in range(600)]
MORE = 1_200
"""Items that let a filter of the others with a capacity of 50 grow once more."""
KINDS = {
    "window": {"capacity": 30_000, "window": LENGTH},
    "refresh": {"capacity": 30_000, "window": LENGTH, "slices": 30, "refresh": True},
    "grown": {"capacity": 50, "on_full": "grow"},
    "grown, keyed": {"capacity": 40, "on_full": "grow", "growth": 2, "key": True},
    "not grown": {"capacity": 2000, "on_full": "grow"},
    "forgotten": {"capacity": 3000},
    "forgotten, keyed": {"capacity": 3000, "key": True},
    "grown, forgotten": {"capacity": 50, "on_full": "grow"},
    "window, forgotten": {"capacity": 30_000, "window": LENGTH},
}
FORGOTTEN = [f"forgotten {number}" for number in range(90)]
"""Items that were there, and are not; the first of the others were forgotten and added again."""


def filled(client, kind="grown", shards=3, name="x", made=BloomFilter):
    one = made(name, error_rate=1e-9, shards=shards, client=client, **KINDS[kind])
    for start in range(0, len(ITEMS), 25):
        one.update(ITEMS[start : start + 25])
        if "forgotten" in kind and not start:
            one.update(FORGOTTEN)
            assert one.discard_many([*FORGOTTEN, *ITEMS[:20]]) == [True] * 110
    if "forgotten" in kind:
        one.update(ITEMS[:20])
    return one


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of some thousand bytes, not of a divisor of anything."""
    monkeypatch.setattr(transfer, "BYTES_PER_TRIP", 1_009)
    monkeypatch.setattr(files, "PART_BYTES", 1_501)
    monkeypatch.setattr(combining, "PART_BYTES", 1_013)
    monkeypatch.setattr(combining, "WHOLE_BYTES", 500)
    monkeypatch.setattr(versions, "VERSIONS_PER_COMMAND", 3)
    for module in (files, transfer):
        monkeypatch.setattr(module, "TABLE_PART_RECORDS", 7)


@pytest.fixture(scope="module")
def elsewhere():
    with PrivateServer() as server, redis.Redis.from_url(server.url) as client:
        yield client


def strings(made, client):
    """Return what the shards hold, but for the generation."""
    found = []
    for shard in made._state.view.shards:
        whole = bytearray(client.get(shard.key))
        whole[:8] = file_format.image_start(header_from_bytes(whole[:8]))
        found.append(bytes(whole))
    return found


def tables(made, client):
    """Return the tables of forgotten items of the shards."""
    return [client.hgetall(forgotten_key(shard.key)) for shard in made._state.view.shards]


def table_bytes(made, client):
    return sum(22 * len(table) for table in tables(made, client))


def num_bytes(made, path):
    """Return how many bytes an export said that there are."""
    moved = []
    made.export_file(path / "counted", progress=lambda *parts: moved.append(parts))
    assert moved[-1][0] == moved[-1][1]
    return moved[-1][1]


def by_file(made, client, path):
    made.export_file(path)
    moved = []
    copied = BloomFilter.import_file(
        "y", path, client=client, progress=lambda *parts: moved.append(parts)
    )
    assert moved[-1][0] == moved[-1][1]
    return copied


class Pipe(io.BytesIO):
    """A file that cannot be sought, and gives what it has in pieces."""

    def seekable(self):
        return False

    def read(self, size=-1):
        return super().read(min(size, 5_000) if size > 0 else size)


def by_pipe(made, client, path):
    made.export_file(path)
    return BloomFilter.import_file("y", Pipe(path.read_bytes()), client=client)


def by_asyncio(made, client, path):
    url = url_of(client)

    async def run():
        async with await AsyncBloomFilter.open("x", client=url_of(made._client)) as one:
            await one.export_file(path)
            async with await one.copy("z") as two, await two.copy_to(url, "between") as three:
                assert await three.exists_many(ITEMS) == [True] * len(ITEMS)
        async with await AsyncBloomFilter.import_file("y", path, client=url) as four:
            return await four.exists_many(ITEMS)

    assert asyncio.run(run()) == [True] * len(ITEMS)
    return BloomFilter.open("y", client=client)


def url_of(client):
    settings = client.connection_pool.connection_kwargs
    if "path" in settings:
        return f"unix://{settings['path']}"
    return f"redis://{settings['host']}:{settings['port']}/{settings.get('db') or 0}"


WAYS = {
    "copy": lambda made, _, __: made.copy("y"),
    "file": by_file,
    "pipe": by_pipe,
    "copy_to": lambda made, client, _: made.copy_to(client, "y"),
    "asyncio": by_asyncio,
    "rename": lambda made, _, __: made.rename("y"),
}


# Any two of a way, a kind and a number of shards meet.
@pytest.mark.parametrize(
    ("way", "kind", "shards"),
    [
        (way, kind, (1, 3)[(i + j) % 2])
        for (i, way), (j, kind) in product(enumerate(WAYS), enumerate(KINDS))
    ],
)
@pytest.mark.usefixtures("small_parts")
def test_a_copy_is_the_same_and_goes_on(r, elsewhere, tmp_path, way, kind, shards):
    elsewhere.flushall()
    target = elsewhere if way in ("file", "copy_to", "asyncio") else r
    made = filled(r, kind, shards)
    before, versions, info = strings(made, r), tables(made, r), made.info()
    assert sum(map(len, versions)) == (110 + shards if "forgotten" in kind else 0)
    assert num_bytes(made, tmp_path) == sum(map(len, before)) + table_bytes(made, r)
    copied = WAYS[way](made, target, tmp_path / "file")
    assert (strings(copied, target), tables(copied, target)) == (before, versions)
    assert not any(copied.exists_many(FORGOTTEN))
    assert copied.generation != made.generation
    assert copied.exists_many([*ITEMS, *ABSENT]) == [True] * 600 + [False] * 600
    now = copied.info()
    assert (now.slices, now.estimated_count) == (info.slices, info.estimated_count)
    more = [f"more {number}" for number in range(MORE)]
    for start in range(0, len(more), 100):
        assert copied.add_many(more[start : start + 100] * 2) == [True] * 100 + [False] * 100
    assert copied.exists_many([*ITEMS, *more]) == [True] * (600 + MORE)
    if kind.startswith("grown"):
        assert copied.info().slices > info.slices > 1
        assert copied.info().current_error_rate < 1e-9
    keys = [*r.scan_iter(), *elsewhere.scan_iter()]
    assert not [key for key in keys if b"prepared" in key]
    assert all(client.ttl(key) == -1 for client in (r, elsewhere) for key in client.scan_iter())


def test_a_shard_that_grows_at_any_step_of_a_copy_loses_nothing(
    r, elsewhere, tmp_path, monkeypatch
):
    """All that was added before is there, the copy is whole, and each of its shards can grow on."""
    for module, name in ((transfer, "BYTES_PER_TRIP"), (combining, "PART_BYTES")):
        monkeypatch.setattr(module, name, 5_003)
    monkeypatch.setattr(combining, "WHOLE_BYTES", 500)
    made = filled(r, shards=2)
    # Up to where a few more make it grow, which is for once: item by item that takes its time.
    made.update(f"early {one}" for one in range(740))
    whole = {key: r.dump(key) for key in r.scan_iter()}
    grew = set()
    for way in ("copy", "file"):
        number = 0
        while True:
            r.flushall()
            elsewhere.flushall()
            for key, value in whole.items():
                r.restore(key, 0, value)
            writer = BloomFilter.open("x", client=r)

            def grow(writer=writer):
                before = writer.info().slices
                for start in (0, 100):
                    writer.update(f"late {one}" for one in range(start, start + 100))
                assert writer.info().slices > before

            kind = Stepped.before(-1, grow)
            made = kind.open("x", client=r)
            kind.done, kind.at = 0, number
            target = r if way == "copy" else elsewhere
            copied = WAYS[way](made, target, tmp_path / "file")
            is_over = kind.done <= number
            assert copied.exists_many([*ITEMS, *ABSENT]) == [True] * 600 + [False] * 600, number
            assert copied.reattach() is None
            slices = [slices_of(header_from_bytes(each)) for each in headers(copied, target)]
            grew.add((way, tuple(slices)))
            for start in (0, 100):
                copied.update(f"late {one}" for one in range(start, start + 100))
            assert all(copied.exists_many(f"late {one}" for one in range(200)))
            assert not any(copied.exists_many(ABSENT))
            if is_over:
                break
            number += 1
        assert number > 4, way
    print(f"slices of the shards: {sorted(grew)}")
    # A copy has the slices of before, or of after, or some shards have these and some those.
    assert all(len({slices for way, slices in grew if way == one}) > 1 for one in ("copy", "file"))


def headers(made, client):
    return [client.getrange(shard.key, 0, 7) for shard in made._state.view.shards]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("way", ["copy", "file"])
@pytest.mark.parametrize("step", [1, 2, 15])
def test_a_shard_that_turns_in_the_middle_of_a_copy_forgets_in_time(tmp_path, way, step):
    """Time goes on by some slices while a shard is read, and then up to where all is forgotten."""
    with moved_server("valkey", tmp_path) as (client, move, _):

        def move_and_wait(seconds):
            move(seconds)
            time.sleep(TRUST_S)

        writer = filled(client, "window", 2)
        now = 0

        def turn():
            nonlocal now
            now = math.ceil(step * SLICE)
            move_and_wait(now)
            writer.update(f"late {one}" for one in range(600))

        # The third part of the first shard, and the second part of the second.
        number = 3 if way == "file" else 8
        kind = Stepped.before(-1, turn)
        made = kind.open("x", client=client)
        kind.done, kind.at = 0, number
        copied = WAYS[way](made, client, tmp_path / "file")
        assert kind.done > number + 2
        ends = (LENGTH - 60, *(start + LENGTH + math.ceil(SLICE) + 60 for start in (0, now)))
        for end in sorted({now, *ends}):
            if end < now:
                continue
            move_and_wait(end)
            there = copied.exists_many(ITEMS)
            if end < LENGTH:
                assert all(there), (end, there.count(False))
            if end > LENGTH + SLICE:
                assert not any(there), (end, there.count(True))
            if end > now + LENGTH + SLICE:
                assert not any(copied.exists_many(f"late {one}" for one in range(600)))
            assert not any(copied.exists_many(ABSENT))
            # What a copy turns to is as it is for its source.
            assert copied.add(f"at {end}") is True
            assert copied.add(f"at {end}") is False
        assert copied.add_many(ITEMS) == [True] * 600


def test_what_is_imported_late_is_forgotten_by_then(tmp_path):
    with moved_server("valkey", tmp_path) as (client, move, _):
        path = tmp_path / "file"
        made = filled(client, "window")
        made.export_file(path)
        move(LENGTH - 60)
        assert BloomFilter.import_file("in time", path, client=client).exists_many(ITEMS) == (
            [True] * 600
        )
        move(LENGTH + math.ceil(SLICE) + 60)
        late = BloomFilter.import_file("late", path, client=client)
        assert not any(late.exists_many(ITEMS))
        assert late.add_many(ITEMS) == [True] * 600


@pytest.mark.parametrize("kind", KINDS)
def test_where_scripts_may_not_run_a_window_is_copied_all_the_same(r, valkey, kind):
    filled(r, kind)
    r.acl_setuser("careful", enabled=True, nopass=True, keys="*", channels="*",
                  commands=["+@all", "-@scripting"])  # fmt: skip
    with redis.Redis.from_url(valkey, username="careful", password="any") as careful:  # noqa: S106
        if "grown" in kind:
            with pytest.raises(ConfigurationError, match="needs a server that runs scripts"):
                BloomFilter.open("x", client=careful).copy("y")
            assert list_filters(client=r) == ["x"]
            return
        BloomFilter.open("x", client=careful).copy("y")
    assert BloomFilter.open("y", client=r).exists_many(ITEMS) == [True] * 600


@pytest.mark.parametrize(
    ("kind", "version"), [("window", 3), ("grown", 3), ("forgotten", 4), ("grown, forgotten", 4)]
)
def test_a_file_is_for_a_server_alone(r, tmp_path, kind, version):
    path = tmp_path / "file"
    filled(r, kind).export_file(path)
    lines = path.read_bytes().split(b"\n")
    assert lines[0] == b"bloomlock bitmap %d" % version
    assert verify_file(path).forgotten == (110 if version == 4 else 0)
    for load in (MemoryBloomFilter.load, lambda file: MemoryBloomFilter.load(file, verify=True)):
        with pytest.raises(ConfigurationError, match="which is in a server only; use"):
            load(path)


def with_fields(version, fields):
    """Return the first page of a file."""
    lines = b"bloomlock bitmap %d\n%s\n" % (version, json.dumps(fields).encode())
    head = lines + file_format.hashlib.sha256(lines).hexdigest().encode() + b"\n"
    return head.ljust(4096, b"\0")


def with_sums(data, end):
    """Return a file with the right checksums for the images and tables that it has."""
    sums = file_format.BlockSums()
    sums.take(data[4096:end])
    sums.end()
    table = bytes(sums.table)
    return bytes(data[:end]) + table + file_format.hashlib.sha256(data[:4096] + table).digest()


@pytest.mark.parametrize(
    "counts", ["", "3", "0,0,2", "a,b", "-1,4", "3,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0", 3, None]
)
def test_a_header_that_says_other_shards_is_refused(r, tmp_path, counts):
    path = tmp_path / "file"
    filled(r).export_file(path)
    data = path.read_bytes()
    fields = json.loads(data.split(b"\n")[1])
    assert sum(map(int, fields["shards_by_slices"].split(","))) == 3
    if counts is None:
        del fields["shards_by_slices"]
    else:
        fields["shards_by_slices"] = counts
    forged = with_fields(3, fields) + data[4096:]
    before = set(r.scan_iter())
    for source in (path, Pipe(forged)):
        path.write_bytes(forged)
        with pytest.raises(ConfigurationError, match="of no use|is damaged") as caught:
            BloomFilter.import_file("y", source, client=r)
        assert "\n" not in str(caught.value)
    assert set(r.scan_iter()) == before


def test_an_image_of_another_length_is_refused(r, tmp_path):
    """Its header says that no shard has as many slices; sums that are right say nothing of that."""
    path = tmp_path / "file"
    made = filled(r, "not grown", 1)
    made.export_file(path)
    data = bytearray(path.read_bytes())
    data[4096 + 7] = 1
    images = file_format.Images.of(made._descriptor, [made._descriptor.header])
    path.write_bytes(with_sums(data, images.end))
    with pytest.raises(ConfigurationError, match="shard 0 has no such length"):
        BloomFilter.import_file("y", path, client=r)
    assert list_filters(client=r) == ["x"]


@pytest.mark.parametrize("forgotten", [-1, "110", 110.0, True, None, 0, 109, 111, 10**30])
def test_a_header_that_says_another_number_of_forgotten_items_is_refused(r, tmp_path, forgotten):
    path = tmp_path / "file"
    filled(r, "forgotten").export_file(path)
    data = path.read_bytes()
    fields = json.loads(data.split(b"\n")[1])
    assert fields["forgotten"] == 110
    forged = with_fields(4, fields | {"forgotten": forgotten}) + data[4096:]
    path.write_bytes(forged)
    before = set(r.scan_iter())
    for source in (path, Pipe(forged)):
        with pytest.raises(ConfigurationError, match="of no use|is damaged") as caught:
            BloomFilter.import_file("y", source, client=r)
        assert "\n" not in str(caught.value)
    assert set(r.scan_iter()) == before


@pytest.mark.parametrize("change", [-1, 1, 2**63])
@pytest.mark.parametrize("shard", [0, 2])
def test_a_table_of_another_length_is_refused(r, tmp_path, shard, change):
    """Sums that are right say nothing of that."""
    path = tmp_path / "file"
    made = filled(r, "forgotten")
    made.export_file(path)
    data = bytearray(path.read_bytes())
    lengths = [22 * len(table) for table in tables(made, r)]
    start = file_format.Images.of(made._descriptor).end + sum(lengths[:shard])
    count = int.from_bytes(data[start : start + 8], "big")
    assert count == lengths[shard] // 22 - 1
    data[start : start + 8] = (count + change).to_bytes(8, "big")
    images = file_format.Images.of(made._descriptor)._replace(forgotten=110)
    path.write_bytes(with_sums(data, images.end))
    before = set(r.scan_iter())
    for source in (path, Pipe(path.read_bytes())):
        with pytest.raises(ConfigurationError, match="is damaged") as caught:
            BloomFilter.import_file("y", source, client=r)
        assert "\n" not in str(caught.value)
    assert set(r.scan_iter()) == before


@pytest.mark.parametrize(
    "kind", ["forgotten", "grown, forgotten", "grown", "window, forgotten", "window"]
)
@pytest.mark.parametrize("way", ["file", "copy_to"])
def test_what_is_forgotten_at_any_step_of_a_copy(
    r, elsewhere, tmp_path, monkeypatch, small_parts, way, kind
):
    """What was there all the time is in the copy; what was forgotten before is not."""
    # One with a window has more bytes.
    monkeypatch.setattr(transfer, "BYTES_PER_TRIP", 20_001 if "window" in kind else 3_001)
    filled(r, kind, shards=2)
    whole = {key: r.dump(key) for key in r.scan_iter()}
    again, gone, kept = ITEMS[:30], ITEMS[30:60], ITEMS[60:]
    number, seen = 0, set()
    while True:
        r.flushall()
        elsewhere.flushall()
        for key, value in whole.items():
            r.restore(key, 0, value)
        writer = BloomFilter.open("x", client=r)

        def forget(writer=writer):
            assert writer.discard_many([*again, *gone]) == [True] * 60
            assert writer.add_many(again) == [True] * 30

        stepped = Stepped.before(-1, forget)
        made = stepped.open("x", client=r)
        stepped.done, stepped.at = 0, number
        copied = WAYS[way](made, elsewhere, tmp_path / "file")
        is_over = stepped.done <= number
        assert copied.exists_many(kept) == [True] * len(kept), number
        assert copied.exists_many(again) == [True] * len(again), number
        assert not any(copied.exists_many([*FORGOTTEN, *ABSENT])), number
        there = copied.exists_many(gone)
        seen.add(sum(there))
        assert copied.discard_many(gone) == there
        assert not any(copied.exists_many(gone))
        assert copied.add_many(gone * 2) == [True] * 30 + [False] * 30
        if is_over:
            break
        number += 1
    print(f"{number} steps; of those forgotten meanwhile the copies had {sorted(seen)}")
    assert number > 5
    assert {0, 30} <= seen


def test_a_filter_is_exported_while_another_object_finds_it_full(r, tmp_path):
    """Objects that are attached learn of slices each for itself; a file has those of the server."""
    early = BloomFilter("x", error_rate=1e-9, shards=3, client=r, **KINDS["grown"])
    filled(r)
    assert all(shard.chain.count == 1 for shard in early._state.view.shards)
    early.export_file(tmp_path / "file")
    with contextlib.closing(BloomFilter.import_file("y", tmp_path / "file", client=r)) as copied:
        assert copied.exists_many([*ITEMS, *ABSENT]) == [True] * 600 + [False] * 600


@pytest.mark.parametrize("way", ["copy", "file", "copy_to"])
def test_what_the_server_has_no_memory_for_is_refused_before_it_begins(tmp_path, way):
    """It is as long as all slices that there are, and not as the first."""
    with (
        PrivateServer(config={"maxmemory-policy": "noeviction"}) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        made = BloomFilter("x", 20_000, 1e-9, client=client, on_full="grow", shards=2)
        for start in range(0, 150_000, 5_000):
            made.update(f"item {number}" for number in range(start, start + 5_000))
        assert made.info().slices == 3
        size = sum(map(len, strings(made, client)))
        # The first slice would fit five times.
        client.config_set("maxmemory", client.info("memory")["used_memory"] + size // 2)
        with pytest.raises(ConfigurationError, match="of memory and its server has"):
            WAYS[way](made, client, tmp_path / "file")
        assert list_filters(client=client) == ["x"]
        assert not client.keys("*y*")
