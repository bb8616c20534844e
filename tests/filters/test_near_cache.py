"""The near-cache under a filter: which answers need no round trip, and which are never given."""

from __future__ import annotations

import asyncio
import random
import threading
from functools import partial

import pytest
import redis
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    OutcomeUnknownError,
)
from bloomlock.commands import ConnectionLost, Flight, Request
from bloomlock.filters import answers

STRATEGIES = ("atomic", "lua", "transaction", "pipeline", "lock")
MANY = 10_000
META = "bloomlock:{x}:meta"


@pytest.fixture
def alone(valkey):
    """A client that is not told of changes: what it knows is bounded by time alone."""
    with redis.Redis.from_url(valkey) as admin:
        admin.flushall()
        admin.acl_setuser("alone", enabled=True, nopass=True, keys="*", channels="*",
                          commands=["+@all", "-client|tracking"])  # fmt: skip
        with redis.Redis.from_url(valkey, username="alone", password="any") as made:  # noqa: S106
            yield made
        admin.acl_deluser("alone")


class Clock:
    """A clock that moves by hand."""

    def __init__(self, made):
        self.now = 1000.0
        made._core.caching.clock = self
        made._core.forget()

    def __call__(self):
        return self.now


def trips(client):
    """Commands that tested or set bits, whatever the strategy."""
    names = ("bitfield", "evalsha", "setbit", "getbit")
    stats = client.info("commandstats").items()
    return sum(value["calls"] for name, value in stats if name.split("_")[1] in names)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_positive_answer_is_asked_for_once(valkey, strategy):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 1000, client=client, strategy=strategy, near_cache=MANY)
        other = BloomFilter("x", 1000, client=client, strategy=strategy)
        other.add("there")
        assert made.add("new") is True
        assert made.exists("there") is True
        assert made.exists("not there") is False
        before = trips(client)
        for _ in range(3):
            assert made.add("new") is False
            assert made.add("there") is False
            assert "new" in made
            assert made.exists("there") is True
        assert trips(client) == before
        other.add("not there")
        assert made.exists("not there") is True
        assert trips(client) > before
        made.close()


def test_the_asyncio_twin(valkey):
    async def run():
        shared = redis.asyncio.Redis.from_url(valkey)
        made = await AsyncBloomFilter("x", 1000, client=shared, near_cache=MANY)
        assert await made.add("new") is True
        assert await asyncio.gather(*(made.add(f"{n % 50}") for n in range(100))) == [
            n < 50 for n in range(100)
        ]
        before = trips(client)
        assert await made.add("new") is False
        assert await made.exists("new") is True
        answers = await asyncio.gather(*(made.add(f"{n % 50}") for n in range(100)))
        assert not any(answers)
        assert trips(client) == before
        await made.clear()
        assert await asyncio.gather(*(made.add(f"{n % 50}") for n in range(100))) == [
            n < 50 for n in range(100)
        ]
        await made.delete()
        with pytest.raises(FilterLostError):
            await made.add("new")
        await made.close()
        await shared.aclose()

    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        asyncio.run(run())


def test_off_by_default(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 1000, client=client)
        made.add("a")
        before = trips(client)
        made.add("a")
        assert trips(client) == before + 1


def test_a_clear_by_another_client_is_noticed_in_time(alone):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY, max_staleness=2.0)
    clock = Clock(made)
    made.add("a")
    clock.now += 1.5
    assert made.exists("b") is False
    clock.now += 0.5
    BloomFilter.open("x", client=alone).clear()
    clock.now += 1.499
    assert made.add("a") is False
    clock.now += 0.001
    with pytest.raises(FilterLostError):
        made.exists("a")
    clock.now -= 1
    for carry_out in (made.exists, made.add):
        with pytest.raises(FilterLostError):
            carry_out("a")
    made.reattach()
    assert made.exists("a") is False
    assert made.add("a") is True


def test_recreate_goes_on_in_the_new_generation(alone):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY, on_lost="recreate")
    clock = Clock(made)
    assert made.add_many(["a", "b"]) == [True, True]
    BloomFilter.open("x", client=alone).clear()
    clock.now += 1
    assert made.add("a") is True
    assert made.add("b") is True
    assert made.add("a") is False


def slowly(core, clock, seconds):
    """Carry out a core while time goes by between request and reply."""
    step = next(core)
    try:
        while True:
            answer = yield step
            if isinstance(step, Request):
                clock.now += seconds
            step = core.send(answer)
    except StopIteration as stop:
        return stop.value


def test_time_counts_from_before_the_request(alone):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY, max_staleness=1.0)
    clock = Clock(made)
    for carry_out in (answers.add, answers.exists):
        made._runtime.run(slowly(carry_out(made._core, "a"), clock, 0.9))
        before = trips(alone)
        clock.now += 0.099
        assert made.exists("a")
        assert trips(alone) == before
        clock.now += 0.001
        assert made.exists("a")
        assert trips(alone) == before + 1


def until_request(core):
    """Return the first request of a core."""
    step = next(core)
    while not isinstance(step, (Request, Flight)):
        step = core.send(None)
    return step


def only(step):
    return (yield step)


def hold(core, runtime):
    """Carry out a core up to its request, but keep back the reply; return what sends it."""
    replies = runtime.run(only(until_request(core)))

    def go_on():
        with pytest.raises(StopIteration) as stop:
            core.send(replies)
        return stop.value.value

    return go_on


@pytest.mark.parametrize("carry_out", [answers.add, answers.exists])
@pytest.mark.parametrize("how", ["clear", "replace", "reattach"])
def test_a_late_answer_stays_in_its_generation(alone, how, carry_out):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY)
    made.add("a")
    go_on = hold(carry_out(made._core, "a"), made._runtime)
    if how == "clear":
        made.clear()
    elif how == "replace":
        made.delete()
        made.reattach()
    else:
        BloomFilter.open("x", client=alone).clear()
        made.reattach()
    assert go_on() is (carry_out is answers.exists)
    assert made.exists("a") is False
    assert made.add("a") is True
    assert made.add("a") is False


def test_a_late_answer_is_not_given_after_a_loss(alone):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY)
    made.add("a")
    go_on = hold(answers.exists(made._core, "a"), made._runtime)
    BloomFilter.open("x", client=alone).clear()
    with pytest.raises(FilterLostError):
        made.exists("b")
    assert go_on() is True
    for _ in range(2):
        with pytest.raises(FilterLostError):
            made.exists("a")


def test_what_is_owed_is_told_new_although_it_is_there(alone):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY)
    clock = Clock(made)
    BloomFilter.open("x", client=alone).clear()
    clock.now += 1
    with pytest.raises(FilterLostError):
        made.add("a")
    made.reattach()
    assert made.exists("a") is True
    assert made.add("a") is True
    assert made.add("a") is False


def lose_reply(core):
    """Carry out a core whose request got no reply."""
    until_request(core)
    try:
        core.throw(ConnectionLost(RedisConnectionError("lost"), sent=True, replies=[]))
    except StopIteration as stop:
        return stop.value


def test_a_reply_that_was_lost_is_nothing_to_keep(alone):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY, on_unknown="new")
    made.add("b")
    assert made._core.near.knows("b")
    assert lose_reply(answers.add(made._core, "a")) is True
    assert made.exists("a") is False


@pytest.mark.parametrize(
    ("carry_out", "items"),
    [(answers.add, "c"), (answers.add_many, ["c", "d"]), (answers.add_many, ["a", "c"])],
)
def test_after_a_failure_the_server_is_asked_first(alone, carry_out, items):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY)
    made.add("a")
    with pytest.raises(OutcomeUnknownError):
        lose_reply(carry_out(made._core, items))
    before = trips(alone)
    assert made.add("a") is False
    assert trips(alone) == before + 1
    assert made.add("a") is False
    assert trips(alone) == before + 1


def test_a_full_filter_still_knows_what_it_knows(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 20, client=client, near_cache=MANY, on_full="raise")
        added = []
        with pytest.raises(CapacityError):
            for number in range(1000):
                made.add(str(number))
                added.append(str(number))
        before = trips(client)
        assert [made.add(item) for item in added] == [False] * len(added)
        assert trips(client) == before


@pytest.mark.parametrize("how", ["clear", "delete", "copy"])
def test_nothing_is_kept_across_what_the_object_does_itself(alone, how):
    made = BloomFilter("x", 1000, client=alone, near_cache=5, max_staleness=0.5)
    Clock(made)
    made.add("a")
    if how == "clear":
        made.clear()
        assert made.add("a") is True
    elif how == "delete":
        made.delete()
        with pytest.raises(FilterLostError):
            made.add("a")
    else:
        copied = made.copy("y")
        made.clear()
        assert copied.exists("a") is True
        assert made.exists("a") is False
        assert copied._core.caching.size == 5
        assert copied._core.caching.max_staleness == 0.5


@pytest.mark.parametrize("how", ["clear", "delete"])
def test_nor_by_the_asyncio_twin(alone, how):
    async def run():
        url = alone.connection_pool.connection_kwargs
        shared = redis.asyncio.Redis(
            unix_socket_path=url["path"],
            username="alone",
            password="any",  # noqa: S106
        )
        made = await AsyncBloomFilter("x", 1000, client=shared, near_cache=5)
        Clock(made)
        await made.add("a")
        if how == "clear":
            await made.clear()
            assert await made.add("a") is True
        else:
            await made.delete()
            with pytest.raises(FilterLostError):
                await made.add("a")
        await made.close()
        await shared.aclose()

    asyncio.run(run())


def offer(made, items, seed, wins, index):
    chance = random.Random(seed + index)
    for item in chance.sample(items, len(items)):
        if made.add(item):
            wins.append(item)
        assert made.exists(item)


def together(count, work, *others):
    """Run `work(index)` in threads, and the others beside them; return when all are done."""
    failed: list[BaseException] = []

    def guarded(run, *arguments):
        try:
            run(*arguments)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work, index)) for index in range(count)]
    threads += [threading.Thread(target=guarded, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "lock"])
@pytest.mark.parametrize("size", [7, MANY])
def test_threads_that_share_one_object(valkey, strategy, size):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        made = BloomFilter("x", 5000, client=client, strategy=strategy, near_cache=size)
        items = [str(number) for number in range(150)]
        wins: list[str] = []
        together(4, partial(offer, made, items * 2, seed, wins))
        assert sorted(wins) == sorted(items)


@pytest.mark.parametrize("by", ["the object", "another client", "deletion"])
def test_after_a_clear_every_item_is_new_once(valkey, alone, by):
    """Clears in the middle of adds; after each of them exactly one winner for each item."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    made = BloomFilter("x", 5000, client=alone, near_cache=MANY, on_lost="recreate")
    clock = Clock(made)
    other = BloomFilter.open("x", client=alone)
    items = [str(number) for number in range(100)]

    def clear():
        if by == "the object":
            made.clear()
        elif by == "another client":
            other.clear()
        else:
            other.delete()
            BloomFilter("x", 5000, client=alone)

    def add_anyhow(index):
        offer_anyhow = random.Random(seed + index)
        for item in offer_anyhow.choices(items, k=100):
            made.add(item)

    for number in range(8):
        together(3, add_anyhow, clear)
        clear()
        if by != "the object":
            clock.now += 1
        wins: list[str] = []
        together(3, partial(offer, made, items, seed + number, wins))
        assert sorted(wins) == sorted(items)


def test_bad_parameters(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        for face in (BloomFilter, AsyncBloomFilter):
            with pytest.raises(ConfigurationError, match="near_cache must be"):
                face("x", 1000, client=client, near_cache=-1)
            with pytest.raises(ConfigurationError, match="max_staleness must be"):
                face("x", 1000, client=client, near_cache=1, max_staleness=0)
        with pytest.raises(ConfigurationError, match="max_staleness must be"):
            BloomFilter.open("x", client=client, max_staleness=-1)
        assert client.keys("*") == []


@pytest.mark.parametrize("route", ["items", "bitmap", "auto"])
def test_batches_ask_only_for_what_is_not_kept(valkey, route):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 5000, 1e-9, client=client, near_cache=MANY)
        seen: set[str | bytes] = set()

        def offer(item):
            data = item.encode() if isinstance(item, str) else item
            return data not in seen and not seen.add(data)

        for size in (1, 2, 40, 300):
            for _ in range(5):
                items = [
                    text if chance.random() < 0.7 else text.encode()
                    for text in (str(chance.randrange(600)) for _ in range(size))
                ]
                asks = made.exists_many(iter(items), route=route)
                assert asks == [(i.encode() if isinstance(i, str) else i) in seen for i in items]
                assert made.add_many(items, route=route) == [offer(item) for item in items]
                before = trips(client)
                assert made.add_many(items, route=route) == [False] * size
                assert made.exists_many(items, route=route) == [True] * size
                made.update(items, route=route)
                assert trips(client) == before
                assert made.add(items[0]) is False
                assert trips(client) == before


def test_a_batch_is_answered_in_order_around_an_error(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 20, client=client, near_cache=MANY, on_full="raise")
        kept = []
        with pytest.raises(CapacityError):
            for number in range(1000):
                made.add(str(number))
                kept.append(str(number))
        BloomFilter.open("x", client=client)
        made._core.near._young[str] -= {"1", "3"}
        before = made.exists_many(["0", "1", "2"])
        assert before == [True] * 3
        made._core.near._young[str] -= {"1", "3"}
        with pytest.raises(CapacityError) as caught:
            made.add_many(["0", "1", "2", "3", "4", "new", "5", "6"])
        assert caught.value.results == [False] * 5
        with pytest.raises(TypeError, match="5") as failed:
            made.add_many(["0", "1", "2", "3", "4", 5])
        assert failed.value.results == []


def test_what_is_owed_is_told_by_batches_too(alone):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY)
    clock = Clock(made)
    made.add("b")
    BloomFilter.open("x", client=alone).clear()
    clock.now += 1
    with pytest.raises(FilterLostError):
        made.add_many(["a", "b"])
    made.reattach()
    assert made.exists_many(["a", "b"]) == [True, True]
    assert made.add_many(["a", "b", "a"]) == [True, True, False]
    assert made.add_many(["a", "b"]) == [False, False]


@pytest.mark.parametrize("carry_out", [answers.add_many, answers.exists_many])
def test_a_late_batch_stays_in_its_generation(alone, carry_out):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY)
    made.update(["a", "b"])
    go_on = hold(carry_out(made._core, ["a", "b"], "items"), made._runtime)
    made.clear()
    assert go_on() == [carry_out is answers.exists_many] * 2
    assert made.exists_many(["a", "b"]) == [False, False]
    assert made.add_many(["a", "b"]) == [True, True]


def test_an_add_of_a_batch_whose_reply_was_lost_is_nothing_to_keep(alone):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY, on_unknown="new")
    made.add("b")
    core = answers.add_many(made._core, ["a", "b"], "items")
    assert lose_reply(core) == [True, False]
    assert made.exists_many(["a", "b"]) == [False, True]


@pytest.mark.parametrize("on_lost", ["recreate", "raise"])
def test_a_batch_that_finds_the_filter_cleared_takes_back_what_was_kept(alone, on_lost):
    made = BloomFilter("x", 1000, client=alone, near_cache=MANY, on_lost=on_lost)
    Clock(made)
    assert made.add_many(["a", "b"]) == [True, True]
    BloomFilter.open("x", client=alone).clear()
    assert made.add_many(["a", "b"]) == [False, False]
    if on_lost == "recreate":
        assert made.add_many(["a", "c", "b", "c"]) == [True, True, True, False]
        assert made.add_many(["a", "b", "c"]) == [False] * 3
    else:
        with pytest.raises(FilterLostError) as caught:
            made.exists_many(["a", "c", "b"])
        assert True not in caught.value.results
        with pytest.raises(FilterLostError):
            made.add_many(["a", "b"])
