"""Union, intersection, Jaccard and copies of filters on servers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

import numpy as np
import pytest
import redis
import servers

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ClaimLostError,
    ConfigurationError,
    FilterLostError,
    MemoryBloomFilter,
    list_filters,
)
from bloomlock.filters import algebra, combining
from bloomlock.filters.algebra import AND, OR, Other
from bloomlock.keys import FilterKeys
from bloomlock.server import PrivateServer

SHAPES = {
    "classic": {},
    "shards": {"shards": 3},
    "blocked": {"layout": "blocked", "shards": 2},
    "seeds": {"seeds": [5, 6, 7]},
    "key": {"key": b"a secret of 16 bytes or more"},
}
WAYS = ("server", "parts", "scripts refused at the source", "another database", "another server")


@pytest.fixture(scope="module")
def second(all_servers):
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        yield server.url


@pytest.fixture
def urls(request, valkey, second, monkeypatch):
    """Where the two filters are, by the way that their bits take."""
    way = getattr(request, "param", "server")
    if way == "parts":
        # A shard of a few KiB is then as a large one is.
        monkeypatch.setattr(combining, "WHOLE_BYTES", 1000)
        monkeypatch.setattr(combining, "PART_BYTES", 3000)
    elif way != "server":
        monkeypatch.setattr(combining, "TRAVELLING_BYTES", 3000)
    databases = {"another server": second, "another database": valkey.replace("db=0", "db=3")}
    other = databases.get(way, valkey)
    with contextlib.ExitStack() as stack:
        for url in (valkey, other):
            stack.enter_context(redis.Redis.from_url(url)).flushall()
        if way.startswith("scripts"):
            client = stack.enter_context(redis.Redis.from_url(valkey))
            client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], channels=["*"],
                               categories=["+@all", "-@scripting", "-@dangerous"])  # fmt: skip
            stack.callback(client.acl_deluser, "reader")
            other = f"{valkey}&username=reader&password=x"
        yield valkey, other


def bits(images):
    return [image[8:].tobytes() for image in images]


def combined(one, other, how):
    pairs = zip(one.to_memory().images(), other.to_memory().images(), strict=True)
    return bits([how(*pair) for pair in pairs])


def filled(name, url, first, last, **shape):
    made = BloomFilter(name, 3000, 1e-6, client=url, **shape)
    made.update(str(number) for number in range(first, last))
    return made


@pytest.mark.parametrize("urls", WAYS, indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_both(urls, shape):
    a, b = (
        filled(name, url, *items, **SHAPES[shape])
        for name, url, items in zip("ab", urls, [(0, 2000), (1500, 3000)], strict=True)
    )
    either, both = combined(a, b, np.bitwise_or), combined(a, b, np.bitwise_and)
    mine, theirs = a.to_memory(), b.to_memory()
    with a.union(b, "either") as made:
        assert bits(made.to_memory().images()) == either
    with a.intersection(b, "both") as made:
        assert bits(made.to_memory().images()) == both
    with a.copy("copied") as made:
        assert bits(made.to_memory().images()) == bits(mine.images())
        made.__ior__(b)
        assert bits(made.to_memory().images()) == either
        made.update(b)
    assert a.jaccard(b) == mine.jaccard(theirs)
    assert not a.isdisjoint(b)
    kept = a.generation
    with a.copy("next") as made:
        made.__iand__(b)
        assert bits(made.to_memory().images()) == both
        assert made.exists_many(map(str, range(1500, 2000))) == [True] * 500
        assert made.cleared
    assert (a.generation, bits(a.to_memory().images())) == (kept, bits(mine.images()))
    assert bits(b.to_memory().images()) == bits(theirs.images())
    with redis.Redis.from_url(urls[0]) as client:
        assert not [key for key in client.scan_iter() if key.endswith((b":merge", b":part"))]
        assert not client.keys("*:next:*")


def test_shards_that_are_combined_in_parts(r, valkey):
    """Real parts of 512 KiB, and the last one, which is shorter."""
    a, b = (BloomFilter(name, 1_800_000, client=valkey, shards=1) for name in "ab")
    assert a.num_bits // 8 > combining.WHOLE_BYTES
    a.update(map(str, range(2000)))
    b.update(map(str, range(1000, 3000)))
    expected = combined(a, b, np.bitwise_and)
    done: list[tuple[int, int]] = []
    with a.intersection(b, "both", progress=lambda *now: done.append(now)) as both:
        assert bits(both.to_memory().images()) == expected
    size = r.strlen("bloomlock:{a}:bits")
    assert [total for _, total in done] == [size - 8] * len(done)
    assert done[-1][0] == size - 8
    assert [now for now, _ in done] == sorted({now for now, _ in done})
    a.intersection_update(b)
    assert bits(a.to_memory().images()) == expected


def test_asyncio_and_filters_of_it(r, valkey, second):
    async def main():
        async with (
            AsyncBloomFilter("a", 3000, client=valkey) as a,
            AsyncBloomFilter("of asyncio", 3000, client=second) as b,
        ):
            await a.update(["1", "2"])
            await b.update(["2", "3"])
            async with await a.union(b, "c") as c, await a.intersection(b, "d") as d:
                assert await c.exists_many(["1", "2", "3"]) == [True] * 3
                assert await d.exists_many(["1", "2", "3"]) == [False, True, False]
                await d.union_update(c)
                await d.intersection_update(b)
                assert await d.exists_many(["1", "2", "3"]) == [False, True, True]
                assert a.differences(c) == []
                assert 0.3 < await a.jaccard(b) < 0.37
                assert not await a.isdisjoint(b)
                await d.clear()
                assert await a.isdisjoint(d)
            with pytest.raises(ConfigurationError, match="other must be a AsyncBloomFilter"):
                await a.union_update(BloomFilter("a", 3000, client=valkey))
            await b.delete()

    asyncio.run(main())
    with BloomFilter("a", 3000, client=valkey) as a:
        for wrong in (MemoryBloomFilter(3000), ["1"], None):
            with pytest.raises(ConfigurationError, match="other must be a BloomFilter, not"):
                a.union(wrong, "x")
        assert a.__ior__(["1"]) is a.__iand__(MemoryBloomFilter(3000)) is NotImplemented


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"capacity": 4000}, "num_bits: .* here, .* there"),
        ({"num_hashes": 5}, "num_hashes: 7 here, 5 there"),
        ({"shards": 2}, "shards: 1 here, 2 there"),
        ({"layout": "blocked"}, "layout: classic here, blocked there"),
        ({"seeds": range(7)}, "seeds: None here"),
        ({"key": b"a secret of 16 bytes or more"}, "key: none here, a secret one there"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_unequal_filters_are_refused_and_nothing_is_changed(r, valkey, other, says):
    a = filled("a", valkey, 0, 100)
    b = BloomFilter("b", **({"capacity": 3000} | other), client=valkey)
    before = {key: r.dump(key) for key in r.scan_iter()}
    acts = (
        lambda: a.union(b, "c"),
        lambda: a.intersection(b, "c"),
        lambda: a.update(b),
        lambda: a.intersection_update(b),
        lambda: a.jaccard(b),
        lambda: a.isdisjoint(b),
    )
    for act in acts:
        with pytest.raises(ConfigurationError, match=says):
            act()
    assert "here, " in a.differences(b)[0]
    assert before == {key: r.dump(key) for key in r.scan_iter()}


def test_random_keys_differ(r, valkey):
    a, b = (BloomFilter(name, 3000, client=valkey, key=True) for name in "ab")
    with pytest.raises(ConfigurationError, match="key: a random one here, .* which is another"):
        a.union_update(b)
    a.intersection_update(a.copy("c"))


def test_a_name_that_is_taken_is_refused(r, valkey):
    a, b = filled("a", valkey, 0, 100), filled("b", valkey, 0, 100)
    for act in (a.union, a.intersection):
        with pytest.raises(ConfigurationError, match="name 'b' is taken"):
            act(b, "b")
    assert b.exists_many(map(str, range(100))) == [True] * 100


@pytest.mark.parametrize("urls", WAYS, indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_shares_no_bit_shares_no_item(urls, shape, seed):
    items = random.Random(seed).sample(range(10**6), 40)
    a, b, c = (
        filled(name, url, 0, 0, **SHAPES[shape])
        for name, url in zip("abc", [*urls, urls[1]], strict=True)
    )
    assert a.isdisjoint(b), "both are empty"
    a.update(map(str, items[:20]))
    assert a.isdisjoint(b)
    b.update(map(str, items[20:]))
    images = zip(a.to_memory().images(), b.to_memory().images(), strict=True)
    shared = any((one[8:] & other[8:]).any() for one, other in images)
    assert a.isdisjoint(b) is b.isdisjoint(a) is not shared
    assert a.to_memory().isdisjoint(b.to_memory()) is not shared
    c.add(str(items[0]))
    assert not a.isdisjoint(c)


@pytest.mark.parametrize("strategy", ["native"])
def test_native_is_refused_by_name(r, valkey, strategy):
    a, b = (BloomFilter(name, 1000, client=valkey, strategy=strategy) for name in "ab")
    several = (a.union_update, a.intersection_update, a.jaccard, a.isdisjoint)
    for act in (*several, lambda o: a.union(o, "c")):
        with pytest.raises(ConfigurationError, match="not possible with strategy 'native'"):
            act(b)


def test_a_union_while_others_add_loses_nothing(r, valkey, seed):
    """What is added to the destination meanwhile stays, and is new once."""
    a, b = filled("a", valkey, 0, 0, shards=3), filled("b", valkey, 0, 1500, shards=3)
    others = [f"other {number}" for number in range(1500)]
    wins: list[list[str]] = [[], []]
    over = threading.Event()

    def add(mine):
        with BloomFilter("a", 3000, client=valkey, shards=3) as made:
            for item in random.Random(seed + len(mine)).sample(others, len(others)):
                if made.add(item):
                    mine.append(item)

    def merge():
        while not over.is_set():
            a.union_update(b)

    workers = [threading.Thread(target=add, args=(mine,)) for mine in wins]
    merging = threading.Thread(target=merge)
    for thread in (*workers, merging):
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    merging.join()
    assert sorted([*wins[0], *wins[1]]) == sorted(others)
    assert all(a.exists_many([*others, *map(str, range(1500))]))


def steps_of(core, number, act=None):
    """Carry out the first steps of a core, then something else, and the rest if there is `act`."""
    answer, count = None, 0
    with contextlib.suppress(StopIteration):
        while True:
            step = core.send(answer)
            if count == number:
                if act is None:
                    core.close()
                    return False
                act()
            answer = yield step
            count += 1
    return count <= number


@pytest.mark.parametrize("shards", [1, 3])
def test_an_intersection_that_stops_at_any_step_leaves_all_or_the_result(r, valkey, shards):
    """A client that dies in the middle leaves the old bits or the new ones, whole."""
    for number in range(200):
        r.flushall()
        a, b = (
            filled("a", valkey, 0, 200, shards=shards),
            filled("b", valkey, 100, 300, shards=shards),
        )
        before, after = bits(a.to_memory().images()), combined(a, b, np.bitwise_and)
        core = algebra.intersect(a._state, Other(b._state, b._run))
        done = a._run(steps_of(core, number))
        with BloomFilter.open("a", client=valkey) as opened:
            found = bits(opened.to_memory().images())
            assert found == after if done else found in (before, after)
            assert r.hget("bloomlock:{a}:meta", "state") == b"ready"
            opened.intersection_update(b)
            assert bits(opened.to_memory().images()) == after
            opened.delete()
        left = [key for key in r.keys("bloomlock:{a*") if r.ttl(key) < 0]
        assert left == []
        if done:
            assert number > 5 + shards
            return
    pytest.fail("an intersection of so many steps?")


@pytest.mark.parametrize("operation", [OR, AND])
def test_a_clear_at_any_step_is_noticed_or_comes_later(r, valkey, operation):
    """No step writes to a generation that another client has begun."""
    for number in range(200):
        r.flushall()
        a, b = filled("a", valkey, 0, 200, shards=2), filled("b", valkey, 100, 300, shards=2)
        other = BloomFilter.open("a", client=valkey)
        act = algebra.update if operation == OR else algebra.intersect
        core = act(a._state, Other(b._state, b._run))
        try:
            done = a._run(steps_of(core, number, other.clear))
        except FilterLostError:
            assert other.count() == 0, "bits of an earlier generation"
            assert other.add("1")
        else:
            if done:
                assert number > 5
                return
            # The clear came after the last bits.
            assert other.count() == 0
    pytest.fail("so many steps?")


def test_objects_that_keep_answers_notice_an_intersection(r, valkey):
    a, b = filled("a", valkey, 0, 200), filled("b", valkey, 100, 300)
    near = BloomFilter.open("a", client=valkey, near_cache=1000, max_staleness=0.01)
    follows = BloomFilter.open("a", client=valkey, near_cache=1000, on_lost="recreate")
    assert near.add("5") is follows.add("6") is False
    a.near = None
    a.intersection_update(b)
    servers.wait_until(lambda: not near.is_kept("5"))
    with pytest.raises(FilterLostError, match="cleared or replaced"):
        near.exists("5")
    near.reattach()
    assert near.exists("5") is False
    assert near.exists("150") is True
    assert follows.add_many(["7", "150"]) == [True, False]


def test_claims_end_with_an_intersection(r, valkey):
    a, b = filled("a", valkey, 0, 10), filled("b", valkey, 0, 10)
    claim = a.claim("job", renew=False)
    a.intersection_update(b)
    with pytest.raises(ClaimLostError, match="cleared or replaced"):
        claim.commit()
    assert a.open_claims() == []
    assert a.claim("job", renew=False).state.name == "NEW"


def test_what_may_not_run_scripts_is_refused_and_can_copy(r, valkey):
    filled("a", valkey, 0, 100, shards=2)
    filled("b", valkey, 0, 100, shards=2)
    r.acl_setuser(
        "plain", enabled=True, nopass=True, keys=["*"], categories=["+@all", "-@scripting"]
    )
    try:
        with redis.Redis.from_url(f"{valkey}&username=plain&password=x") as client:
            a, b = (BloomFilter.open(name, client=client) for name in "ab")
            assert a.copy("c").exists_many(map(str, range(100))) == [True] * 100
            for act in (a.intersection_update, a.union_update, a.jaccard):
                with pytest.raises((ConfigurationError, redis.ResponseError)):
                    act(b)
            assert a.exists_many(map(str, range(100))) == [True] * 100
            assert list_filters(client=client) == ["a", "b", "c"]
    finally:
        r.acl_deluser("plain")


def test_keys_of_a_filter_that_is_being_replaced_are_deleted_with_it(r, valkey):
    a, b = filled("a", valkey, 0, 200, shards=3), filled("b", valkey, 0, 200, shards=3)
    core = algebra.intersect(a._state, Other(b._state, b._run))
    for number in range(200):
        core = algebra.intersect(a._state, Other(b._state, b._run))
        a._run(steps_of(core, number))
        if r.hget("bloomlock:{a}:meta", "state") == b"replacing":
            break
    assert r.keys("bloomlock:{a*:next:*")
    assert a.delete()
    assert [key for key in r.keys("bloomlock:{a*") if r.ttl(key) < 0] == []
    assert not r.exists(FilterKeys("a").meta)
