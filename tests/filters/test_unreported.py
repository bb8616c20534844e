"""An item that was added and not reported is reported as new, however its next call ends."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import redis
import redis.asyncio
from proxy import HANDSHAKE

from bloomlock import (
    AsyncBloomFilter,
    BatchError,
    BloomFilter,
    CapacityError,
    FilterLostError,
    OutcomeUnknownError,
)

STRATEGIES = ("atomic", "transaction")
ITEMS = [str(number) for number in range(1000)]


def into_the_next_generation(made, r, items=ITEMS):
    """Add items to a generation that the object does not know, so that none is reported."""
    BloomFilter.open("x", client=r).clear()
    with pytest.raises(FilterLostError) as caught:
        made.add_many(items, route="items")
    assert not any(caught.value.results)
    made.reattach()
    there = [item for item in items if made.exists(item)]
    assert len(there) > 300
    return there


def at_command(number, do):
    commands = []

    def judge(name, _number):
        if name not in HANDSHAKE:
            commands.append(name)
            if len(commands) == number:
                return do() or "pass"
        return "pass"

    return judge


@pytest.mark.parametrize("trouble", ["lost", "refused"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_troubles_in_a_row(r, proxy, strategy, trouble):
    with BloomFilter("x", 20_000, client=proxy.url, strategy=strategy) as made:
        there = into_the_next_generation(made, r)
        number = 4 if strategy == "atomic" else 5000
        refuse = lambda: r.config_set("maxmemory", 1) and "pass"  # noqa: E731
        proxy.judge = at_command(number, refuse if trouble == "refused" else lambda: "after")
        kind = OutcomeUnknownError
        if trouble == "refused":
            kind = BatchError if strategy == "atomic" else redis.exceptions.OutOfMemoryError
        try:
            with pytest.raises(kind) as caught:
                made.add_many(there, route="items")
        finally:
            proxy.judge = lambda _name, _number: "pass"
            r.config_set("maxmemory", 0)
        results = getattr(caught.value, "results", [])
        assert False not in results
        known = results.count(True)
        assert known < len(there)
        # (Where a write fails, replies that had come may be lost with it.)
        assert known or strategy != "atomic" or trouble == "lost"
        left = [item for index, item in enumerate(there) if results[index : index + 1] != [True]]
        # What the lost commands did is not known; nobody else has offered any of these.
        assert made.add_many(left) == [True] * len(left)
        assert not any(made.add_many(there))


def test_a_loss_and_a_clear_in_one_batch(r, proxy):
    """One shard is found in the next generation, the reply of another is lost."""
    items = ITEMS[:200]
    with BloomFilter("x", 20_000, client=proxy.url, shards=4, on_lost="recreate") as made:
        other = BloomFilter.open("x", client=r)
        for lost in range(1, 12):
            other.clear()
            proxy.judge = at_command(lost, lambda: "after")
            told = []
            with contextlib.suppress(OutcomeUnknownError):
                try:
                    told = made.add_many(items, route="items")
                except OutcomeUnknownError as error:
                    told = error.results
                    raise
            proxy.judge = lambda _name, _number: "pass"
            assert False not in told
            left = items[len(told) :]
            assert made.add_many(left) == [True] * len(left)


def test_a_full_filter_reports_them_too(r):
    made = BloomFilter("x", 40, 1e-6, client=r, on_full="raise")
    # A nearly full filter is asked before it is added to, so this is not easily come by.
    items = ["a", "b", "c", *(f"more {number}" for number in range(400))]
    BloomFilter.open("x", client=r).update(items)
    made._state.unreported.remember(made._state.view.header, [b"a", b"b", b"c"])
    made._state.fill.refusing = True
    with pytest.raises(CapacityError) as caught:
        made.add_many(["a", "more 1", "new", "b"])
    assert caught.value.results == [True, False]
    assert made.add_many(["a", "b"]) == [False, True]
    with pytest.raises(CapacityError):
        made.add("new")
    assert made.add("c") is True
    assert made.add("c") is False


def test_an_update_takes_none_away(r):
    made = BloomFilter("x", 2000, client=r)
    BloomFilter.open("x", client=r).clear()
    with pytest.raises(FilterLostError):
        made.add("a")
    made.reattach()
    made.update(["a"])
    assert made.add("a") is True
    assert made.add("a") is False


@pytest.mark.parametrize("trouble", ["lost", "refused"])
def test_single_adds_of_asyncio(r, proxy, trouble):
    async def run():
        client = redis.asyncio.Redis.from_url(proxy.url)
        made = await AsyncBloomFilter("x", 20_000, client=client)
        opened = BloomFilter.open("x", client=r)
        await made.add("warm")
        opened.clear()
        items = ITEMS[:400]
        told = await asyncio.gather(*map(made.add, items), return_exceptions=True)
        assert True not in told
        await made.reattach()
        there = [item for item, seen in zip(items, opened_again(r, items), strict=True) if seen]
        assert there
        refuse = lambda: r.config_set("maxmemory", 1) and "pass"  # noqa: E731
        proxy.judge = at_command(2, refuse if trouble == "refused" else lambda: "after")
        try:
            told = await asyncio.gather(*map(made.add, there), return_exceptions=True)
        finally:
            proxy.judge = lambda _name, _number: "pass"
            r.config_set("maxmemory", 0)
        assert False not in told
        left = [item for item, new in zip(there, told, strict=True) if new is not True]
        again = await asyncio.gather(*map(made.add, left))
        # Those whose reply was lost may be reported once more, and never to none.
        assert all(again) or any(isinstance(new, OutcomeUnknownError) for new in told)
        await client.aclose()

    asyncio.run(run())


def opened_again(r, items):
    return BloomFilter.open("x", client=r).exists_many(items)


def test_a_thread_that_comes_late_reports_it(r):
    """It began before the item was noted, and its own add finds the item there."""
    made = BloomFilter("x", 2000, client=r)
    made._state.unreported.remember(made._state.view.header, [b"a"])
    BloomFilter.open("x", client=r).add("a")
    assert made.add("a") is True
    assert made.add("a") is False
