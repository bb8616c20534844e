"""The stats about the filter: how full it is, the warning about its rate, the sample."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from asked_filter import AskedFilter, crawler_of, request
from crawling import ADDON, OURS, PATIENCE
from scrapy import signals

from bloomlock import BloomFilter
from scrapy_ext import stats
from scrapy_ext.duplicates import DuplicateLog

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis
    from crawling import Runner

NAME = "spider:dupefilter"
WARNING = "takes a new request for a seen one at a rate of"


@pytest.mark.parametrize("set_up", [ADDON, OURS], ids=["add-on", "scheduler"])
def test_a_rate_above_the_asked_one_is_warned_of_once(
    set_up: dict[str, Any], crawls: Runner, r: redis.Redis
) -> None:
    before = BloomFilter(NAME, 1000, 0.001, client=r)
    before.update(f"{number}" for number in range(1500))
    result = crawls.run(set_up, BLOOMLOCK_ERROR_RATE=0.001)
    assert result.own("current_error_rate") > 0.001
    assert result.own("capacity_used") > 1.4
    assert result.own("checked") > 0
    (line,) = result.lines(WARNING)
    assert f"WARNING: The filter {NAME!r} takes" in line
    assert "the 0.001 that was asked for" in line
    assert "and is made for 1,000. " in line


@pytest.mark.parametrize("set_up", [ADDON, OURS], ids=["add-on", "scheduler"])
def test_a_filter_that_grows_is_for_what_it_can_grow_to(
    set_up: dict[str, Any], crawls: Runner
) -> None:
    result = crawls.run(set_up, BLOOMLOCK_ON_FULL="grow", BLOOMLOCK_CAPACITY=4)
    assert result.own("estimated_count") > 6
    assert 0 < result.own("capacity_used") < 0.1
    assert 0 < result.own("fill_ratio") < 1
    assert result.own("memory_bytes") > 0
    assert result.lines(WARNING) == []


def test_the_fill_is_looked_at_while_the_crawl_runs(
    r: redis.Redis, valkey: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "bloomlock.scrapy")
    monkeypatch.setattr(stats, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(stats, "LONGEST_PAUSE_S", 0.02)

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - it becomes true by a timer
                await asyncio.sleep(0.001)

    async def scenario(asked: AskedFilter, shared: BloomFilter) -> None:
        def value(name: str) -> Any:
            return asked.crawler.stats.get_value(f"bloomlock/{name}")  # type: ignore[union-attr]

        asked.crawler.signals.send_catch_log(signals.spider_opened, spider=asked.crawler.spider)
        await until(lambda: value("fill_ratio") == 0)
        shared.update(f"{number}" for number in range(500))
        await until(lambda: value("fill_ratio") > 0)
        assert WARNING not in caplog.text
        # A look that fails is not the last one.
        r.execute_command("ACL", "SETUSER", "default", "-bitcount")
        try:
            await until(lambda: "Looking at the filter" in caplog.text)
        finally:
            r.execute_command("ACL", "SETUSER", "default", "+@all")
        shared.update(f"{number}" for number in range(3000))
        await until(lambda: value("current_error_rate") > 0.01)
        asked.filter.close()

    with (
        AskedFilter(valkey, "batches", BLOOMLOCK_ERROR_RATE=0.01) as asked,
        BloomFilter.open(NAME, client=r) as shared,
    ):
        asked._loop.run(scenario(asked, shared))
    assert caplog.text.count(WARNING) == 1


def test_the_sample_of_what_is_refused_is_a_random_one(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("scrapy_ext.duplicates.random", random.Random(seed))
    times: Counter[str] = Counter()
    crawler = crawler_of()
    for _ in range(200):
        log = DuplicateLog(crawler, sample=5)
        for number in range(20):
            log.log(request(f"{number}"), crawler.spider)  # type: ignore[arg-type]
            kept = crawler.stats.get_value("bloomlock/refused_sample")  # type: ignore[union-attr]
            assert len(kept) == len(set(kept)) == min(number + 1, 5)
        times.update(kept)
    # One of them is never, or always, kept with a probability below 1e-23.
    assert len(times) == 20
    assert max(times.values()) < 200
