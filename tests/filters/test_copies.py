"""Copies of filters, by file and between servers: the same, whole, and of what was acknowledged."""

from __future__ import annotations

import pytest
import redis
from exports import ABSENT, GONE, IN_MEMORY, ITEMS, KINDS, SECRET, WAYS, filled, key_of, small_parts
from private import PrivateServer
from stepped import Stepped
from window_clocks import LAST, OVER, SLICE, Clocks

from bloomlock import BloomFilter, Growth, MemoryBloomFilter
from bloomlock.catalog import list_filters
from bloomlock.errors import ConfigurationError, FilterLostError, FilterMismatchError
from bloomlock.filters import tombstones


@pytest.fixture
def elsewhere(second):
    with redis.Redis.from_url(second) as client:
        client.flushall()
        yield client


# -- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_the_same_and_goes_on(r, elsewhere, path, monkeypatch, way, kind):
    small_parts(monkeypatch)
    target = r if way == "copy" else elsewhere
    made = filled(r, kind)
    copied = WAYS[way](made, target, path, **key_of(kind))
    assert copied.generation != made.generation
    assert copied.exists_many([*ITEMS, *ABSENT, *GONE]) == [True] * 600 + [False] * 640
    mine, theirs = made.info(), copied.info()
    for name in ("capacity", "slices", "num_bits", "num_hashes", "shards", "discarded", "window"):
        assert getattr(mine, name, None) == getattr(theirs, name, None), name
    assert (mine.estimated_count, mine.bits_set) == (theirs.estimated_count, theirs.bits_set)
    more = [f"more {number}" for number in range(300)]
    for start in range(0, 300, 50):
        some = more[start : start + 50]
        assert copied.add_many(some * 2) == [True] * 50 + [False] * 50
    assert copied.exists_many([*ITEMS, *more]) == [True] * 900
    assert not any(made.exists_many(more))
    assert not [key for client in (r, target) for key in client.scan_iter("*prepared*")]
    assert all(client.ttl(key) == -1 for client in (r, target) for key in client.scan_iter())


def test_progress_is_told_and_the_file_is_whole_or_not_there(r, elsewhere, path, monkeypatch):
    small_parts(monkeypatch)
    made = filled(r, "keyed")
    for act in (
        lambda told: made.export_file(path, progress=told),
        lambda told: BloomFilter.import_file("y", path, client=r, key=SECRET, progress=told),
        lambda told: made.copy_to(elsewhere, progress=told),
    ):
        moved: list[tuple[int, int]] = []
        act(lambda *parts, moved=moved: moved.append(parts))
        assert moved[-1][0] == moved[-1][1] > 0
        assert [done for done, _ in moved] == sorted({done for done, _ in moved})
        assert len(moved) > 3
    assert [entry.name for entry in path.parent.iterdir()] == ["exported"]
    assert SECRET not in path.read_bytes()
    with pytest.raises(FilterMismatchError, match="with another key"):
        BloomFilter.import_file("z", path, client=r)
    with pytest.raises(ConfigurationError, match="itself"):
        made.copy_to(r, replace=True)
    assert list_filters(client=r) == ["x", "y"]


@pytest.mark.parametrize("kind", KINDS)
def test_which_files_can_be_loaded_into_the_process(r, path, kind):
    made = filled(r, kind)
    made.export_file(path)
    if kind in IN_MEMORY:
        loaded = MemoryBloomFilter.load(path, **key_of(kind))
        assert loaded.exists_many([*ITEMS, *ABSENT]) == [True] * 600 + [False] * 600
        loaded.add("by the process")
        made.update(loaded)
        assert "by the process" in made
        return
    with pytest.raises(ConfigurationError, match="which is in a server only; use"):
        MemoryBloomFilter.load(path)


def test_what_the_server_has_no_memory_for_is_refused_before_it_begins():
    """What has grown takes all its slices, and not the first alone."""
    with (
        PrivateServer(config={"maxmemory-policy": "noeviction"}) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        made = BloomFilter("x", 20_000, 1e-9, client=client, on_full=Growth(2))
        made.update(map(str, range(20_000)))
        first = made.info().memory_bytes
        made.update(map(str, range(20_000, 23_000)))
        assert made.info().memory_bytes > 2.5 * first
        # The first slice would fit.
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 2 * first)
        with pytest.raises(ConfigurationError, match="of memory and its server has"):
            made.copy("y")
        client.config_set("maxmemory", 0)
        assert not client.keys("*y*")


def test_where_scripts_may_not_run(r, restricted):
    filled(r, "discards")
    BloomFilter.open("x", client=restricted("-@scripting")).copy("y")
    assert BloomFilter.open("y", client=r).exists_many(ITEMS) == [True] * 600


# -- while others are at work --------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["clear", "delete", "flush", "evict"])
def test_a_filter_that_goes_while_it_is_exported_leaves_no_file(r, path, monkeypatch, loss):
    small_parts(monkeypatch)
    made = filled(r)
    path.write_bytes(b"what was there before")
    ways = {
        "clear": lambda: BloomFilter.open("x", client=r).clear(),
        "delete": lambda: BloomFilter.open("x", client=r).delete(),
        "flush": r.flushall,
        "evict": lambda: r.delete(max(r.keys("*:bits"))),
    }
    calls = []

    def go(*_count):
        calls.append(1)
        if len(calls) == 5:
            ways[loss]()

    with pytest.raises(FilterLostError, match="lost during export_file"):
        made.export_file(path, progress=go)
    assert path.read_bytes() == b"what was there before"
    assert [entry.name for entry in path.parent.iterdir()] == ["exported"]


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("copy", "plain"),
        ("copy", "grown"),
        ("file", "window, discards"),
        ("copy_to", "grown, discards"),
    ],
)
def test_what_others_do_at_any_step_of_a_copy(
    r, elsewhere, path, monkeypatch, way, kind, pytestconfig
):
    """What was there all the time is in the copy, and what was discarded before is not.

    The other client adds so much that a shard grows where it can, and discards. Without --long it
    comes at each second step.
    """
    size = 1 if pytestconfig.getoption("--long") else 2
    small_parts(monkeypatch, {"grown": 4_001}.get(kind, 20_001))
    monkeypatch.setattr(tombstones, "IDENTITIES_PER_COMMAND", 20)
    target = r if way == "copy" else elsewhere
    # Up to where a few more let it grow.
    filled(r, kind, items=ITEMS[:230])
    whole = {key: r.dump(key) for key in r.scan_iter()}
    again, gone, kept = ITEMS[:20], ITEMS[20:40], ITEMS[40:230]
    late = [f"late {number}" for number in range(60)]
    number, is_over, seen = 0, False, set()
    while not is_over:
        r.flushall()
        elsewhere.flushall()
        for key, value in whole.items():
            r.restore(key, 0, value)
        other = BloomFilter.open("x", client=r)

        def act(other=other):
            other.update(late)
            assert other.discard_many([*again, *gone]) == [True] * 40
            assert other.add_many(again) == [True] * 20

        made = Stepped.opened("x", number, act, r)
        copied = WAYS[way](made, target, path)
        is_over = made.done <= number
        assert copied.exists_many(kept) == [True] * 190, number
        assert not any(copied.exists_many([*GONE, *ABSENT[:100]])), number
        there = copied.exists_many(gone)
        seen.add(sum(there))
        # It goes on from there, as a filter of its own.
        assert copied.discard_many(gone) == there
        copied.update(again)
        assert copied.exists_many(again) == [True] * 20
        assert copied.add_many(gone * 2) == [True] * 20 + [False] * 20
        copied.update(late)
        assert all(copied.exists_many(late))
        number += size
    assert number > 4
    assert {0, 20} <= seen, "steps before the reading and after it"


def test_slices_that_are_appended_during_a_copy_are_no_part_of_it(r, monkeypatch):
    """They would not be empty when the copy turns to them."""
    small_parts(monkeypatch)
    made = BloomFilter("x", 50, 1e-9, client=r, shards=2, on_full="grow")
    locate = made._state.view.hasher.locate
    both = [[str(n) for n in range(900) if locate(b"%d" % n)[0] == shard] for shard in (0, 1)]

    def grow(shard):
        for start in range(0, 300, 20):
            made.update(both[shard][start : start + 20])

    def slices(shard):
        return 1 + r.get(f"bloomlock:{{x{shard}}}:bits")[15]

    def tell(*_done):
        if slices("/1") == 1:
            grow(1)

    grow(0)
    assert slices("") > slices("/1") == 1
    made.copy("y", progress=tell)
    assert slices("/1") > 1
    bits = r.get("bloomlock:{y/1}:bits")
    assert not any(bits[made._state.view.descriptor.slices[0].end_byte :])
    assert BloomFilter.open("y", client=r).exists_many(both[0][:300]) == [True] * 300


# -- windows and time ----------------------------------------------------------------------------


@pytest.fixture
def clocks(stopped):
    return Clocks(*stopped())


@pytest.mark.parametrize("way", ["copy", "file"])
@pytest.mark.parametrize("turn_at", [SLICE, 3 * SLICE, 9 * SLICE])
def test_a_slice_that_begins_in_the_middle_of_a_copy(clocks, path, monkeypatch, way, turn_at):
    """The copy forgets when its source does."""
    small_parts(monkeypatch)
    writer = filled(clocks.client, "window")

    def turn():
        clocks.set(turn_at)
        writer.update(f"late {one}" for one in range(600))

    for number in (4, 9):
        clocks.client.flushall()
        clocks.set(0)
        writer = filled(clocks.client, "window")
        made = Stepped.opened("x", number, turn, clocks.client)
        copied = WAYS[way](made, clocks.client, path)
        assert made.done > number + 2
        for end in (LAST, OVER - 1, OVER, turn_at + OVER):
            if end < turn_at:
                continue
            clocks.set(end)
            there = copied.exists_many(ITEMS)
            assert there == [end < OVER] * 600, end
            assert not any(copied.exists_many(ABSENT))
            if end >= turn_at + OVER:
                assert not any(copied.exists_many(f"late {one}" for one in range(600)))
            # What a copy turns to is as it is for its source.
            assert copied.add(f"at {end}") is True
            assert copied.add(f"at {end}") is False
        assert copied.add_many(ITEMS) == [True] * 600
