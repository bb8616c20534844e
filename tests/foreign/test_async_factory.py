"""An async factory under AsyncBloomFilter: one asyncio.Lock for each name within a process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, defaultdict

import pytest
import redis
from foreign.half_way import HalfWay, lock_strategy
from proxy import Proxy

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ConfigurationError,
    LockStrategy,
    OutcomeUnknownError,
)

ITEMS = [f"https://example.org/{number}" for number in range(40)]
PATIENCE = 60


@pytest.fixture
def server(valkey):
    """A direct client of a server that has one filter."""
    with redis.Redis.from_url(valkey) as made:
        made.flushall()
        BloomFilter("x", 5_000, 1e-9, client=made).add("first")
        yield made


def filter_at(url, factory):
    return AsyncBloomFilter("x", 5_000, 1e-9, client=url, strategy=LockStrategy(factory))


def test_tasks_of_one_filter_have_one_winner(server, valkey):
    async def run():
        locks = defaultdict(asyncio.Lock)
        async with filter_at(valkey, locks.__getitem__) as made:
            answers = await asyncio.gather(*(made.add(item) for item in ITEMS * 5))
            assert await made.add_many(ITEMS[:10]) == [False] * 10
        assert not any(lock.locked() for lock in locks.values())
        return Counter(item for item, new in zip(ITEMS * 5, answers, strict=True) if new)

    assert asyncio.run(run()) == Counter(ITEMS)


async def race_half_way(valkey, factory, patience):
    """Two filters add the same items, the first stopped in the middle of each.

    Returns the winners of each item, and on how many the second came in meanwhile.
    """
    bits = BloomFilter.open("x", client=valkey).num_hashes
    half_way = HalfWay(bits, len(ITEMS), patience)

    async def offer(url):
        strategy = lock_strategy(factory, pieces=True)
        async with AsyncBloomFilter("x", 5_000, 1e-9, client=url, strategy=strategy) as made:
            return [item for item in ITEMS if await made.add(item)]

    with Proxy(valkey, half_way.stopped) as one, Proxy(valkey, half_way.passing) as other:
        won = await asyncio.gather(offer(one.url), offer(other.url))
    return Counter(item for each in won for item in each), half_way.met


def test_one_stopped_half_way_keeps_the_other_out(server, valkey):
    async def run():
        locks = defaultdict(asyncio.Lock)
        return await race_half_way(valkey, locks.__getitem__, 0.02)

    assert asyncio.run(run()) == (Counter(ITEMS), 0)


def test_without_a_lock_each_item_has_two_winners(server, valkey):
    # The control: the same race, and no item has exactly one winner.
    outcome = asyncio.run(race_half_way(valkey, lambda _name: contextlib.nullcontext(), PATIENCE))
    assert outcome == (Counter(ITEMS + ITEMS), len(ITEMS))


def test_an_error_on_entering_is_raised_and_one_on_leaving_means_not_known(server, valkey):
    entering, leaving = LookupError("no quorum"), LookupError("session lost")

    @contextlib.asynccontextmanager
    async def no_way_in(_name):
        raise entering
        yield

    @contextlib.asynccontextmanager
    async def no_way_out(_name):
        yield
        raise leaving

    async def run():
        before = {key: server.dump(key) for key in server.scan_iter()}
        async with filter_at(valkey, no_way_in) as made:
            with pytest.raises(LookupError) as caught:
                await made.add("item")
        assert caught.value is entering
        assert {key: server.dump(key) for key in server.scan_iter()} == before
        async with filter_at(valkey, no_way_out) as made:
            with pytest.raises(OutcomeUnknownError, match="session lost") as unknown:
                await made.add("item")
        assert unknown.value.__cause__ is leaving

    asyncio.run(run())


@pytest.mark.parametrize("wrong", [None, "name", threading.Lock()], ids=["None", "name", "lock"])
def test_a_factory_that_gives_no_async_context_manager_is_told_so(server, valkey, wrong):
    async def run():
        async with filter_at(valkey, lambda _name: wrong) as made:
            with pytest.raises(ConfigurationError, match="factory must") as caught:
                await made.add("item")
        assert repr(wrong) in str(caught.value)
        assert "asynchronous context manager" in str(caught.value)

    asyncio.run(run())


@pytest.mark.parametrize("who", ["holder", "waiter"])
def test_a_cancelled_add_leaves_no_lock_behind(server, valkey, who):
    half, go_on = threading.Event(), threading.Event()

    def judge(name, _number):
        if name == "SETBIT":
            half.set()
            go_on.wait(PATIENCE)
        return "pass"

    async def run(url):
        locks, names, second = defaultdict(asyncio.Lock), [], asyncio.Event()

        def factory(name):
            names.append(name)
            if len(names) == 2:
                second.set()
            return locks[name]

        async with filter_at(url, factory) as made:
            holder = asyncio.create_task(made.add("item"))
            await asyncio.to_thread(half.wait, PATIENCE)
            waiter = asyncio.create_task(made.add("item"))
            await second.wait()
            await asyncio.sleep(0.05)
            cancelled, other = (holder, waiter) if who == "holder" else (waiter, holder)
            cancelled.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert await other in {True, False}
            assert [lock.locked() for lock in locks.values()] == [False]
            assert await made.add("item") is False

    with Proxy(valkey, judge) as proxy:
        asyncio.run(run(proxy.url))
