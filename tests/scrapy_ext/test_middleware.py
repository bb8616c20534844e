"""What a callback yields comes out of the middleware as it is, without the duplicates.

What is counted in the stats is what the server was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from asked_filter import AskedFilter, request
from crawling import ALONE, FILTER, PATIENCE

from scrapy_ext import middleware

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


async def collect(asked: AskedFilter, callback: AsyncIterator[Any], into: Outputs) -> Outputs:
    async for output in asked.outputs(callback):
        into.append(output)
    return into


def test_outputs_keep_their_order_and_few_are_held_back(
    asked: AskedFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "MOST_OUTPUTS", 10)
    made: Outputs = []
    seen: Outputs = []
    most = 0

    async def callback() -> AsyncIterator[Any]:
        nonlocal most
        for number in range(60):
            made.append({"item": number} if number % 3 == 0 else request(f"{number}"))
            most = max(most, len(made) - len(seen))
            yield made[-1]

    asked.run(collect(asked, callback(), seen))
    assert seen == made
    # One list is on its way out while the next is read.
    assert most <= 20
    assert asked.stat("trips") == 6


def test_nothing_is_held_back_while_a_callback_waits(asked: AskedFilter) -> None:
    """What was yielded before is there, though the callback never goes on without it."""
    arrived: Outputs = []

    async def callback(go_on: asyncio.Event) -> AsyncIterator[Any]:
        yield request("1")
        yield 2
        await asyncio.sleep(0)
        yield request("3")
        await go_on.wait()
        yield 4

    async def scenario() -> None:
        go_on = asyncio.Event()
        async with asyncio.timeout(PATIENCE):
            async for output in asked.outputs(callback(go_on)):
                arrived.append(output)
                if len(arrived) == 3:
                    go_on.set()

    asked.run(scenario())
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

    with pytest.raises(ZeroDivisionError):
        asked.run(collect(asked, callback(), arrived))
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
        task = asyncio.ensure_future(collect(asked, waits(waiting), []))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asked.run(scenario())
    assert ended == ["cancelled"]
    assert asked.run(collect(asked, timed(), [])) == ["before", "after"]


def test_a_page_is_one_round_trip_under_any_reactor(crawls: Runner, site: Site) -> None:
    # Each page links to all before it and to the next one, so the crawl goes page by page.
    site.links = lambda page: range(min(page + 2, 8))
    select = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
    pages = crawls.run(ALONE, **select)
    # The start page is fetched for a link as well: no filter has seen it.
    assert sorted(pages.fetched) == sorted([*site.paths, "/0"])
    assert pages.own("checked") == 2 + sum(min(page + 2, 8) for page in range(8))
    assert pages.own("trips") == 9
    assert pages.own("waits") == 0


def test_offsite_requests_are_not_recorded(crawls: Runner, site: Site) -> None:
    """They are new to a spider that may follow them."""
    site.links = lambda page: [] if page else [1]
    first = crawls.run(ALONE, arguments={"allowed_domains": ["example.org"]})
    assert first.fetched == ["/0"]
    assert first.stats["offsite/filtered"] == 1
    assert crawls.run(ALONE).fetched == ["/0", "/1"]


@pytest.mark.parametrize("way", ["one by one", "batches"])
def test_redirects_that_lead_back_are_no_duplicates(way: str, crawls: Runner, site: Site) -> None:
    site.links = lambda page: [] if page else [1, 2, 4, 3]
    asked: dict[str, int] = {}
    answers = {"/1": [302, "/1"], "/2": [303, "/9"]}

    def answer(path: str) -> list[Any]:
        asked[path] = asked.get(path, 0) + 1
        if path in {"/3", "/9"}:
            return [302, "/4" if path == "/3" else "/2#top"]
        return answers.get(path, [200]) if asked[path] == 1 else [200]

    site.answer = answer
    first = crawls.run(FILTER if way == "one by one" else ALONE)
    assert sorted(first.fetched) == ["/0", "/1", "/2", "/4"]
    # What leads to another seen page is filtered.
    assert asked == {"/0": 1, "/1": 2, "/2": 2, "/9": 1, "/3": 1, "/4": 1}
