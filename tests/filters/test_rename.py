"""Another name for a filter: under one of the names at any moment, with all it holds."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import redis
import servers
from strategies import BITMAPS

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ClaimLostError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
    async_rename_filter,
    delete_filter,
    list_filters,
    rename_filter,
)
from bloomlock.filters import renaming
from bloomlock.keys import FilterKeys

ITEMS = [str(number) for number in range(300)]
HOUR = 3600.0


@pytest.mark.parametrize("strategy", [*BITMAPS, "native"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_filter_has_all_it_had_under_its_new_name(r, valkey, strategy, shards):
    made = BloomFilter("x", 3000, client=valkey, strategy=strategy, shards=shards)
    made.update(ITEMS)
    made.expire(HOUR)
    follows = BloomFilter("x", 3000, client=valkey, strategy=strategy, shards=shards,
                          on_lost="recreate")  # fmt: skip
    renamed = made.rename("y")
    assert (renamed.name, renamed.exists_many(ITEMS)) == ("y", [True] * 300)
    assert renamed.generation != made.generation
    assert renamed.add_many(["new", ITEMS[0]]) == [True, False]
    assert HOUR - 600 < renamed.ttl() <= HOUR
    assert list_filters(client=valkey) == ["y"]
    assert [key for key in r.scan_iter("*{x*") if not key.endswith(b"fence")] == []
    with pytest.raises(FilterLostError, match="is missing"):
        made.exists("1")
    with pytest.raises(FilterNotFoundError):
        BloomFilter.open("x", client=valkey)
    # One that may recreate begins anew under the old name; the other is untouched.
    assert follows.add("1") is True
    assert renamed.exists_many(ITEMS) == [True] * 300
    assert renamed.delete()
    assert follows.delete()
    assert [key for key in r.scan_iter("*{*") if not key.endswith(b"fence")] == []


def test_claims_go_with_it(r, valkey):
    made = BloomFilter("x", 3000, client=valkey, shards=2)
    claims = made.claim_many(ITEMS[:20], 0.05, renew=False, payloads=ITEMS[:20])
    failed = made.claim_many(ITEMS[20:25], renew=False, max_attempts=1)
    made.abandon_many(failed, "why")
    renamed = made.rename("y")
    with pytest.raises(ClaimLostError):
        claims[0].commit()
    assert sorted(one.item for one in renamed.failed()) == ITEMS[20:25]
    found = []
    servers.wait_until(lambda: found.extend(renamed.expired(renew=False)) or len(found) == 20)
    assert sorted(claim.payload for claim in found) == sorted(ITEMS[:20])
    assert sorted(map(int, renamed.commit_many(found))) == [1] * 20
    assert renamed.count_claims().committed == 20


def test_a_name_that_is_taken_is_refused(r, valkey):
    made = BloomFilter("x", 3000, client=valkey)
    made.update(ITEMS)
    BloomFilter("y", 1000, client=valkey).add("a")
    r.rpush("bloomlock:{z}:meta", "a foreign key")
    for name, error, says in (
        ("y", ConfigurationError, "name 'y' is taken"),
        ("x", ConfigurationError, "the new name must not be 'x', the one that it has"),
        ("z", FilterMismatchError, "something that is no filter"),
        ("", ConfigurationError, "name must be a text"),
    ):
        with pytest.raises(error, match=says):
            made.rename(name)
        with pytest.raises(error, match=says):
            rename_filter("x", name, client=valkey)
    assert made.exists_many(ITEMS) == [True] * 300
    with pytest.raises(FilterNotFoundError, match="no filter named 'none'"):
        rename_filter("none", "other", client=valkey)
    made.close()
    BloomFilter.open("x", client=valkey).clear()
    with pytest.raises(FilterLostError):
        made.rename("other")


def test_a_name_that_is_taken_at_any_step_is_refused(r, valkey):
    for number in range(40):
        r.flushall()
        made = BloomFilter("x", 3000, client=valkey, shards=2)
        made.update(ITEMS)
        core = renaming.rename(FilterKeys("x"), FilterKeys("y"))
        other: list[BloomFilter] = []

        def take(other=other):
            other.append(BloomFilter("y", 1000, client=valkey))
            other[0].add("another")

        try:
            done = made._run(acted(core, number, take))
        except ConfigurationError:
            assert other[0].exists("another")
            assert made.exists_many(ITEMS) == [True] * 300
            continue
        except FilterMismatchError:
            # The other one came too late, and found the renamed one.
            pass
        with BloomFilter.open("y", client=valkey) as renamed:
            assert renamed.exists_many(ITEMS) == [True] * 300
        assert not other
        if done:
            assert number > 2
            return
    pytest.fail("so many steps?")


def acted(core, number, act):
    """Carry out a core, and something else before its step of that number; True: it had ended."""
    answer = None
    with contextlib.suppress(StopIteration):
        for count in range(1000):
            step = core.send(answer)
            if count == number:
                act()
            answer = yield step
    return count <= number


def test_what_is_left_at_the_new_name_is_no_part_of_it(r, valkey):
    """A string without a header, and shards of a filter whose descriptor is gone."""
    gone = BloomFilter("y", 3000, client=valkey, shards=3)
    gone.update(f"old {item}" for item in ITEMS)
    r.delete("bloomlock:{y}:meta", "bloomlock:{y}:bits")
    r.setbit("bloomlock:{y}:bits", 70000, 1)
    made = BloomFilter("x", 3000, client=valkey, shards=3)
    made.update(ITEMS)
    before = made.to_memory()
    renamed = made.rename("y")
    found = zip(renamed.to_memory().images(), before.images(), strict=True)
    assert all((one == two).all() for one, two in found)


def test_one_of_several_that_rename_at_once_wins(r, valkey):
    for turn in range(10):
        made = [BloomFilter(f"{turn}", 3000, client=valkey, shards=2) for _ in range(4)]
        made[0].update(ITEMS)
        done: list[str] = []

        def act(number, one, done=done):
            with contextlib.suppress(ConfigurationError, FilterLostError, FilterNotFoundError):
                done.append(one.rename(f"new {number % 2}").name)

        threads = [
            threading.Thread(target=act, args=(number, one)) for number, one in enumerate(made)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list_filters(client=valkey) == done
        with BloomFilter.open(done[0], client=valkey) as renamed:
            assert renamed.exists_many(ITEMS) == [True] * 300
            renamed.delete()


def test_scripts_may_be_forbidden(r, valkey):
    BloomFilter("x", 3000, client=valkey).update(ITEMS)
    r.acl_setuser("plain", enabled=True, nopass=True, keys=["*"],
                  categories=["+@all", "-@scripting"])  # fmt: skip
    try:
        with redis.Redis.from_url(f"{valkey}&username=plain&password=x") as client:
            made = BloomFilter.open("x", client=client)
            with pytest.raises(ConfigurationError, match="rename needs a server that runs scripts"):
                made.rename("y")
            assert made.exists_many(ITEMS) == [True] * 300
            assert list_filters(client=client) == ["x"]
    finally:
        r.acl_deluser("plain")


def test_asyncio(r, valkey):
    async def main():
        async with AsyncBloomFilter("x", 3000, client=valkey, shards=2) as made:
            await made.update(ITEMS)
            async with await made.rename("y") as renamed:
                assert await renamed.exists_many(ITEMS) == [True] * 300
            await async_rename_filter("y", "z", client=valkey)
        assert list_filters(client=valkey) == ["z"]

    asyncio.run(main())


# -- a cluster -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes():
    with servers.cluster(2000) as clients:
        yield clients


@pytest.fixture
def cluster(nodes):
    with servers.emptied(nodes) as made:
        yield made


def keys_in(nodes):
    return sorted(key for node in nodes for key in node.scan_iter("*") if not key.endswith("fence"))


@pytest.mark.parametrize(
    ("shape", "gone"),
    [
        ({}, []),
        ({}, ["7"]),
        ({"key": b"a secret of 16 bytes or more"}, []),
        ({"key": True, "layout": "blocked"}, ITEMS[:30]),
        ({"window": HOUR}, []),
        ({"capacity": 50, "on_full": "grow"}, []),
        ({"capacity": 50, "on_full": "grow"}, ["7"]),
        ({"capacity": 50, "on_full": "grow"}, ITEMS[:30]),
    ],
    ids=str,
)
def test_over_slots_all_is_copied(cluster, nodes, shape, gone):
    made = BloomFilter("x", **{"capacity": 3000, "client": cluster, "shards": 4} | shape)
    for item in ITEMS:
        made.add(item)
    if gone:
        assert made.discard_many(gone) == [True] * len(gone)
    claim = made.claim("job", renew=False)
    made.expire(HOUR)
    done = []
    renamed = made.rename("another", progress=lambda *now: done.append(now))
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert renamed.exists_many(ITEMS) == [item not in gone for item in ITEMS]
    assert renamed.info().forgotten == len(gone)
    assert renamed.claim("job").state.name == "BUSY"
    assert HOUR - 600 < renamed.ttl() <= HOUR
    with pytest.raises(ClaimLostError):
        claim.commit()
    with pytest.raises(FilterLostError):
        made.exists("1")
    assert not [key for key in keys_in(nodes) if "{x" in key]
    assert list_filters(client=cluster) == ["another"]


@pytest.mark.parametrize(
    ("shape", "gone"), [({}, []), ({"capacity": 50, "on_full": "grow"}, ["gone"])], ids=str
)
def test_over_slots_a_rename_that_stops_at_any_step_loses_nothing(cluster, nodes, shape, gone):
    """Whatever was answered as added is there, under one name or by calling it again."""
    for number in range(200):
        for client in nodes:
            client.flushall()
        shape = {"capacity": 3000, "client": cluster, "shards": 2} | shape
        made, late = (BloomFilter("x", **shape) for _ in range(2))
        for start in range(0, len(ITEMS), 50):
            made.update(ITEMS[start : start + 50])
        made.update(gone)
        assert made.discard_many(gone) == [True] * len(gone)
        added = list(ITEMS)

        def add(late=late, added=added):
            with contextlib.suppress(FilterLostError):
                if late.add(f"late {len(added)}"):
                    added.append(f"late {len(added)}")

        core = renaming.rename(FilterKeys("x"), FilterKeys("y"), made._state.view.header)
        done = made._run(stopped(core, number, add))
        add()
        opened = []
        for name in ("x", "y"):
            with contextlib.suppress(FilterNotFoundError, FilterMismatchError):
                opened.append(BloomFilter.open(name, client=cluster))
        assert len(opened) <= 1
        if opened:
            assert opened[0].exists_many(added) == [True] * len(added)
        if not done and (
            not opened or opened[0].name == "x" or "x" in list_filters(client=cluster)
        ):
            rename_filter("x", "y", client=cluster)
        with BloomFilter.open("y", client=cluster) as renamed:
            assert renamed.exists_many(added) == [True] * len(added)
            assert renamed.exists_many(gone) == [False] * len(gone)
            assert renamed.add("new") is True
        assert not [key for key in keys_in(nodes) if "{x" in key and "meta" in key]
        if done:
            assert number > 12
            return
    pytest.fail("a rename of so many steps?")


def stopped(core, number, act):
    """Carry out the first steps of a core, doing something else before each."""
    answer = None
    with contextlib.suppress(StopIteration):
        for _ in range(number):
            step = core.send(answer)
            act()
            answer = yield step
        core.close()
        return False
    return True


def test_over_slots_no_client_attaches_meanwhile(cluster, nodes):
    made = BloomFilter("x", 3000, client=cluster, shards=2)
    made.update(ITEMS)
    core = renaming.rename(FilterKeys("x"), FilterKeys("y"))
    attached: list[str] = []

    def attach():
        for name in ("x", "y"):
            with contextlib.suppress(FilterNotFoundError, FilterMismatchError):
                with BloomFilter.open(name, client=cluster) as opened:
                    assert opened.exists_many(ITEMS) == [True] * 300
                attached.append(name)

    assert made._run(stopped(core, 1000, attach))
    assert set(attached) <= {"x", "y"}
    assert attached == sorted(attached)
    with pytest.raises(ConfigurationError, match="name 'y' is taken"):
        BloomFilter("x", 3000, client=cluster).rename("y")
    assert delete_filter("y", client=cluster)
