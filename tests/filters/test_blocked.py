"""The blocked layout on servers: every strategy, the measured rate, others who open it."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import redis
from strategies import BITMAPS

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    CapacityError,
    FilterLostError,
    FilterMismatchError,
    MemoryBloomFilter,
)
from bloomlock.keys import FilterKeys

BITS = "bloomlock:{x}:bits"


def numbered(start: int, end: int) -> list[str]:
    return [f"item {number}" for number in range(start, end)]


@pytest.mark.parametrize("strategy", BITMAPS)
def test_every_strategy_sets_the_same_bits_and_gives_the_same_answers(r, strategy):
    made = BloomFilter("x", 3000, 1e-4, client=r, strategy=strategy, layout="blocked")
    other = BloomFilter.open("x", client=r, strategy="atomic")
    memory = MemoryBloomFilter(3000, 1e-4, layout="blocked")
    # Ten hashes: the lua strategy needs several calls, and a repeat is in another one.
    batch = [*numbered(0, 1000), *numbered(0, 20), "single"]
    assert made.add_many(batch, route="items") == memory.add_many(batch)
    assert made.exists_many(numbered(0, 1500), route="items") == memory.exists_many(
        numbered(0, 1500)
    )
    for item in numbered(990, 1030):
        assert made.exists(item) is memory.exists(item)
        assert made.add(item) is memory.add(item)
        assert other.exists(item)
    assert other.add_many(numbered(1000, 1100)) == memory.add_many(numbered(1000, 1100))
    assert made.info().bits_set == memory.info().bits_set
    assert made.info().estimated_count == len(memory)
    made.clear()
    assert not any(made.exists_many(batch, route="items"))


@pytest.mark.parametrize("strategy", ["atomic", "lua"])
def test_every_kind_of_server(server_url, strategy):
    with redis.Redis.from_url(server_url) as r:
        r.flushall()
        made = BloomFilter("x", 3000, client=r, strategy=strategy, layout="blocked", shards=3)
        items = numbered(0, 1000)
        assert made.add_many([*items, *items], route="items") == [True] * 1000 + [False] * 1000
        assert made.add("one") is True
        assert made.add("one") is False
        assert made.exists_many([*items, "other"], route="items") == [True] * 1000 + [False]
        keys = FilterKeys("x").spread(3)
        assert [r.strlen(keys.bits(shard)) % 64 for shard in range(3)] == [8] * 3


@pytest.mark.parametrize(("error_rate", "probes"), [(1e-2, 100_000), (1e-3, 200_000)])
def test_the_rate_at_capacity_is_the_one_asked_for(r, error_rate, probes):
    made = BloomFilter("x", 20_000, error_rate, client=r, layout="blocked")
    made.update(numbered(0, 20_000))
    false = sum(made.exists_many(f"out {number}" for number in range(probes)))
    deviation = math.sqrt(probes * error_rate)
    # The rate of one filter differs from the mean over all by some hundredths.
    assert abs(false - probes * error_rate) < 4.5 * deviation + 0.05 * probes * error_rate
    info = made.info()
    assert info.layout == "blocked"
    assert info.current_error_rate == pytest.approx(error_rate, rel=0.05)
    assert info.estimated_count == pytest.approx(20_000, rel=0.01)


def test_exactly_its_capacity_fits(r):
    made = BloomFilter("x", 10_000, client=r, layout="blocked", on_full="raise", num_hashes=14)
    made.update(numbered(0, 10_000))
    # The estimate for the classic layout would be 130 items too low.
    assert len(made) == pytest.approx(10_000, abs=60)
    with pytest.raises(CapacityError, match="holds its capacity of 10000 items"):
        for start in range(10_000, 10_200, 10):
            made.add_many(numbered(start, start + 10))
    assert made.exists_many(numbered(10_000, 10_200)).count(True) < 120


def test_whoever_takes_it_for_classic_is_refused(r):
    BloomFilter("x", 1000, client=r, layout="blocked").add("a")
    with pytest.raises(FilterMismatchError, match="layout: stored blocked, asked classic"):
        BloomFilter("x", 1000, client=r)
    opened = BloomFilter.open("x", client=r, on_lost="recreate")
    assert (opened.layout, opened.exists("a")) == ("blocked", True)
    assert "blocked" in repr(opened)
    copied = opened.copy("y")
    assert (copied.layout, copied.exists("a"), copied.exists("b")) == ("blocked", True, False)
    r.delete("bloomlock:{x}:meta", BITS)
    assert opened.add("a") is True
    assert BloomFilter.open("x", client=r).layout == "blocked"
    # What this version does with a layout it does not know is what one without blocks does here.
    r.hset("bloomlock:{x}:meta", "layout", "spiral")
    with pytest.raises(FilterMismatchError, match="damaged descriptor .*not 'spiral'"):
        BloomFilter.open("x", client=r)


def test_of_all_who_add_an_item_at_once_one_is_told_new(r, valkey):
    BloomFilter("x", 10_000, client=r, layout="blocked")
    together = Barrier(4, timeout=300)

    def work(strategy: str) -> list[str]:
        won = []
        with BloomFilter.open("x", client=valkey, strategy=strategy) as made:
            for start in range(0, 6000, 100):
                batch = numbered(start, start + 100)
                together.wait()
                flags = [made.add(batch[0]), *made.add_many(batch[1:], route="items")]
                won += [item for item, new in zip(batch, flags, strict=True) if new]
        return won

    with ThreadPoolExecutor(4) as pool:
        wins = [
            item for won in pool.map(work, ("lua", "atomic", "transaction", "lua")) for item in won
        ]
    assert sorted(wins) == sorted(numbered(0, 6000))


def test_asyncio_reads_what_threads_wrote(r, valkey):
    BloomFilter("x", 1000, client=r, layout="blocked").add("a")

    async def main():
        async with AsyncBloomFilter("x", 1000, client=valkey, layout="blocked") as made:
            return made.layout, await made.add("a"), await made.add("b")

    assert asyncio.run(main()) == ("blocked", False, True)


def test_the_script_reads_an_item_at_once_and_writes_it_at_once(r):
    made = BloomFilter("x", 3000, client=r, strategy="lua", layout="blocked", num_hashes=14)
    r.config_resetstat()
    new = sum(sum(made.add_many(numbered(0, 500), route="items")) for _ in range(2))
    calls = {name: stat["calls"] for name, stat in r.info("commandstats").items()}
    # 292 items fill one call, each call reads the header, and so does a look at the fill.
    scripts = calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0)
    assert scripts == 4
    assert calls["cmdstat_getrange"] - calls.get("cmdstat_bitcount", 0) == 1000 + scripts
    assert calls["cmdstat_setrange"] == new == 500
    assert "cmdstat_bitfield" not in calls


@pytest.mark.parametrize("layout", ["classic", "blocked"])
def test_the_script_writes_nothing_to_another_generation(r, layout):
    made = BloomFilter("x", 1000, client=r, strategy="lua", layout=layout)
    BloomFilter.open("x", client=r).clear()
    before = r.get(BITS)
    with pytest.raises(FilterLostError):
        made.add("a")
    made.reattach()
    r.delete(BITS)
    with pytest.raises(FilterLostError):
        made.add_many(numbered(0, 2000), route="items")
    assert not r.exists(BITS)
    r.set(BITS, before)
    made.reattach()
    assert made.add("a") is True
    assert r.get(BITS) != before


@pytest.mark.parametrize("layout", ["classic", "blocked"])
def test_a_server_that_forgot_the_script_is_told_it_again(r, layout):
    made = BloomFilter("x", 3000, client=r, strategy="lua", layout=layout)
    for count in (1, 100, 1000):
        r.script_flush()
        batch = numbered(count, 2 * count)
        assert made.add_many(batch, route="items") == [True] * count
        r.script_flush()
        assert made.exists_many(batch, route="items") == [True] * count
    r.script_flush()
    assert made.add("single") is True
