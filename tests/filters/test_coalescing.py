"""Concurrent calls on one asyncio filter share round trips; each has its own exact answer."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest
import redis
import redis.asyncio
from lock_tools import commands_so_far, other_tasks
from strategies import STRATEGIES, maker_of

from bloomlock import AsyncBloomFilter, BloomFilter
from bloomlock.errors import CapacityError, FilterLostError, OutcomeUnknownError
from bloomlock.filters import coalescing
from bloomlock.strategies.lock import UPDATE

UPDATES = {"BITFIELD", "EVALSHA", "EXEC", "SETBIT", "BF.INSERT"}


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


# -- calls that share a round trip which fails ---------------------------------------------------


async def told(*calls):
    return await asyncio.gather(*calls, return_exceptions=True)


def check_own_errors(errors, kind):
    """Each is an error of one call, and of that call alone."""
    assert len({id(error) for error in errors}) == len(errors)
    for error in errors:
        assert type(error) is kind
        assert len(getattr(error, "results", ())) <= 1
        assert not getattr(error, "__notes__", ())
        depth, trace = 0, error.__traceback__
        while trace is not None:
            depth, trace = depth + 1, trace.tb_next
        assert depth < 30


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("verdict", ["before", "after"])
def test_a_lost_reply_is_unknown_to_those_whom_it_concerned(r, proxy, strategy, verdict):
    # With locks none goes alone, and whatever is no update may be repeated.
    number = 1 if strategy == "lock" else 2

    async def run():
        async with filter_at(proxy.url, strategy=strategy) as made:
            await made.add("seen")
            count = Counter()

            def judge(name, _number):
                is_update = name in UPDATES
                if strategy == "lock":
                    is_update = UPDATE.digest.encode() in proxy.command
                count[is_update] += 1
                return verdict if is_update and count[True] == number else "pass"

            proxy.judge = judge
            items = [f"item {n}" for n in range(50)]
            answers = await told(*map(made.add, items))
            unknown = [error for error in answers if error is not True]
            assert unknown
            check_own_errors(unknown, OutcomeUnknownError)
            assert all(error.results == [None] for error in unknown)
            assert all("when an item was added" in str(error) for error in unknown)
            assert all(isinstance(error.__cause__, redis.ConnectionError) for error in unknown)
            known = [item for item, new in zip(items, answers, strict=True) if new is True]
            assert all(await made.exists_many(known))

    asyncio.run(run())


def test_each_part_of_a_batch_has_its_own_fate(r, proxy, monkeypatch):
    """What was answered is told, what was cut off is unknown, what was never sent is sent next."""
    monkeypatch.setattr(coalescing, "CALLS_PER_BATCH", 10_000)

    async def run():
        # The strategy that sends a batch in parts, each after the answer to the one before.
        async with filter_at(proxy.url, strategy="pipeline", num_hashes=16) as made:
            await made.exists("attached")
            part = 10_000 // made.num_hashes
            count = Counter()

            def judge(name, _number):
                count[name] += 1
                cut = (1 + part + part // 2) * made.num_hashes
                return "before" if name == "SETBIT" and count[name] == cut else "pass"

            proxy.judge = judge
            answers = await told(*(made.add(str(n)) for n in range(1000)))
            unknown = [n for n, answer in enumerate(answers) if answer is not True]
            assert {type(answers[n]) for n in unknown} == {OutcomeUnknownError}
            assert set(unknown) <= set(range(1 + part, 1 + 2 * part))

    asyncio.run(run())


@pytest.mark.parametrize("strategy", ["atomic", "lock", "native"])
def test_a_cleared_filter_is_lost_to_each_call_and_no_item_is(r, valkey, strategy):
    async def run():
        async with filter_at(valkey, strategy=strategy) as made:
            await made.add("a")
            BloomFilter.open("x", client=r, strategy=maker_of(strategy)).clear()
            items = [f"item {n % 20}" for n in range(60)]
            errors = await told(*map(made.add, items), made.exists("a"))
            check_own_errors(errors, FilterLostError)
            errors = await told(*map(made.add, items))
            check_own_errors(errors, FilterLostError)
            await made.reattach()
            answers = await asyncio.gather(*map(made.add, items))
            # Calls that ended in FilterLostError may have added their items to what is there now.
            assert (
                max(Counter(i for i, new in zip(items, answers, strict=True) if new).values()) == 1
            )
            assert await made.exists_many(items) == [True] * 60

    asyncio.run(run())


def test_a_full_filter_refuses_new_items_only(r, valkey):
    async def run():
        made = AsyncBloomFilter("x", 100, client=valkey, on_full="raise")
        # Numbers, not chance: one in ten thousand fillings would make one of the new items "seen".
        fillers = (f"filler {n}" for n in itertools.count())
        full = 0
        while not full:
            answers = await told(*map(made.add, itertools.islice(fillers, 20)))
            full = sum(isinstance(answer, CapacityError) for answer in answers)
        await made.clear()
        seen = [str(n) for n in range(200)]
        BloomFilter.open("x", client=r).update(seen)
        while not made._state.fill.refusing:
            await told(made.add(next(fillers)))
        for _ in range(2):
            mixed = [item for n in range(50) for item in (seen[n], f"new {n}")]
            answers = await told(*map(made.add, mixed), made.exists(seen[0]))
            assert answers[0::2] == [*([False] * 50), True]
            check_own_errors(answers[1::2], CapacityError)
            assert {tuple(error.results) for error in answers[1::2]} == {()}
        await made.clear()
        assert await asyncio.gather(*(made.add(f"new {n}") for n in range(50))) == [True] * 50
        await made.close()

    asyncio.run(run())
