"""Filters to files and back, and to other servers: whole or not there, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import signal
import threading
from functools import partial

import numpy as np
import pytest
import redis
from processes import FORKS
from proxy import HANDSHAKE, Proxy
from servers import wait_until
from stepped import Crash, Stepped, crash

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    BloomlockError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
    MemoryBloomFilter,
    delete_filter,
    list_filters,
)
from bloomlock.filters import file_format, files, transfer
from bloomlock.server import PrivateServer

SECRET = b"a secret of more than 16 bytes"
SHAPES = [
    {},
    {"shards": 3},
    {"layout": "blocked"},
    {"layout": "blocked", "shards": 4},
    {"seeds": (1, 2, 3)},
    {"num_hashes": 24, "shards": 2},
    {"key": True},
    {"key": SECRET, "layout": "blocked", "shards": 2},
]
WINDOW = {"window": 86_400, "shards": 2}
GROWN = {"on_full": "grow", "capacity": 50, "shards": 3}
FORGOT = {"shards": 2, "forgotten": 40}
"""Items were forgotten, and workers forget some of what they add."""
ITEMS = [f"item {number}" for number in range(700)]


def filled(client, name="x", shape=None, items=ITEMS):
    options = {"capacity": 20_000, "client": client} | (shape or {})
    gone = [f"gone {number}" for number in range(options.pop("forgotten", 0))]
    made = BloomFilter(name, **options, error_rate=1e-9)
    if gone:
        made.update(gone)
        assert all(made.discard_many(gone))
    for start in range(0, len(items), 50):
        made.update(items[start : start + 50])
    return made


def opened(client, name="x", **options):
    return BloomFilter.open(name, client=client, **options)


def same_bits(one, other):
    return all(map(np.array_equal, one.to_memory().images(), other.to_memory().images()))


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of some thousand bytes, not of a divisor of anything."""
    monkeypatch.setattr(transfer, "BYTES_PER_TRIP", 10_007)
    monkeypatch.setattr(files, "PART_BYTES", 7_001)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "exported"


# -- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("small_parts")
def test_what_is_exported_is_imported(r, path, shape):
    key = shape.get("key") if shape.get("key") is not True else None
    made = filled(r, shape=shape)
    moved = []
    made.export_file(path, progress=lambda *parts: moved.append(parts))
    size = sum(image.nbytes for image in made.to_memory().images())
    assert moved[-1] == (size, size)
    assert [done for done, _ in moved] == sorted({done for done, _ in moved})
    assert [entry.name for entry in path.parent.iterdir()] == ["exported"]
    again = BloomFilter.import_file("again", path, client=r, key=key)
    assert again.generation != made.generation
    assert again.exists_many([*ITEMS, "no"]) == [True] * 700 + [False]
    assert same_bits(made, again)
    assert again.add("new")
    loaded = MemoryBloomFilter.load(path, key=key, verify=True)
    assert loaded.exists_many([*ITEMS, "no"]) == [True] * 700 + [False]
    made.update(loaded)
    with path.open("rb") as file:
        assert same_bits(made, BloomFilter.import_file("third", file, client=r, key=key))
    assert not r.keys("*:prepared*")
    assert all(r.ttl(name) == -1 for name in r.scan_iter())
    if key is not None:
        assert SECRET not in path.read_bytes()
        with pytest.raises(FilterMismatchError, match="with another key"):
            BloomFilter.import_file("fourth", path, client=r)
        assert "fourth" not in list_filters(client=r)


@pytest.mark.usefixtures("small_parts")
def test_asyncio_does_the_same(r, valkey, path):
    filled(r, shape={"shards": 3})

    async def run():
        async with await AsyncBloomFilter.open("x", client=valkey) as made:
            await made.export_file(path)
        again = await AsyncBloomFilter.import_file("again", path, client=valkey)
        async with again, await again.copy_to(valkey, "third") as third:
            return await third.exists_many([*ITEMS, "no"])

    assert asyncio.run(run()) == [True] * 700 + [False]
    assert same_bits(opened(r), opened(r, "third"))


def test_files_of_format_1_and_filters_of_formats_1_and_2_are_imported(r, path, tmp_path):
    for form in ("1", "2"):
        made = filled(r, f"of {form}", {"optimize": "memory", "key": True if form == "2" else None})
        r.hset(f"bloomlock:{{of {form}}}:meta", "format", form)
        made.reattach()
        made.export_file(path)
        again = BloomFilter.import_file(f"again {form}", path, client=r)
        assert again.exists_many([*ITEMS, "no"]) == [True] * 700 + [False]
        assert r.hget(f"bloomlock:{{again {form}}}:meta", "format") == form.encode()
    # What version 0.1 wrote: no sums, and the length without them.
    data = path.read_bytes()
    fields = json.loads(data.split(b"\n")[1])
    end = file_format.Images.of(made._descriptor).end
    lines = b"bloomlock bitmap 1\n%s\n" % json.dumps(fields | {"bytes": end}).encode()
    head = lines + file_format.hashlib.sha256(lines).hexdigest().encode() + b"\n"
    old = tmp_path / "old"
    old.write_bytes(head.ljust(4096, b"\0") + data[4096:end])
    assert "item 1" in MemoryBloomFilter.load(old, verify=True)
    again = BloomFilter.import_file("old", old, client=r)
    assert again.exists_many([*ITEMS, "no"]) == [True] * 700 + [False]
    with pytest.raises(ConfigurationError, match="was cut at byte"):
        BloomFilter.import_file("cut", Pipe(old.read_bytes()[:-1]), client=r)


def test_a_file_changed_in_place_has_no_sums_any_more(r, path):
    filled(r).export_file(path)
    changed = MemoryBloomFilter.load(path, mode="r+")
    assert changed.add("in place")
    changed.flush()
    assert "in place" in BloomFilter.import_file("again", path, client=r)
    assert "in place" in MemoryBloomFilter.load(path, verify=True)
    MemoryBloomFilter.load(path).save(path)
    assert b"changed in place" not in path.read_bytes()
    assert "in place" in BloomFilter.import_file("third", path, client=r)


def test_native_filters_are_refused(path, all_servers):
    url = all_servers.url("valkey", bloom=True)
    with BloomFilter("native", 1000, client=url, strategy="native") as made:
        try:
            for way in (
                lambda: made.export_file(path),
                lambda: made.copy_to(url, "other"),
            ):
                with pytest.raises(ConfigurationError, match="strategy 'native'"):
                    way()
            MemoryBloomFilter(1000).save(path)
            with pytest.raises(ConfigurationError, match="strategy 'native'"):
                BloomFilter.import_file("other", path, client=url, strategy="native")
        finally:
            made.delete()


# -- while others add ----------------------------------------------------------------------------


def add_on(url, number, added, stop, forgets):
    made = BloomFilter.open("x", client=url)
    count = 0
    while not stop.is_set():
        if count % 7:
            made.add(f"{number}:{count}")
            if forgets:
                made.add(f"{number}:{count} forgotten")
                assert made.discard(f"{number}:{count} forgotten")
            count += 1
        else:
            made.update(f"{number}:{count + more}" for more in range(50))
            count += 50
        added[number] = count


def counts_above(added, least):
    """Return how many each has added, if each has more than that."""
    now = list(added)
    return now if min(now) > least else None


@pytest.mark.processes
@pytest.mark.parametrize("shape", [{}, {"layout": "blocked"}, WINDOW, GROWN, FORGOT], ids=str)
def test_what_was_acknowledged_before_an_export_is_in_it(r, valkey, path, shape, monkeypatch):
    monkeypatch.setattr(transfer, "BYTES_PER_TRIP", 50_000)
    made = filled(r, shape={"capacity": 300_000, "shards": 3} | shape, items=["first"])
    added, stop = FORKS.Array("q", 3), FORKS.Event()
    workers = [
        FORKS.Process(target=add_on, args=(valkey, number, added, stop, shape == FORGOT))
        for number in range(3)
    ]
    for worker in workers:
        worker.start()
    try:
        with PrivateServer() as other:
            for turn in range(4):
                before = wait_until(partial(counts_above, added, 60 * turn), 300)
                if turn % 2:
                    copied = made.copy_to(other.url, f"copy {turn}")
                else:
                    made.export_file(path)
                    if shape in (WINDOW, GROWN, FORGOT):
                        copied = BloomFilter.import_file(f"copy {turn}", path, client=other.url)
                    else:
                        copied = MemoryBloomFilter.load(path, verify=True)
                for number, count in enumerate(before):
                    items = [f"{number}:{one}" for one in range(count)]
                    there = copied.exists_many(items)
                    assert all(there), f"{items[there.index(False)]} of {before} is not there"
                    assert not any(copied.exists_many(f"{item} forgotten" for item in items))
                assert not any(copied.exists_many(f"never {one}" for one in range(1000)))
    finally:
        stop.set()
        for worker in workers:
            worker.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    print(f"{sum(added)} items were added meanwhile")


@pytest.mark.parametrize("loss", ["clear", "delete", "flush", "evict"])
@pytest.mark.usefixtures("small_parts")
def test_a_filter_that_goes_while_it_is_exported_leaves_no_file(r, path, loss):
    made = filled(r, shape={"shards": 3})
    path.write_bytes(b"what was there before")
    ways = {
        "clear": lambda: opened(r).clear(),
        "delete": lambda: opened(r).delete(),
        "flush": r.flushall,
        "evict": lambda: r.delete(transfer_key(made, 2)),
    }
    calls = []

    def go(*_count):
        calls.append(1)
        if len(calls) == 5:
            ways[loss]()

    with pytest.raises(FilterLostError, match="during the export"):
        made.export_file(path, progress=go)
    assert path.read_bytes() == b"what was there before"
    assert [entry.name for entry in path.parent.iterdir()] == ["exported"]


def transfer_key(made, shard):
    return made._state.view.shards[shard].key


# -- files that are not whole --------------------------------------------------------------------


class Pipe(io.BytesIO):
    """A file that cannot be sought, and gives what it has in pieces."""

    def seekable(self):
        return False

    def read(self, size=-1):
        return super().read(min(size, 5_000) if size > 0 else size)


@pytest.mark.parametrize(
    "shape", [{"shards": 3}, {"layout": "blocked"}, WINDOW, GROWN, FORGOT], ids=str
)
@pytest.mark.usefixtures("small_parts")
def test_a_file_that_was_cut_or_changed_anywhere_is_refused(r, path, shape, seed):
    rng = random.Random(seed)
    filled(r, shape=shape).export_file(path)
    whole = path.read_bytes()
    keep = {key: r.dump(key) for key in r.scan_iter()}
    places = [0, 20, 200, 4095, 4096, len(whole) - 1, len(whole) - 33]
    places += [rng.randrange(len(whole)) for _ in range(40)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        for damaged in (whole[:place], bytes(flipped), whole + whole[:1]):
            path.write_bytes(damaged)
            for source in (path, Pipe(damaged)):
                with pytest.raises(BloomlockError) as caught:
                    BloomFilter.import_file("y", source, client=r)
                message = str(caught.value)
                assert isinstance(caught.value, ConfigurationError), message
                assert "\n" not in message
                if damaged == flipped and 4096 <= place < len(whole) - 3000:
                    first, last = range_of(message)
                    assert first <= place <= last, message
    assert {key: r.dump(key) for key in r.scan_iter()} == keep
    path.write_bytes(whole)
    assert BloomFilter.import_file("y", Pipe(whole), client=r).exists_many(ITEMS) == [True] * 700


def range_of(message):
    numbers = [int(word) for word in message.replace(",", " ").split() if word.isdigit()]
    return (numbers[0], numbers[1]) if "the bytes" in message else (0, 10**12)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no file of a filter"),
        (b"PK\x03\x04" + bytes(9000), "no file of a filter"),
        (b"bloomlock bitmap 5\n{}\n" + bytes(9000), "upgrade bloomlock"),
        (b"bloomlock bitmap 4\n{}\n" + bytes(9000), "its header has another checksum"),
        (b"bloomlock bitmap 2\n{}\n" + bytes(9000), "its header has another checksum"),
    ],
)
def test_a_foreign_or_newer_file_is_refused(r, path, data, said):
    path.write_bytes(data)
    for source in (path, Pipe(data)):
        with pytest.raises(ConfigurationError, match=said):
            BloomFilter.import_file("y", source, client=r)
    assert not r.keys()


def test_an_import_takes_the_place_of_a_filter_only_if_asked(r, path):
    filled(r, items=["imported"]).export_file(path)
    there = filled(r, "y", {"shards": 5}, ["there"])
    with pytest.raises(ConfigurationError, match="'y' is taken by another filter"):
        BloomFilter.import_file("y", path, client=r)
    assert there.exists("there")
    made = BloomFilter.import_file("y", path, client=r, replace=True)
    assert made.exists_many(["imported", "there"]) == [True, False]
    with pytest.raises(FilterLostError):
        there.exists("there")
    assert len(r.keys("*y*")) == 2, "shards of the filter that was replaced are left"
    assert made.delete()
    assert not r.keys("*y*")
    for name, kind in (("bits", "rpush"), ("meta", "set")):
        getattr(r, kind)(f"bloomlock:{{z}}:{name}", "something else")
        with pytest.raises(FilterMismatchError, match="no filter"):
            BloomFilter.import_file("z", path, client=r, replace=True)
        assert len(r.keys("*z*")) == 1
        r.delete(f"bloomlock:{{z}}:{name}")


def test_an_import_that_the_server_has_no_memory_for_is_refused(r, path):
    filled(r).export_file(path)
    with (
        PrivateServer(config={"maxmemory": "1mb"}) as server,
        redis.Redis.from_url(server.url) as c,
    ):
        with pytest.raises(ConfigurationError, match="maxmemory"):
            BloomFilter.import_file("y", path, client=c)
        assert not c.keys()


# -- crashes -------------------------------------------------------------------------------------


def test_a_crash_at_any_moment_exposes_no_part_and_a_retry_goes_on(r, path):
    """Each request of an import, with and without a filter in its place, is the last one once."""
    plain = ((1, None), (3, None), (1, 4), (3, 5), (3, 3))
    kinds = ((WINDOW, 3), (GROWN, None), (FORGOT, None), (FORGOT, 3))
    for shape, old in [*(({"shards": n}, old) for n, old in plain), *kinds]:
        shards = shape["shards"]
        source = filled(r, "source", shape)
        source.export_file(path)
        source.delete()
        number = 0
        while True:
            r.flushall()
            if old:
                filled(r, "y", {"shards": old}, ["old"])
            kind = Stepped.before(number, crash)
            kind.act = staticmethod(lambda kind=kind: kill(kind))
            try:
                kind.import_file("y", path, client=r, replace=old is not None)
            except Crash:
                crashed = True
            else:
                crashed = False
            found = state_of(r)
            if not crashed:
                assert found == "new"
                break
            assert found in ({"old", "new"} if old else {"none", "refused", "new"}), number
            if found != "new" or old:
                made = BloomFilter.import_file("y", path, client=r, replace=old is not None)
                assert made.exists_many([*ITEMS, "old"]) == [True] * 700 + [False]
            left = [key for key in r.scan_iter() if r.ttl(key) == -1]
            assert len(left) == shards + 1 + (shards if "forgotten" in shape else 0), left
            assert all(b":prepared:" in key for key in set(r.scan_iter()) - set(left))
            number += 1
        assert number > 8


def kill(kind):
    """Let this request and all that follow fail, as of a process that is gone."""
    kind.at = kind.done
    raise Crash


def state_of(client):
    try:
        made = opened(client, "y")
    except FilterNotFoundError:
        return "none"
    except FilterMismatchError as error:
        assert "import" in str(error)
        return "refused"
    there = made.exists_many([*ITEMS, "old"])
    if there == [True] * 700 + [False]:
        return "new"
    assert there == [False] * 700 + [True], "a part of the filter"
    return "old"


def import_slowly(url, path, replace, part):
    count = 0

    def die(*_size):
        nonlocal count
        count += 1
        if count == part:
            os.kill(os.getpid(), signal.SIGKILL)

    files.PART_BYTES = 7_001
    BloomFilter.import_file("y", path, client=url, replace=replace, progress=die)


@pytest.mark.processes
@pytest.mark.parametrize("replace", [False, True])
def test_a_killed_import_is_made_good_by_the_next(r, valkey, path, replace, seed):
    filled(r, "source", {"shards": 3}).export_file(path)
    if replace:
        filled(r, "y", {"shards": 2}, ["old"])
    part = random.Random(seed).randrange(1, 10)
    worker = FORKS.Process(target=import_slowly, args=(valkey, path, replace, part))
    worker.start()
    worker.join(300)
    assert worker.exitcode == -signal.SIGKILL
    assert state_of(r) == ("old" if replace else "refused")
    if not replace:
        # A client that creates the filter does not take its name, either.
        with pytest.raises(FilterMismatchError, match="import"):
            BloomFilter("y", 20_000, 1e-9, client=r, on_lost="recreate")
    BloomFilter.import_file("y", path, client=r, replace=replace)
    assert state_of(r) == "new"
    opened(r, "y").delete()
    opened(r, "source").delete()
    assert all(r.ttl(key) > 0 for key in r.scan_iter())


def test_an_import_goes_on_after_a_lost_reply(r, valkey, path):
    filled(r, "source", {"shards": 3}).export_file(path)
    filled(r, "old", {"shards": 4}, ["old"]).export_file(path.with_name("old"))
    for replace in (False, True):
        number = 0
        with Proxy(valkey) as proxy:
            while True:
                r.flushall()
                if replace:
                    BloomFilter.import_file("y", path.with_name("old"), client=r)
                cut = Once(number)
                proxy.judge = cut
                with proxy.client() as client:
                    BloomFilter.import_file("y", path, client=client, replace=replace)
                assert state_of(r) == "new"
                assert not r.keys("*:prepared*")
                if not cut.done:
                    break
                number += 2
        assert number > 20


class Once:
    """Cuts a connection once, after a command was carried out."""

    def __init__(self, number):
        self._left = number
        self.done = False

    def __call__(self, name, _number):
        self._left -= name not in HANDSHAKE
        if self._left == -1 and not self.done:
            self.done = True
            return "after"
        return "pass"


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.usefixtures("small_parts")
def test_what_the_server_loses_of_an_import_is_noticed(r, path, replace, late):
    filled(r, "source", {"shards": 3}).export_file(path)
    if replace:
        filled(r, "y", {"shards": 2}, ["old"])
    parts = []

    def lose(*sizes):
        parts.append(sizes)
        if len(parts) == (12 if late else 2):
            r.delete(min(r.keys("*:prepared:*")))

    with pytest.raises(FilterLostError, match="is gone from the server"):
        BloomFilter.import_file("y", path, client=r, replace=replace, progress=lose)
    assert state_of(r) == ("old" if replace else "none")
    assert not r.keys("*:prepared*")


# -- two at once ---------------------------------------------------------------------------------

OTHERS = {
    "import": lambda c, path: BloomFilter.import_file("y", path.with_name("b"), client=c),
    "replace": lambda c, path: BloomFilter.import_file(
        "y", path.with_name("b"), client=c, replace=True
    ),
    "create": lambda c, _: BloomFilter("y", 20_000, 1e-9, client=c, shards=2),
    "delete": lambda c, _: BloomFilter.open("y", client=c).delete(),
    "clear": lambda c, _: BloomFilter.open("y", client=c).clear(),
    "copy": lambda c, _: BloomFilter.open("b", client=c).copy("y"),
    "look": lambda c, _: BloomFilter.open("y", client=c).count(),
}


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_what_another_client_does_at_any_moment_mixes_no_filters(r, path, other, replace):
    """Between any two requests of an import: the outcome is one of both, whole."""
    filled(r, "a", {"shards": 2}).export_file(path)
    theirs = [f"theirs {number}" for number in range(700)]
    filled(r, "b", {"shards": 2}, theirs).export_file(path.with_name("b"))
    number = 0
    while True:
        r.flushall()
        filled(r, "b", {"shards": 2}, theirs)
        if replace:
            filled(r, "y", {"shards": 3}, ["old"])
        acted = []

        def act(acted=acted):
            acted.append(None)
            try:
                OTHERS[other](r, path)
            except BloomlockError as error:
                acted[0] = error

        kind = Stepped.before(number, act)
        failed = None
        try:
            kind.import_file("y", path, client=r, replace=replace)
        except BloomlockError as error:
            failed = error
        try:
            made = opened(r, "y")
        except FilterNotFoundError:
            assert failed or (acted and other == "delete")
        else:
            there = made.exists_many([*ITEMS, *theirs, "old"])
            mine, other_ones, old = there[:700], there[700:-1], there[-1]
            contents = (all(mine), all(other_ones), old, any(there))
            assert contents in {
                (True, False, False, True), (False, True, False, True),
                (False, False, True, True), (False, False, False, False),
            }, (number, contents)  # fmt: skip
            assert sum(map(bool, mine)) in {0, 700}
            assert sum(map(bool, other_ones)) in {0, 700}
            if failed is None and other in {"look", "create"}:
                assert all(mine)
            assert made.add("goes on")
        assert not [key for key in r.keys("*:prepared*") if r.ttl(key) == -1]
        if not acted:
            assert failed is None
            break
        number += 1
    assert number > 10


def test_an_import_that_lost_the_name_changes_nothing_of_who_has_it(r, path):
    """The name is deleted and taken by another client, between any two requests."""
    filled(r, "a", {"shards": 2}).export_file(path)
    number, outcomes = 0, set()
    while True:
        r.flushall()
        acted = []

        def act(acted=acted):
            acted.append(delete_filter("y", client=r))
            filled(r, "y", {"shards": 2}, ["theirs"])

        try:
            Stepped.before(number, act).import_file("y", path, client=r)
        except BloomlockError as error:
            outcomes.add(type(error))
        if not acted:
            break
        assert "theirs" in opened(r, "y"), number
        assert not [key for key in r.keys("*:prepared*") if r.ttl(key) == -1]
        number += 1
    assert outcomes == {ConfigurationError, FilterLostError}


def test_a_helper_that_sleeps_changes_nothing_of_a_later_generation(r, path):
    filled(r, "five", {"shards": 5}, ["five"]).export_file(path.with_name("five"))
    filled(r, "three", {"shards": 3}, ["three"]).export_file(path)
    placing = half_placed(r, path)
    number = 0
    while True:
        r.flushall()
        for key, (value, lifetime_ms) in placing.items():
            r.restore(key, lifetime_ms, value)
        acted = []

        def act(acted=acted):
            acted.append(None)
            five = path.with_name("five")
            BloomFilter.import_file("y", five, client=r, replace=True).add("later")

        helper = Stepped.before(number, act)
        with contextlib.suppress(BloomlockError):
            helper.open("y", client=r)
        if not acted:
            assert opened(r, "y").exists("three")
            break
        assert opened(r, "y").exists_many(["five", "later"]) == [True, True], number
        number += 1
    assert number > 8


def half_placed(client, path):
    """Return what is there after a crash, when the first shard alone is in its place."""
    for number in range(100):
        client.flushall()
        filled(client, "y", {"shards": 5}, ["old"])
        kind = Stepped.before(number, crash)
        kind.act = staticmethod(lambda kind=kind: kill(kind))
        with contextlib.suppress(Crash):
            kind.import_file("y", path, client=client, replace=True)
        if client.hget("bloomlock:{y}:meta", "state") == b"placing":
            return {key: (client.dump(key), max(0, client.pttl(key))) for key in client.scan_iter()}
    raise AssertionError("it is placed at once")


# -- to another server ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def elsewhere():
    with PrivateServer() as server:
        yield server.url


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("small_parts")
def test_a_filter_is_copied_to_another_server(r, elsewhere, shape):
    with redis.Redis.from_url(elsewhere) as other:
        other.flushall()
        made = filled(r, shape=shape)
        moved = []
        with made.copy_to(other, progress=lambda *parts: moved.append(parts)) as copied:
            assert copied.name == "x"
            assert same_bits(made, copied)
            assert copied.generation != made.generation
            size = 2 * sum(image.nbytes for image in made.to_memory().images())
            assert moved[-1] == (size, size)
            with pytest.raises(ConfigurationError, match="is taken by another filter"):
                made.copy_to(other)
            made.add("more")
            with made.copy_to(other, replace=True) as again:
                assert "more" in again
            with pytest.raises(ConfigurationError, match="itself"):
                made.copy_to(r, replace=True)
        assert all(other.ttl(key) == -1 for key in other.scan_iter())


def change_a_bit(client):
    key = min(key for key in client.keys("*:prepared:*") if not key.endswith(b":forgotten"))
    client.setbit(key, 70_001, 1 - client.getbit(key, 70_001))


def prepared_table(client):
    """Return the key of a table of versions that is prepared, and one of its items."""
    table = min(client.keys("*:prepared:*:forgotten"))
    return table, min(field for field in client.hkeys(table) if field != b"count")


def change_a_version(client):
    client.hset(*prepared_table(client), "other!")


def delete_a_version(client):
    client.hdel(*prepared_table(client))


def change_the_count(client):
    client.hincrby(prepared_table(client)[0], "count", 1)


def change_the_count_to_a_word(client):
    client.hset(prepared_table(client)[0], "count", "other!")


def delete_the_count(client):
    client.hdel(prepared_table(client)[0], "count")


@pytest.mark.parametrize(
    "change",
    [
        change_a_bit,
        change_a_version,
        delete_a_version,
        change_the_count,
        change_the_count_to_a_word,
        delete_the_count,
    ],
)
@pytest.mark.usefixtures("small_parts")
def test_a_copy_that_is_not_what_was_written_is_refused(r, elsewhere, change):
    made = filled(r, shape=FORGOT)
    with redis.Redis.from_url(elsewhere) as other:
        other.flushall()

        def spoil(done, whole):
            if 2 * done == whole:
                change(other)

        with pytest.raises(BloomlockError, match="are not what was written"):
            made.copy_to(other, progress=spoil)
        assert not other.keys()


def test_threads_add_while_a_filter_is_copied(r, elsewhere, monkeypatch):
    monkeypatch.setattr(transfer, "BYTES_PER_TRIP", 5_000)
    made = filled(r)
    stop, added = threading.Event(), [0]

    def add():
        while not stop.is_set():
            made.add(f"meanwhile {added[0]}")
            added[0] += 1

    thread = threading.Thread(target=add)
    thread.start()
    try:
        while added[0] < 50:
            pass
        before = added[0]
        with redis.Redis.from_url(elsewhere) as other:
            other.flushall()
            copied = made.copy_to(other)
    finally:
        stop.set()
        thread.join(60)
    with copied:
        assert all(copied.exists_many(f"meanwhile {number}" for number in range(before)))


BAD_INPUT = {
    "replace": (lambda made, path: made.import_file("", path), "name must be"),
    "client": (lambda made, _: made.copy_to(5), "client must be"),
    "name": (lambda made, _: made.copy_to(None, ""), "name must be"),
}


@pytest.mark.parametrize("wrong", BAD_INPUT)
def test_bad_input(r, path, wrong):
    made = filled(r)
    act, said = BAD_INPUT[wrong]
    with pytest.raises(ConfigurationError, match=said):
        act(made, path)
    assert list_filters(client=r) == ["x"]
