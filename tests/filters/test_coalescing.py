"""Concurrent calls on one asyncio filter share round trips; each has its own exact answer."""

from __future__ import annotations

import asyncio
import random

import pytest
from lock_tools import commands_so_far, other_tasks
from strategies import STRATEGIES

from bloomlock import AsyncBloomFilter
from bloomlock.filters import coalescing


def filter_at(url, **options):
    # Large enough for no batch here to be sent as one bitmap.
    return AsyncBloomFilter("x", 200_000, 1e-9, client=url, **options)


def updates(r):
    """How many commands have set bits in filters of strategy "atomic"."""
    return commands_so_far(r, "bitfield")


def test_alone_each_call_is_one_request_of_its_own_task(r, valkey):
    async def run():
        async with filter_at(valkey) as made:
            before, asked = updates(r), commands_so_far(r, "bitfield_ro")
            for number in range(20):
                assert await made.add(str(number))
                assert not other_tasks()
            assert all([await made.exists(str(number)) for number in range(20)])
            assert updates(r) - before == 20
            assert commands_so_far(r, "bitfield_ro") - asked == 20

    asyncio.run(run())


def test_a_thousand_tasks_share_their_requests(r, valkey):
    async def run():
        others = r.info("clients")["connected_clients"]
        async with filter_at(valkey) as made:
            before = updates(r)
            answers = await asyncio.gather(*(made.add(str(n)) for n in range(1000)))
            assert answers == [True] * 1000
            # 30 items fill a command; the first call went alone.
            assert updates(r) - before < 50
            assert r.info("clients")["connected_clients"] <= others + 1
            assert all(await asyncio.gather(*(made.exists(str(n)) for n in range(1000))))
            assert not other_tasks()
            assert not coalescing._TASKS

    asyncio.run(run())


@pytest.mark.parametrize(
    ("strategy", "near_cache"), [*((strategy, 0) for strategy in STRATEGIES), ("atomic", 50)]
)
def test_calls_are_answered_in_their_order(r, valkey, strategy, near_cache, seed):
    """Every answer is what the calls one after the other would give."""
    chance = random.Random(seed)

    async def run():
        async with filter_at(valkey, strategy=strategy, near_cache=near_cache) as made:
            assert await asyncio.gather(
                made.add("first"),
                made.exists("x"),
                made.add("x"),
                made.exists("x"),
                made.add(b"x"),
                made.exists(b"x"),
                made.exists("y"),
            ) == [True, False, True, True, False, True, False]
            known = {"first", "x"}
            for size in (2, 3, 30, 300):
                calls, expected = [], []
                for _ in range(size):
                    item = str(chance.randrange(2 * size))
                    write = chance.random() < 0.5
                    calls.append(made.add(item) if write else made.exists(item))
                    expected.append((item in known) != write)
                    known |= {item} if write else set()
                assert await asyncio.gather(*calls) == expected

    asyncio.run(run())


def test_a_batch_is_bounded_and_the_next_goes_on(r, valkey, monkeypatch):
    monkeypatch.setattr(coalescing, "CALLS_PER_BATCH", 25)

    async def run():
        async with filter_at(valkey) as made:
            before = updates(r)
            assert await asyncio.gather(*(made.add(str(n)) for n in range(100))) == [True] * 100
            # One alone, then 99 by twenty-fives, each a command.
            assert updates(r) - before == 1 + 4

    asyncio.run(run())


@pytest.mark.parametrize("wrong", [7, None, "\ud800"], ids=repr)
def test_what_is_no_item_harms_no_other_call(r, valkey, wrong):
    async def run():
        async with filter_at(valkey) as made:
            calls = [made.add("a"), made.add(wrong), made.add("b"), made.exists(wrong)]
            a, error, b, other = await asyncio.gather(*calls, return_exceptions=True)
            assert a is b is True
            assert isinstance(error, (TypeError, ValueError))
            assert isinstance(other, (TypeError, ValueError))
            assert not isinstance(
                await asyncio.gather(made.add(wrong), return_exceptions=True), bool
            )
            assert await asyncio.gather(made.exists("a"), made.exists("b")) == [True, True]

    asyncio.run(run())


def test_first_uses_at_the_same_time_connect_once(r, valkey):
    async def run():
        made = filter_at(valkey)
        before = r.info("stats")["total_connections_received"]
        assert sum(await asyncio.gather(*(made.add("a") for _ in range(200)))) == 1
        # The first one only asks whether a server answers at the URL.
        assert r.info("stats")["total_connections_received"] - before == 2
        await made.close()

    asyncio.run(run())
