"""Items that are forgotten: one at a time, exactly, and at no cost to filters that never forget."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
import redis
import redis.asyncio
from near_cache_tools import Clock
from proxy import HANDSHAKE, Proxy
from stepped import Stepped
from strategies import BITMAPS
from turns import Turns

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    BloomlockError,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    MemoryBloomFilter,
    OutcomeUnknownError,
)
from bloomlock.filters import discards
from bloomlock.filters.operation import Operation
from bloomlock.keys import FilterKeys, forgotten_key
from bloomlock.strategies import held
from bloomlock.strategies.growing import GROWING as GROWABLE

TABLE = forgotten_key(FilterKeys("x").bits(0))
GROWING = {"capacity": 20, "on_full": "grow"}
WINDOW = {"capacity": 50_000, "window": 86_400}
JOINING = ("union_update", "intersection_update", "jaccard", "isdisjoint")
KINDS = {"plain": {"capacity": 5000}, "growing": GROWING, "window": WINDOW}
"""By kind how a filter is made; one that grows has grown when it has the items of a test."""

SHAPES = {
    "one shard": {},
    "shards": {"shards": 3},
    "blocked": {"layout": "blocked", "shards": 2},
    "seeds": {"seeds": range(30)},
    "key": {"key": "a secret of many bytes"},
    "growing": GROWING,
    "growing shards": GROWING | {"shards": 3, "key": "a secret of many bytes"},
}
WAYS = [
    (strategy, shape)
    for strategy, shape in itertools.product(BITMAPS, SHAPES)
    if "growing" not in shape or strategy in GROWABLE
]


def routes_of(strategy, shape):
    if "growing" in shape:
        return ("auto", "items")
    return ("auto", "items") if strategy == "lock" else ("auto", "items", "script", "bitmap")


@pytest.mark.parametrize(("strategy", "shape"), WAYS)
def test_a_forgotten_item_is_new_again_and_no_other(r, strategy, shape):
    options = {"client": r, "strategy": strategy, "key": SHAPES[shape].get("key")}
    made = BloomFilter("x", error_rate=1e-9, **({"capacity": 5000} | options | SHAPES[shape]))
    other = BloomFilter.open("x", **options)
    items = [f"item {number}" for number in range(240)]
    gone = items[::3]
    assert made.discard("item 0") is False
    assert not made._state.view.forgotten, "what is not there marks nothing"
    other.update(items)
    assert made.discard(items[0]) is True
    assert made.discard(items[0]) is False
    assert made.discard_many([*gone, gone[1], "not there"]) == [
        False, *[True] * (len(gone) - 1), False, False,
    ]  # fmt: skip
    there = [item not in gone for item in items]
    late = BloomFilter.open("x", **options)
    for one in (made, other, late):
        for route in routes_of(strategy, shape):
            assert one.exists_many(items, route=route) == there
        assert [one.exists(item) for item in items[:9]] == there[:9]
    assert made.info().slices > 1 or "growing" not in shape
    for one, route in zip((made, other, late, made), routes_of(strategy, shape), strict=False):
        some = [gone.pop() for _ in range(15)]
        assert one.add_many([*some, *some], route=route) == [True] * 15 + [False] * 15
        assert other.exists_many(some) == [True] * 15
    assert other.add(gone[0]) is True
    assert late.add(gone[0]) is False
    late.update(gone)
    assert all(made.exists_many(items))
    assert made.remove(items[5]) is None
    with pytest.raises(KeyError, match="item 5"):
        other.remove(items[5])
    assert made.count() == pytest.approx(239, abs=3)
    info = made.info()
    assert info.forgotten == len(items[::3]) + 1
    assert info.memory_bytes > sum(len(r.get(key)) for key in r.keys("*:bits"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("number", range(5))
def test_what_is_forgotten_is_new_though_the_filter_is_cleared_meanwhile(r, kind, shards, number):
    """The table is empty then: it says nothing of what was answered before."""
    other = BloomFilter("x", client=r, error_rate=1e-9, shards=shards, **KINDS[kind])
    stepped = Stepped.before(-1, other.clear)
    made = stepped("x", client=r, on_lost="recreate", error_rate=1e-9, shards=shards, **KINDS[kind])
    items = [f"item {each}" for each in range(20)]
    other.update(items)
    other.discard(items[0])
    assert not made.exists(items[0]), "it has heard that items are forgotten"
    other.discard_many(items[:10])
    stepped.at = stepped.done + number
    fresh = [f"fresh {each}" for each in range(5)]
    new = made.add_many([*items, *fresh])
    assert new[:10] + new[20:] == [True] * 15
    if stepped.done > stepped.at:
        # What was answered before the clear is gone, and new once more.
        there = made.exists_many([*items, *fresh])
        assert made.add_many([*items, *fresh]) == [not one for one in there]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_asyncio_twin(valkey, r, shards, kind):
    async def run():
        client = redis.asyncio.Redis.from_url(valkey)
        options = {"error_rate": 1e-9, "client": client, "shards": shards}
        async with AsyncBloomFilter("x", **options, **KINDS[kind]) as made:
            items = [f"item {number}" for number in range(60)]
            await made.update(items)
            assert await made.discard("item 3") is True
            gone = await asyncio.gather(*(made.discard("item 4") for _ in range(5)))
            assert sorted(gone) == [False] * 4 + [True]
            assert await made.discard_many(["item 5", "item 5"]) == [True, False]
            calls = (made.exists(item) for item in items)
            assert (await asyncio.gather(*calls)) == [not 3 <= n <= 5 for n in range(60)]
            adds = (made.add(item) for item in [*items[:6], *items[:6]])
            new = await asyncio.gather(*adds)
            assert sum(new) == 3
            assert [a or b for a, b in zip(new[:6], new[6:], strict=True)] == [
                False, False, False, True, True, True,
            ]  # fmt: skip
            await made.remove("item 3")
            with pytest.raises(KeyError):
                await made.remove("item 3")
        await client.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("strategy", BITMAPS)
def test_a_filter_that_never_forgot_pays_nothing(valkey, r, strategy):
    turns = Turns()
    with turns.client(valkey) as client:
        made = BloomFilter("x", 5000, client=client, strategy=strategy)
        made.add("a"), made.exists("a"), made.add_many(["a", "b"]), made.exists_many(["a"])
        r.config_resetstat()
        assert turns.of(lambda: made.exists("a")) == 1
        assert turns.of(lambda: made.add("c")) == (3 if strategy == "lock" else 1)
        made.add_many(["a", "b", "c"]), made.exists_many(["a", "b"]), made.update(["d"])
        calls = {name for name in r.info("commandstats") if name.startswith("cmdstat_h")}
        assert not calls - {"cmdstat_hello"}, "no table is read"
        assert r.keys("*forgotten*") == []


@pytest.mark.parametrize(
    ("strategy", "kind"), [*((one, "plain") for one in BITMAPS), ("atomic", "growing")]
)
def test_each_call_stays_one_round_trip(valkey, r, strategy, kind):
    turns = Turns()
    adding = 3 if strategy == "lock" else 1
    with turns.client(valkey) as client:
        made = BloomFilter("x", client=client, strategy=strategy, **KINDS[kind])
        other = BloomFilter.open("x", client=r)
        other.update(map(str, range(100)))
        # With the sources of the scripts.
        made.discard("1"), made.add("warm"), made.exists_many(map(str, range(50)))
        # From here on it has no look at the fill.
        made._state.fill._until_look = 10**9
        assert turns.of(lambda: made.discard("2")) == 1
        assert turns.of(lambda: made.discard("no such item")) == 1
        assert turns.of(lambda: made.exists("2")) == 1
        assert turns.of(lambda: made.exists("3")) == 1
        assert turns.of(lambda: made.add("2")) == adding
        assert turns.of(lambda: made.add("new")) == adding
        assert turns.of(lambda: made.exists_many(map(str, range(50)))) == 1
        other.discard("7")
        assert turns.of(lambda: made.exists("7")) == 2, "forgotten by another client"
        assert turns.of(lambda: made.exists("7")) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_all_shards_say_so_before_the_first_item_is_forgotten(r, kind):
    made = BloomFilter("x", client=r, shards=5, **KINDS[kind])
    keys = [FilterKeys("x").spread(5).bits(number) for number in range(5)]
    made.update(["a", *map(str, range(900))])
    assert made.discard("b") is False
    before = [r.getrange(key, 1, 1) for key in keys]
    assert (b"\1" in before) is (kind == "growing")
    assert made.discard("a") is True
    flagged = [bytes([flags[0] + 2]) for flags in before]
    assert [r.getrange(key, 1, 1) for key in keys] == flagged
    assert len(r.keys("*forgotten")) == 1


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("kind", "scripts"), [("plain", True), ("plain", False), ("growing", True)]
)
def test_clear_delete_and_creation_leave_no_table(r, valkey, shards, kind, scripts):
    rights = [] if scripts else ["-@scripting"]
    r.acl_setuser("mine", enabled=True, nopass=True, reset_keys=True, keys="*", channels="*",
                  commands=["+@all", *rights])  # fmt: skip
    user = redis.Redis.from_url(valkey, username="mine", password="any")  # noqa: S106
    items = [str(number) for number in range(20)]
    made = BloomFilter("x", client=r, shards=shards, **KINDS[kind])
    mine = BloomFilter.open("x", client=user, on_lost="recreate")
    made.update(map(str, range(200)))
    made.discard_many(items)
    assert len(r.keys("*forgotten")) == shards
    mine.clear()
    assert r.keys("*forgotten") == []
    with pytest.raises(FilterLostError):
        made.exists("1")
    made.reattach()
    assert made.add_many(items) == [True] * 20
    assert all(mine.exists_many(items))
    made.discard("1")
    # The bits are lost, the tables are not.
    for key in r.keys("*:bits"):
        r.delete(key)
    assert mine.add("2") is True
    assert r.keys("*forgotten") == []
    assert mine.add("1") is True
    made.reattach()
    made.discard("1")
    assert mine.delete() is True
    assert r.keys("*x*") == []
    user.close()
    r.acl_deluser("mine")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("has_heard", [True, False])
def test_a_copy_has_forgotten_the_same(r, shards, has_heard, kind):
    made = BloomFilter("x", error_rate=1e-9, client=r, shards=shards, **KINDS[kind])
    other = BloomFilter.open("x", client=r)
    items = [str(number) for number in range(3000)]
    made.update(items)
    made.discard_many(items[:2000])
    made.update(items[:10])
    r.hset(forgotten_key(FilterKeys("copied").bits(0)), b"left behind by others", b"1")
    assert len(r.keys("*forgotten")) == shards + 1
    copied = (made if has_heard else other).copy("copied")
    assert copied.exists_many(items) == [True] * 10 + [False] * 1990 + [True] * 1000
    # With a window an item that was forgotten counts until its slice is over.
    left = 3010 if kind == "window" else 1010
    assert copied.count() == pytest.approx(left, abs=max(3, left * 0.02 * (kind == "window")))
    assert copied.discard("5") is True
    assert made.exists("5")
    assert {r.ttl(key) for key in r.scan_iter()} == {-1}
    assert r.keys("*prepared*") == []
    copied.delete()
    assert r.keys("*copied*") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_shards_of_which_one_has_a_forgotten_item(r, kind):
    made = BloomFilter("x", error_rate=1e-9, client=r, shards=5, **KINDS[kind])
    items = [str(number) for number in range(900)]
    made.update(items)
    made.discard("7")
    copied = made.copy("y")
    assert copied.exists_many(items) == [item != "7" for item in items]
    assert copied.discard_many(["7", "8"]) == [False, True]
    assert copied.info().forgotten == 2
    assert made.info().forgotten == 1
    copied.rename("z")
    # With a window an item that was forgotten counts until its slice is over.
    allowed = 20 if kind == "window" else 3
    assert BloomFilter.open("z", client=r).count() == pytest.approx(898, abs=allowed)


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_item_that_was_forgotten_is_lost_to(r, kind):
    """Its claim, a script, a bitmap from the process."""
    made = BloomFilter("x", client=r, **KINDS[kind])
    other = BloomFilter.open("x", client=r, near_cache=100)
    claim = other.claim("late")
    others = [f"other {number}" for number in range(200)]
    made.update(others[:100])
    with made.claim("a"):
        pass
    made.add("late")
    assert made.discard_many(["a", "late"]) == [True, True]
    with other.claim("a") as again:
        assert again.state.name == "NEW"
        assert made.claim("a").state.name == "BUSY"
    assert made.claim("a").state.name == "SEEN"
    assert made.exists("a")
    claim.commit()
    assert made.exists("late"), "a commit goes by the version of its moment"
    held = made.claim("b")
    made.add("b"), made.discard("b"), made.add("b"), other.discard("b")
    held.commit()
    assert other.exists("b")
    made.update(others[100:])
    late = BloomFilter.open("x", client=r)
    made.discard_many(["a", "b"])
    script = (
        "return {add(1) and 1 or 0, exists(2) and 1 or 0, exists(3) and 1 or 0, add(1) and 1 or 0}"
    )
    for one in (late, made):
        assert one.run_script(script, ["a", "b", "late"]) == [1, 0, 1, 0]
        assert other.discard("a") is True
    assert late.exists_many(others) == [True] * 200
    for one in (late, made) if kind == "plain" else ():
        with pytest.raises(ConfigurationError, match="of which items were forgotten"):
            one.to_memory()
        with pytest.raises(ConfigurationError, match="of which items were forgotten"):
            one.update(MemoryBloomFilter(5000))
        assert one.exists("late")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_heard", [True, False])
def test_files_and_copies_elsewhere_have_what_was_forgotten(r, tmp_path, has_heard, kind):
    """Also if the object that writes them has not heard; of a filter that was cleared nothing."""
    made = BloomFilter("x", client=r, **KINDS[kind])
    mine = made if has_heard else BloomFilter.open("x", client=r)
    made.update(["a", "b", *map(str, range(50))])
    made.discard("a")
    mine.export_file(tmp_path / "file")
    for copied in (
        BloomFilter.import_file("y", tmp_path / "file", client=r),
        mine.copy_to(r, "z"),
    ):
        assert copied.exists_many(["a", "b", "1", "c"]) == [False, True, True, False]
        assert copied.info().forgotten == 1
        assert copied.discard("b")
        assert copied.add("a")
    assert made.exists_many(["a", "b"]) == [False, True]
    made.clear()
    made.add("c")
    made.export_file(tmp_path / "file")
    made.discard("c")
    again = BloomFilter.import_file("x", tmp_path / "file", client=r, replace=True)
    assert again.exists_many(["a", "c"]) == [False, True]
    assert r.keys("*{x}*forgotten") == []


@pytest.mark.parametrize("has_heard", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_set_algebra_refuses_and_changes_nothing(r, shards, has_heard):
    made = BloomFilter("x", 5000, 1e-9, client=r, shards=shards)
    mine = made if has_heard else BloomFilter.open("x", client=r)
    plain = BloomFilter("y", 5000, 1e-9, client=r, shards=shards)
    made.update(["a", "b"]), plain.update(["a", "b", "c"])
    made.discard("a")
    before = {key: r.dump(key) for key in r.scan_iter()}
    for one, other in ((mine, plain), (plain, mine)):
        for method in (*JOINING, "union", "intersection"):
            into = ["z"] if method in ("union", "intersection") else []
            with pytest.raises(ConfigurationError, match="'x', of which items were forgotten"):
                getattr(one, method)(other, *into)
            assert {key: r.dump(key) for key in r.scan_iter()} == before
    made.clear()
    mine.reattach()
    mine |= plain
    assert mine.exists_many(["a", "c"]) == [True, True]


def test_a_filter_is_replaced_though_an_item_is_forgotten_meanwhile(r):
    made = BloomFilter("x", 5000, 1e-9, client=r)
    plain = BloomFilter("y", 5000, 1e-9, client=r)
    other = BloomFilter.open("x", client=r)
    made.update(["a", "b"]), plain.update(["a", "c"])

    def forget(done, total):
        if done == total:
            assert other.discard("a") is True

    made.intersection_update(plain, progress=forget)
    # It was there when the bits were prepared.
    assert made.exists_many(["a", "b", "c"]) == [True, False, False]
    assert r.keys("*forgotten") == []


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        *(("plain", strategy) for strategy in ("atomic", "lua", "transaction")),
        *(("growing", strategy) for strategy in ("atomic", "lua")),
        ("window", "atomic"),
    ],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_forgotten_is_new_once_in_a_filter_that_had_another_name(
    r, strategy, shards, kind
):
    """An add by a version of before sets its bits, and knows by the table that they count."""
    options = {"client": r, "strategy": strategy, "on_lost": "recreate", "shards": shards}
    made = BloomFilter("x", error_rate=1e-9, **options, **KINDS[kind])
    items = [str(number) for number in range(60)]
    made.update(items)
    made.discard_many(items[:40])
    BloomFilter.open("x", client=r).rename("y").rename("x")
    assert made.add("0") is True
    BloomFilter.open("x", client=r).rename("y").rename("x")
    assert made.add_many([*items, *items[:40]]) == [False] + [True] * 39 + [False] * 60
    assert made.exists_many(items) == [True] * 60
    made.discard_many(items[:40])
    # Of another filter of the same name all is new, whatever the versions of the one before.
    BloomFilter.open("x", client=r).clear()
    assert made.add("0") is True
    assert made.add_many(items) == [False] + [True] * 59


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("has_heard", [True, False])
def test_another_name_and_a_time_out_are_of_the_table_too(r, shards, has_heard, kind):
    made = BloomFilter("x", error_rate=1e-9, client=r, shards=shards, **KINDS[kind])
    other = made if has_heard else BloomFilter.open("x", client=r)
    items = [str(number) for number in range(60)]
    made.update(items)
    made.discard_many(items[:40])
    made.update(items[:10])
    there = [True] * 10 + [False] * 30 + [True] * 20
    other.expire(1000)
    assert 0 < other.ttl() <= 1000
    assert all(0 < r.ttl(key) <= 1010 for key in r.scan_iter())
    late = BloomFilter.open("x", client=r)
    late.discard("50")
    there[50] = False
    assert all(0 < r.ttl(key) <= 1010 for key in r.scan_iter())
    other.rename("y")
    moved = BloomFilter.open("y", client=r)
    assert moved.exists_many(items) == there
    assert moved.discard("1") is True
    assert {key.decode().split("{")[1][0] for key in r.scan_iter()} == {"y"}
    moved.persist()
    assert {r.ttl(key) for key in r.scan_iter()} == {-1}


def test_a_filter_that_expires_has_a_table_that_expires(r):
    made = BloomFilter("x", 5000, client=r, idle_ttl=1000)
    made.add("a"), made.discard("a")
    assert all(0 < r.ttl(key) <= 1100 for key in r.scan_iter())
    assert r.exists(TABLE)


@pytest.mark.parametrize("kind", KINDS)
def test_claims_of_before_stay_when_the_first_item_is_forgotten(r, kind):
    made = BloomFilter("x", client=r, **KINDS[kind])
    other = BloomFilter.open("x", client=r)
    claim = made.claim("work")
    made.update(["a", *map(str, range(50))]), other.discard("a")
    assert other.claim("work").state.name == "BUSY"
    assert made.count_claims().open == other.count_claims().open == 1
    assert [one.item for one in other.open_claims()] == ["work"]
    claim.extend(30)
    claim.abandon("it failed")
    assert other.claim("work").state.name == "NEW"


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        (one, kind)
        for one in ("atomic", "lua")
        for kind in KINDS
        if (one, kind) != ("lua", "window")
    ],
)
def test_a_kept_answer_ends_after_max_staleness(r, strategy, kind):
    """Whatever replies come in between, of the same shard or of another one."""
    made = BloomFilter("x", client=r, near_cache=1000, strategy=strategy, shards=3, **KINDS[kind])
    other = BloomFilter.open("x", client=r)
    clock = Clock(made)
    items = [f"item {number}" for number in range(30)]
    other.update([*items, "first"])
    for round_ in range(3):
        assert made.exists_many(items) == [True] * 30
        for item in items:
            assert made.is_kept(item)
        assert other.discard_many(["first", *items]) == [round_ == 0] + [True] * 30
        # It is asked about other items all the time, of which some stand in shards with no table.
        since = clock.now
        while clock.now - since <= 1.0:
            made.exists(f"never {clock.now}")
            clock.now += 0.05
        assert not any(map(made.is_kept, items))
        assert made.exists_many(items) == [False] * 30
        assert other.add_many(items) == [True] * 30


def test_no_answer_of_this_object_from_before_is_given_after_its_discard(r):
    made = BloomFilter("x", 5000, client=r, near_cache=1000)
    for _ in range(3):
        assert made.add("a") is True
        assert made.add("a") is False
        assert made.is_kept("a")
        assert made.discard("a") is True
        assert not made.is_kept("a")
        assert made.exists("a") is False


def test_claims_alone_do_not_keep_an_answer_alive(r):
    made = BloomFilter("x", 5000, client=r, near_cache=1000)
    other = BloomFilter.open("x", client=r)
    clock = Clock(made)
    other.update(["a", "b"])
    assert made.claim("a").state.name == "SEEN"
    assert made.is_kept("a")
    other.discard("a")
    for _ in range(30):
        made.claim("b")
        made._state.near._young.discard("b")
        clock.now += 0.05
    assert not made.is_kept("a")
    assert made.claim("a").state.name == "NEW"


def test_a_filter_with_hardly_a_free_bit(r):
    """A version is taken only if one of its bits is not set."""
    made = BloomFilter("x", 10, 0.4, client=r, num_hashes=1)
    bits = made.info().num_bits
    r.setrange(FilterKeys("x").bits(0), 8, b"\xff" * (bits // 16))
    items = [str(number) for number in range(200)]
    made.update(items)
    assert made.discard_many(items) == [True] * 200
    assert made.exists_many(items) == [False] * 200
    r.setrange(FilterKeys("x").bits(0), 8, b"\xff" * ((bits + 7) // 8))
    with pytest.raises(CapacityError, match="so full that no item can be forgotten"):
        made.discard("a")
    with pytest.raises(CapacityError, match="so full"):
        made.discard_many(items)


def test_what_was_added_without_a_report_and_forgotten_is_reported_once(r):
    made = BloomFilter("x", 5000, client=r)
    view = made._state.view
    made.update(["a", "b"])
    made._state.unreported.remember(view.header, [b"a", b"b"])
    assert made.discard("a") is True
    assert [made.add("a"), made.add("a")] == [True, False]
    BloomFilter.open("x", client=r).discard("b")
    assert [made.add("b"), made.add("b")] == [True, False]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_reply_that_is_lost_leaves_no_doubt(r, valkey, shards, kind, seed):
    """A discard is repeated, and knows by its version whether it was carried out."""
    made = BloomFilter("x", error_rate=1e-9, client=r, shards=shards, **KINDS[kind])
    rng = random.Random(seed)
    present = dict.fromkeys((f"item {number}" for number in range(40)), False)
    lost = 0
    with Proxy(valkey) as proxy:
        mine = BloomFilter.open("x", client=proxy.client())

        def judge(name, _number):
            if name in HANDSHAKE or rng.random() > 0.2:
                return "pass"
            return rng.choice(("before", "after"))

        for number in itertools.count():
            if number >= 150 and proxy.lost > lost:
                break
            item = rng.choice(list(present))
            if rng.random() < 0.5:
                assert made.add(item) is not present[item]
                present[item] = True
            else:
                proxy.judge = judge
                try:
                    assert mine.discard(item) is present[item]
                except (OutcomeUnknownError, redis.ConnectionError):
                    proxy.judge = lambda *_: "pass"
                    mine.discard(item)
                    lost += 1
                proxy.judge = lambda *_: "pass"
                present[item] = False
            assert made.exists_many(list(present)) == list(present.values())
        print(proxy.lost, "lost,", lost, "without an answer")
        mine.close()


def test_a_server_that_is_gone_leaves_the_outcome_unknown(r, valkey):
    made = BloomFilter("x", 5000, client=r)
    made.add("a"), made.add("b")
    with Proxy(valkey) as proxy:
        mine = BloomFilter.open("x", client=proxy.client())
        mine.discard("b")
        proxy.judge = lambda name, _: "pass" if name in HANDSHAKE else "after"
        with pytest.raises(OutcomeUnknownError, match="repeating the discard is harmless") as found:
            mine.discard("a")
        assert found.value.results == [None]
        proxy.judge = lambda name, _: "pass" if name in HANDSHAKE else "before"
        with pytest.raises(OutcomeUnknownError) as found:
            mine.discard_many(["c", "d"])
        assert found.value.results == [None, None]
        proxy.judge = lambda *_: "pass"
        assert mine.discard("a") is False, "the lost try did it"
        mine.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_discard_that_meets_another_generation(r, shards, kind):
    made = BloomFilter("x", error_rate=1e-9, client=r, shards=shards, **KINDS[kind])
    follows = BloomFilter.open("x", client=r, on_lost="recreate")
    other = BloomFilter.open("x", client=r, on_lost="recreate")
    for _ in range(2):
        other.update(["a", "b", *map(str, range(50))])
        assert other.discard("b") is True
        other.clear()
        other.update(["a", "c"])
        with pytest.raises(FilterLostError):
            made.discard("a")
        with pytest.raises(FilterLostError):
            made.discard_many(["a"])
        made.reattach()
        assert follows.discard_many(["a", "b"]) == [True, False]
        assert other.exists_many(["a", "b", "c"]) == [False, False, True]
        assert made.add("a") is True


def test_an_operation_in_the_middle_of_the_objects_own_clear_is_not_lost(r):
    """Although another client forgets an item of the new generation meanwhile."""
    made = BloomFilter("x", 5000, client=r)
    view = made._state.view
    made.clear()
    other = BloomFilter.open("x", client=r)
    other.add("a"), other.discard("a")
    # As in another thread, before the one that clears has attached anew.
    made._state.view = view
    assert made.add_many(["b", "a"]) == [True, True]
    assert other.exists_many(["a", "b"]) == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_an_operation_that_began_before_the_object_heard_goes_by_versions_too(r, kind):
    made = BloomFilter("x", client=r, **KINDS[kind])
    other = BloomFilter.open("x", client=r)
    made.update(["a", "b"])
    view = made._state.view
    other.discard("a")
    # As in another thread.
    assert made.exists("b")
    for items, answers in ((["a"], [True]), (["a", "b"], [False, False]), (["new"], [True])):
        began_before = Operation(made._state, [item.encode() for item in items], write=True)
        assert made._run(began_before.run(view)) == answers
    assert other.exists("a")


def test_bad_input(r, valkey):
    made = BloomFilter("x", 5000, client=r)
    made.add("a")
    for bad in (5, None, ["a"]):
        with pytest.raises(TypeError, match="item must be str or bytes"):
            made.discard(bad)
    with pytest.raises(TypeError, match="items\\[1\\]: item must be str or bytes, not int"):
        made.discard_many(["a", 5])
    assert made.exists("a"), "nothing was sent"
    with pytest.raises(TypeError, match="items must be an iterable of str or bytes, not one str"):
        made.discard_many("abc")
    assert made.discard_many([]) == []
    r.acl_setuser("careful", enabled=True, nopass=True, keys="*", channels="*",
                  commands=["+@all", "-@scripting"])  # fmt: skip
    with redis.Redis.from_url(valkey, username="careful", password="any") as careful:  # noqa: S106
        mine = BloomFilter.open("x", client=careful)
        with pytest.raises(ConfigurationError, match="discard needs a server that runs scripts"):
            mine.discard("a")
        assert made.discard("a") is True
        # All else goes on without scripts.
        assert mine.add("a") is True
        assert mine.exists_many(["a", "b"]) == [True, False]
    r.acl_deluser("careful")


def test_a_table_that_cannot_be_read_says_so(r):
    made = BloomFilter("x", 5000, client=r)
    made.update(["a", "b", "c"])
    made.discard("a")
    r.set(TABLE, "what another program wrote")
    for call in (made.exists, made.add, made.discard):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call("b")
    # Where a bit is missing no version matters.
    assert made.exists("never") is False
    assert made.add("new") is True
    r.delete(TABLE)
    assert made.exists_many(["new", "b", "never"]) == [True, True, False]


@pytest.mark.parametrize("strategy", ["native"])
def test_native_refuses(client, strategy):
    made = BloomFilter("x", 5000, client=client, strategy=strategy)
    for call in (made.discard, made.remove, made.discard_many):
        with pytest.raises(ConfigurationError, match="strategy must not be 'native' for discard"):
            call(["a"] if call == made.discard_many else "a")


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_object_knows_of_versions_is_bounded(r, monkeypatch, kind):
    monkeypatch.setattr("bloomlock.filters.versions.VERSIONS_KEPT", 10)
    monkeypatch.setattr(held, "IDENTITIES_PER_COMMAND", 7)
    monkeypatch.setattr(discards, "ITEMS_PER_CHUNK", 30)
    made = BloomFilter("x", error_rate=1e-9, client=r, **KINDS[kind])
    items = [str(number) for number in range(100)]
    made.update(items)
    assert made.discard_many(iter(items)) == [True] * 100
    assert made.exists_many(items) == [False] * 100
    assert len(made._state.view.forgotten._versions) <= 10
    assert made.add_many(items) == [True] * 100
    assert made.exists_many(items) == [True] * 100


def test_a_discard_of_a_window_that_is_repeated_late_says_that_it_is_not_known(r):
    made = BloomFilter("x", 5000, client=r, window=60)
    made.add("a")
    discarding = discards._Discards(made._state, [b"a"])
    discarding._versions[b"a"] = b"v" * 6
    discarding._doubtful.add(b"a")
    reply = b"0" + b"w" * 6
    # What is left of three quarters of a window is more than any machine takes for this.
    discarding._begun -= 15
    discarding._take(made._state.view, b"a", reply)
    assert list(discarding._left) == [b"a"], "it is asked again"
    discarding._begun -= 31
    with pytest.raises(BloomlockError, match="are over"):
        discarding._take(made._state.view, b"a", reply)


def test_an_object_that_has_not_heard_goes_by_no_epoch_that_came_with_the_flag(r):
    made = BloomFilter("x", 5000, client=r, window=86_400, refresh=True)
    assert made.add("a")
    (shard,) = made._state.view.shards
    strategy = made._state.strategy
    assert strategy.known_epoch(shard)
    assert BloomFilter.open("x", client=r).discard("a")
    made._run(strategy.turn(shard))
    assert strategy.known_epoch(shard) is None
    assert made.add("a") is True
    assert strategy.known_epoch(made._state.view.shards[0])
    assert made.add("a") is False
