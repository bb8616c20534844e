"""The requests of a page are checked in one round trip, and what a callback yields stays as it is.

What is counted in the stats is what the server was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from asked_filter import AskedFilter, request
from crawling import ADDON, FILTER, OURS, RECORDS
from scrapy import Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import redis
    from crawling import Runner, Site

Outputs = list[Any]


@pytest.fixture
def asked(valkey: str, r: redis.Redis) -> Iterator[AskedFilter]:
    del r
    with AskedFilter(valkey, "batches") as made:
        yield made


def outputs_of(asked: AskedFilter, callback: AsyncIterator[Any]) -> Outputs:
    """Return what comes out of the middleware."""

    async def collect() -> Outputs:
        return [output async for output in asked.outputs(callback)]

    return asked._loop.run(collect())


def test_a_page_is_one_round_trip_and_a_repeated_request_new_once(asked: AskedFilter) -> None:
    for number, size in enumerate((1, 2, 20, 300)):
        before = asked.stat("trips")
        page = [f"{number}/{path}" for path in range(size)]
        assert asked.ask(*page, page[0]) == "n" * size + "s"
        assert asked.stat("trips") - before == 1
    assert asked.stat("batches") == asked.stat("trips")
    assert asked.stat("waits") == 0
    assert asked.ask("1/0", "1/1") == "ss"


def test_what_the_near_cache_knows_takes_no_round_trip(valkey: str, r: Any) -> None:
    del r
    options = {"BLOOMLOCK_NEAR_CACHE": 1000, "BLOOMLOCK_MAX_STALENESS": 3600}
    with AskedFilter(valkey, "batches", **options) as asked:
        pages = [("a", "b"), ("b", "a", "b"), ("b", "c"), ("c",)]
        found = [(asked.ask(*page), asked.stat("trips")) for page in pages]
        assert found == [("nn", 1), ("sss", 1), ("sn", 2), ("s", 2)]
        assert asked.stat("cache_hits") == 4


def test_items_and_requests_keep_their_order(asked: AskedFilter) -> None:
    """Of 1,000 requests and of 100 items no more is held back than that."""
    made: Outputs = []
    most = [0, 0]
    seen: Outputs = []

    async def callback() -> AsyncIterator[Any]:
        for number in range(2200):
            output = request(f"{number}") if number < 1900 else {"item": number}
            made.append(output)
            held = made[len(seen) :]
            requests = sum(isinstance(one, Request) for one in held)
            most[0], most[1] = max(most[0], requests), max(most[1], len(held) - requests)
            yield output
            if number % 3 == 0:
                made.append({"item": -number})
                yield made[-1]

    async def consume() -> None:
        async for output in asked.outputs(callback()):
            seen.append(output)

    asked._loop.run(consume())
    assert seen == made
    assert most[0] <= 1000
    assert most[1] <= 100
    assert all(map(asked.filter.request_seen, [request("0"), request("1899")]))


def test_nothing_is_held_back_while_a_callback_waits(asked: AskedFilter) -> None:
    """What was yielded before is there, though the callback never goes on without it."""
    arrived: Outputs = []

    async def callback(go_on: asyncio.Event) -> AsyncIterator[Any]:
        yield request("1")
        yield 2
        await asyncio.sleep(0)  # it is over before the next is asked for
        yield request("3")
        await go_on.wait()
        yield 4
        await asyncio.sleep(0)

    async def consume() -> None:
        go_on = asyncio.Event()
        async for output in asked.outputs(callback(go_on)):
            arrived.append(output)
            if len(arrived) == 3:
                go_on.set()

    asked._loop.run(asyncio.wait_for(consume(), 300))
    assert [getattr(one, "url", one) for one in arrived] == [
        request("1").url,
        2,
        request("3").url,
        4,
    ]


def test_what_a_callback_raises_comes_after_what_it_yielded(asked: AskedFilter) -> None:
    arrived: Outputs = []

    async def callback() -> AsyncIterator[Any]:
        yield request("1")
        yield 2
        raise ZeroDivisionError

    async def consume() -> None:
        async for output in asked.outputs(callback()):
            arrived.append(output)

    with pytest.raises(ZeroDivisionError):
        asked._loop.run(consume())
    assert len(arrived) == 2


def test_a_callback_is_cancelled_where_it_waits_and_may_use_a_timeout(asked: AskedFilter) -> None:
    ended: list[str] = []

    async def waits(waiting: asyncio.Event) -> AsyncIterator[Any]:
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        yield 1

    async def timed() -> AsyncIterator[str]:
        yield "before"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        yield "after"

    async def scenario() -> None:
        waiting = asyncio.Event()

        async def consume() -> None:
            async for _ in asked.outputs(waits(waiting)):
                pass

        task = asyncio.ensure_future(consume())
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asked._loop.run(scenario())
    assert ended == ["cancelled"]
    assert outputs_of(asked, timed()) == ["before", "after"]


def test_what_a_page_costs_is_in_the_stats(crawls: Runner, site: Site) -> None:
    # Each page links to all before it and to the next one, so the crawl goes page by page.
    site.links = lambda page: range(min(page + 2, 8))
    checked = sum(min(page + 2, 8) for page in range(8))
    options = RECORDS | {"BLOOMLOCK_MAX_STALENESS": 3600}
    batches = crawls.run(ADDON | options)
    assert batches.own("checked") == checked
    # The start page, then one trip for each page but the last, which links to nothing new.
    assert batches.own("trips") == batches.own("batches") == 8
    assert batches.own("waits") == batches.own("wait_seconds") == 0
    assert batches.own("cache_hits") == checked - 7
    single = crawls.run(FILTER | options, name="single")
    assert single.own("trips") == single.own("waits") == 8
    assert single.own("batches") == 0
    assert single.own("wait_seconds") > 0
    again = crawls.run(FILTER | options, name="single", BLOOMLOCK_NEAR_CACHE=0)
    # The start page and its two links.
    assert (again.own("waits"), again.own("cache_hits")) == (3, 0)
    ours = crawls.run(OURS | options, name="ours")
    assert ours.own("checked") == checked + 1
    assert ours.own("waits") == 0


def test_middlewares_on_both_sides_get_the_requests(crawls: Runner, site: Site) -> None:
    for place in (1, 20):
        middlewares = {"scrapy_ext.middleware.BatchingMiddleware": 10, "__main__.EvenPages": place}
        result = crawls.run(FILTER | RECORDS, name=f"{place}", SPIDER_MIDDLEWARES=middlewares)
        assert sorted(result.fetched) == site.paths[::2]


def test_a_request_that_cannot_be_scheduled_takes_no_others_along(
    crawls: Runner, site: Site
) -> None:
    site.links = lambda page: [] if page else range(1, 6)
    result = crawls.run(SCHEDULER_MEMORY_QUEUE="__main__.PickyQueue")
    assert sorted(result.fetched) == ["/0", "/1", "/2", "/4", "/5"]
    assert "not this one" in result.log
