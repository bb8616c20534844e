"""The reply never came: nothing is lost, nothing is invented.

Every command a filter sends is lost once before it reaches the server and once after it was carried
out, for every strategy.
"""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
import redis
import redis.asyncio
from proxy import HANDSHAKE
from redis.backoff import NoBackoff
from redis.retry import Retry
from strategies import BITMAPS, STRATEGIES, with_hashes

from bloomlock import AsyncBloomFilter, BloomFilter, MemoryBloomFilter, OutcomeUnknownError
from bloomlock.effects import ConnectionLost
from bloomlock.filters.operation import Repeats
from bloomlock.server import PrivateServer

PATIENCE = 60
"""Seconds that no test waits for."""


@pytest.fixture(autouse=True)
def long_leases(monkeypatch):
    """A batch goes through the proxy under one lease of the lock strategy."""
    monkeypatch.setattr("bloomlock.strategies.lock.LEASE_MS", 2000 * PATIENCE)


@pytest.fixture
def through(proxy):
    """A client as users have it: redis-py's own default retries are on.

    Only its time-out is longer: the proxy reads ten thousand commands of a batch.
    """
    with redis.Redis.from_url(proxy.url, socket_timeout=PATIENCE) as made:
        made.ping()
        yield made


def lose_once(proxy, verdict, names=None, skip=0):
    """Lose the first matching command that comes from now on, after `skip` of them."""
    state = {"left": skip, "done": False}

    def judge(name, _number):
        if state["done"] or name in HANDSHAKE or (names and name not in names):
            return "pass"
        if state["left"]:
            state["left"] -= 1
            return "pass"
        state["done"] = True
        return verdict

    proxy.judge = judge
    return state


def commands_of(proxy, action):
    """How many commands an action sends when nothing is lost."""
    proxy.judge = lambda _name, _number: "pass"
    before = len(proxy.seen)
    action()
    return len([name for name in proxy.seen[before:] if name not in HANDSHAKE])


def forget_locks(r):
    """Spare the next add the rest of the lease of a lock whose holder was cut off."""
    for key in r.keys("*:lock:*"):
        r.delete(key)


@pytest.mark.parametrize("verdict", ["before", "after"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_add_is_never_repeated_in_silence(r, proxy, through, strategy, verdict):
    made = BloomFilter("x", 2000, client=through, strategy=strategy)
    sent = commands_of(proxy, lambda: made.add("warm"))
    for lost in range(sent):
        # A script that has to be loaded again takes two commands, and both are to be lost.
        r.script_flush()
        item = f"item {lost}"
        state = lose_once(proxy, verdict, skip=lost)
        try:
            told = made.add(item)
        except OutcomeUnknownError as error:
            told = None
            assert error.results == [None]
            assert isinstance(error.__cause__, redis.ConnectionError)
        assert state["done"]
        # "Seen" would be the lie: nobody else has offered it.
        assert told in (True, None)
        if told:
            assert made.exists(item)
        forget_locks(r)


@pytest.mark.parametrize("verdict", ["before", "after"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_unknown_counts_as_new_where_asked(r, proxy, through, strategy, verdict):
    made = BloomFilter("x", 2000, client=through, strategy=strategy, on_unknown="new")
    sent = commands_of(proxy, lambda: made.add("warm"))
    for lost in range(sent):
        lose_once(proxy, verdict, skip=lost)
        assert made.add(f"item {lost}") is True
        forget_locks(r)


@pytest.mark.parametrize("verdict", ["before", "after"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_reads_are_repeated(r, proxy, through, strategy, verdict):
    made = BloomFilter("x", 2000, client=through, strategy=strategy)
    made.add("there")
    for read in (lambda: made.exists("there"), lambda: not made.exists("not there"),
                 lambda: made.exists_many(["there", "not"]) == [True, False],
                 lambda: made.count() == 1, lambda: made.info().estimated_count == 1):  # fmt: skip
        for lost in range(commands_of(proxy, read)):
            state = lose_once(proxy, verdict, skip=lost)
            assert read()
            assert state["done"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_known_of_a_batch_is_told(r, proxy, through, strategy):
    made = BloomFilter("x", 5000, client=through, strategy=strategy, **with_hashes(strategy, 16))
    # More than one command; of the server's own filter one command takes 2000 items.
    size = 4500 if strategy == "native" else 1500
    batch = [str(number) for number in range(size)]
    made.add_many(batch[:3])
    warm = [f"warm {number}" for number in range(size)]
    total = commands_of(proxy, lambda: made.add_many(warm, route="items"))
    middle = 1 if strategy == "native" else total // 2
    for verdict in ("before", "after"):
        made.clear()
        made.add_many(batch[:3])
        lose_once(proxy, verdict, skip=middle)
        with pytest.raises(OutcomeUnknownError, match="reply was lost") as caught:
            made.add_many(batch, route="items")
        results = caught.value.results
        assert results[:3] == [False] * 3
        assert set(results[3:]) <= {True, None}
        assert None in results
        assert True in results
        proxy.judge = lambda _name, _number: "pass"
        known = [item for item, new in zip(batch, results, strict=False) if new]
        never_sent = batch[len(results) :]
        assert all(made.exists_many(known))
        assert not any(made.exists_many(never_sent))


@pytest.mark.parametrize("verdict", ["before", "after"])
def test_what_was_on_its_way_is_unknown_and_no_more(r, proxy, through, verdict):
    made = BloomFilter("x", 20_000, client=through, num_hashes=16)
    batch = [str(number) for number in range(10_000)]
    lose_once(proxy, verdict, {"BITFIELD"}, skip=20)
    with pytest.raises(OutcomeUnknownError) as caught:
        made.add_many(batch, route="items")
    results = caught.value.results
    known = results.index(None)
    assert results[:known] == [True] * 20 * 62
    assert set(results[known:]) == {None}
    # A dozen commands may be on their way, of 62 items each.
    assert 62 <= len(results) - known <= 62 * 12
    assert not any(made.exists_many(batch[len(results) :]))
    assert made.add_many(batch[len(results) :]) == [True] * (len(batch) - len(results))


def test_repeats_of_what_was_never_sent_are_not_known(r, proxy, through):
    made = BloomFilter("x", 20_000, client=through, num_hashes=16)
    lose_once(proxy, "after", {"BITFIELD"}, skip=20)
    with pytest.raises(OutcomeUnknownError) as caught:
        made.add_many([str(number // 2) for number in range(20_000)], route="items")
    results = caught.value.results
    assert results[: 2 * 20 * 62] == [True, False] * 20 * 62
    assert set(results[2 * 20 * 62 :]) == {None}
    assert len(results) <= 2 * 62 * 32
    assert not any(made.exists_many(map(str, range(len(results) // 2, 10_000))))


@pytest.mark.parametrize("verdict", ["before", "after"])
@pytest.mark.parametrize("layout", ["classic", "blocked"])
def test_a_merged_batch_loses_nothing(r, proxy, through, layout, verdict):
    made = BloomFilter("x", 5000, client=through, layout=layout)
    r.script_flush()
    sent = commands_of(proxy, lambda: made.add_many(["warm", "up"], route="bitmap"))
    assert sent >= 12
    for lost in range(sent):
        batch = [f"{lost} {number}" for number in range(500)]
        r.script_flush()
        state = lose_once(proxy, verdict, skip=lost)
        try:
            told = made.add_many(batch, route="bitmap")
        except OutcomeUnknownError as error:
            told = error.results
        assert state["done"]
        assert told in ([True] * 500, [None] * 500)
        if None not in told:
            assert all(made.exists_many(batch))


@pytest.mark.parametrize("verdict", ["before", "after"])
def test_an_update_by_bitmap_is_repeated(r, proxy, through, verdict):
    made = BloomFilter("x", 5000, client=through)
    # A script that has to be loaded would be counted.
    made.update(["warm"], route="bitmap")
    for lost in range(commands_of(proxy, lambda: made.update(["warm"], route="bitmap"))):
        batch = [f"{lost} {number}" for number in range(500)]
        state = lose_once(proxy, verdict, skip=lost)
        made.update(batch, route="bitmap")
        assert state["done"]
        assert all(made.exists_many(batch))


@pytest.mark.parametrize("verdict", ["before", "after"])
@pytest.mark.parametrize("layout", ["classic", "blocked"])
def test_the_reading_of_a_bitmap_is_repeated(r, proxy, through, layout, verdict):
    made = BloomFilter("x", 5000, client=through, layout=layout)
    made.update(map(str, range(500)))
    asked = [str(number) for number in range(1000)]

    def read():
        return made.exists_many(asked, route="bitmap")

    for lost in range(commands_of(proxy, read)):
        state = lose_once(proxy, verdict, skip=lost)
        assert read() == [True] * 500 + [False] * 500
        assert state["done"]


@pytest.mark.parametrize("verdict", ["before", "after"])
def test_the_merging_of_a_filter_is_repeated(r, proxy, through, verdict):
    made = BloomFilter("x", 5000, client=through)
    memory = MemoryBloomFilter(5000)
    for lost in range(commands_of(proxy, lambda: made.update(memory))):
        memory.add(f"item {lost}")
        state = lose_once(proxy, verdict, skip=lost)
        made.update(memory)
        assert state["done"]
        assert made.exists(f"item {lost}")


def actions():
    def create(client):
        return BloomFilter("y", 1000, client=client)

    def create_sharded(client):
        return BloomFilter("y", 1000, client=client, shards=3)

    def clear(client):
        made = create(client)
        made.add("gone")
        made.clear()
        assert not made.exists("gone")
        return made

    def clear_sharded(client):
        made = create_sharded(client)
        made.update(map(str, range(30)))
        made.clear()
        assert not any(made.exists_many(map(str, range(30))))
        return made

    def recreate(client):
        made = BloomFilter("y", 1000, client=client, on_lost="recreate", on_unknown="new")
        client.delete("bloomlock:{y}:bits")
        made.add("a")
        return made

    def copy(client):
        made = create_sharded(client)
        made.update(map(str, range(30)))
        for name in client.keys("*copied*"):
            client.delete(name)
        copied = made.copy("copied")
        assert all(copied.exists_many(map(str, range(30))))
        return made

    def delete(client):
        create(client).delete()
        return create(client)

    return {
        made.__name__: made
        for made in (create, create_sharded, clear, clear_sharded, recreate, copy, delete)
    }


@pytest.mark.parametrize("verdict", ["before", "after"])
@pytest.mark.parametrize("action", actions().values(), ids=actions())
def test_creation_and_clearing_survive_any_single_loss(r, proxy, through, action, verdict):
    """Whatever reply is lost, the operation succeeds, or raises and can be repeated."""
    r.script_flush()
    total = commands_of(proxy, lambda: action(through))
    for lost in range(total):
        r.flushall()
        r.script_flush()
        lose_once(proxy, verdict, skip=lost)
        try:
            made = action(through)
        except (redis.ConnectionError, OutcomeUnknownError):
            proxy.judge = lambda _name, _number: "pass"
            made = action(through)
        assert made.add(f"new after {lost}")
        assert BloomFilter.open("y", client=r).exists(f"new after {lost}")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_lost_over_thousands_of_adds(r, proxy, strategy, seed):
    """5 % of the replies are lost, half of them before the command is carried out."""
    chance = random.Random(seed)
    count = 5_000 if strategy == "atomic" else 500
    # A strategy of many commands loses as many adds, not as many commands.
    client = redis.Redis.from_url(proxy.url)
    made = BloomFilter("x", 20_000, client=client, strategy=strategy, on_unknown="new")
    share = 0.05 / max(1, commands_of(proxy, lambda: made.add("warm")) - 1)

    def judge(name, _number):
        if name in HANDSHAKE or chance.random() > share:
            return "pass"
        return chance.choice(["before", "after"])

    proxy.judge = judge
    kept = [item for item in map(str, range(count)) if made.add(item)]
    proxy.judge = lambda _name, _number: "pass"
    assert proxy.lost > 0
    assert kept == [str(number) for number in range(count)]


def test_the_peer_loses_items_in_the_same_way(r, proxy):
    """The control: redis-py's SADD retries by itself and is told "already there" by itself."""
    client = redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 3))
    client.ping()
    lose_once(proxy, "after", {"SADD"})
    assert client.sadd("s", "item") == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("verdict", ["before", "after"])
def test_the_same_for_asyncio(r, proxy, strategy, verdict):
    async def run():
        client = redis.asyncio.Redis.from_url(proxy.url)
        made = await AsyncBloomFilter("x", 2000, client=client, strategy=strategy)
        await made.add("warm")
        # The scripts of locks may be repeated, and are.
        updates = (
            {"EXEC"}
            if strategy == "lock"
            else {"BITFIELD", "EVALSHA", "EXEC", "SETBIT", "BF.INSERT"}
        )
        lose_once(proxy, verdict, updates)
        with pytest.raises(OutcomeUnknownError):
            await made.add("item")
        lose_once(proxy, verdict)
        assert await made.exists("warm")
        await client.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("on_unknown", ["raise", "new"])
@pytest.mark.parametrize(
    ("strategy", "layout"),
    [*itertools.product(BITMAPS, ["classic", "blocked"]), ("native", "classic")],
)
def test_an_update_is_repeated_on_every_way(r, proxy, through, strategy, layout, on_unknown):
    made = BloomFilter("x", 5000, 1e-3, client=through, strategy=strategy, layout=layout,
                       shards=2, on_unknown=on_unknown)  # fmt: skip
    only_items = strategy in ("lock", "native")
    for route in ("items",) if only_items else ("items", "script", "bitmap", "auto"):
        warm = [f"warm {route} {number}" for number in range(40)]
        total = commands_of(proxy, lambda: made.update(warm, route=route))  # noqa: B023
        for verdict in ("before", "after"):
            for skip in (0, total // 2, total - 3):
                batch = [f"{route} {verdict} {skip} {number}" for number in range(40)]
                state = lose_once(proxy, verdict, skip=skip)
                made.update(batch, route=route)
                # How many commands there are depends on scripts and locks.
                assert state["done"] or skip
                assert all(made.exists_many(batch))
                forget_locks(r)


@pytest.mark.parametrize("on_unknown", ["raise", "new"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_update_that_cannot_be_repeated_says_so(r, proxy, through, strategy, on_unknown):
    made = BloomFilter("x", 5000, client=through, strategy=strategy, on_unknown=on_unknown)
    first = made.add_many(["a", "b"])
    sent = []
    last = "BITFIELD", "EVALSHA", "EVAL", "SETBIT", "MULTI", "BF.INSERT"

    def judge(name, _number):
        # Of the lock strategy the locks are had, and the transaction is lost.
        if strategy == "lock" and name in {"EVALSHA", "EVAL"}:
            return "pass"
        sent.append(name in last)
        return "before" if name in last else "pass"

    proxy.judge = judge
    with pytest.raises(OutcomeUnknownError, match="each time when 300 items .* harmless") as caught:
        made.update([str(number) for number in range(300)], route="items")
    assert caught.value.added == 0
    assert caught.value.results == []
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert sum(sent) == 3
    proxy.judge = lambda _name, _number: "pass"
    forget_locks(r)
    assert first == [True, True]
    made.update([str(number) for number in range(300)], route="items")
    assert all(made.exists_many([str(number) for number in range(300)]))


def test_an_update_that_was_never_sent_is_not_unknown(tmp_path):
    with PrivateServer() as private:
        made = BloomFilter("x", 5000, client=private.url, on_unknown="new")
        made.update(["a"])
    with pytest.raises(redis.ConnectionError) as caught:
        made.update([str(number) for number in range(300)], route="bitmap")
    assert not isinstance(caught.value, OutcomeUnknownError)
    with pytest.raises(redis.ConnectionError):
        made.add("b")


def test_a_bad_network_does_not_stop_an_update_that_gets_on(r, proxy, through):
    """A third of a batch gets through each time, so more than three replies may be lost."""
    made = BloomFilter("x", 50_000, client=through, num_hashes=16)
    batch = [str(number) for number in range(6000)]
    commands = []

    def judge(name, _number):
        commands.append(name)
        return "after" if name == "BITFIELD" and commands.count("BITFIELD") % 20 == 0 else "pass"

    proxy.judge = judge
    made.update(batch, route="items")
    assert proxy.lost > 4
    assert all(made.exists_many(batch))


def test_how_often_an_update_is_repeated():
    lost = ConnectionLost(redis.ConnectionError(), sent=True, replies=[])
    unsent = ConnectionLost(redis.ConnectionError(), sent=False, replies=[])
    late = ConnectionLost(redis.TimeoutError(), sent=True, replies=[])
    repeats = Repeats()
    assert repeats.pause([unsent], answered=False) is None
    assert not repeats.sent
    assert repeats.pause([lost, unsent], answered=True) == 0
    assert repeats.pause([lost], answered=False) == 0.2
    assert repeats.sent
    assert repeats.pause([lost], answered=True) == 0
    assert [repeats.pause([lost], answered=False) for _ in range(2)] == [0.2, None]
    slow = Repeats()
    assert [slow.pause([late], answered=False) for _ in range(2)] == [0, None]
