"""The requests of a page are checked together, and what a callback yields stays as it is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter
from scrapy_ext.answers import LeftVerdicts, Verdict
from scrapy_ext.middleware import ITEMS_PER_CHUNK, in_chunks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import redis


def chunks_of(source: AsyncIterator[Any], most: int = 1000) -> list[list[Any]]:
    async def collect() -> list[list[Any]]:
        return [chunk async for chunk in in_chunks(source, most)]

    return asyncio.run(collect())


def request(number: int) -> Request:
    return Request(f"https://example.org/{number}")


def test_a_chunk_ends_where_it_is_full() -> None:
    requests = [request(number) for number in range(25)]

    async def source() -> AsyncIterator[Any]:
        for made in requests:
            yield made
            yield {"item": made.url}
        for number in range(ITEMS_PER_CHUNK + 1):
            yield number

    chunks = chunks_of(source(), 10)
    assert [len(chunk) for chunk in chunks] == [19, 20, 11 + ITEMS_PER_CHUNK - 6, 7]
    flat = [output for chunk in chunks for output in chunk]
    assert [output for output in flat if isinstance(output, Request)] == requests
    assert flat[:4] == [requests[0], {"item": requests[0].url}, *flat[2:4]]
    assert flat[-1] == ITEMS_PER_CHUNK
    assert len(flat) == 50 + ITEMS_PER_CHUNK + 1


def test_a_chunk_ends_where_the_source_waits() -> None:
    """What was yielded before is there, though the source never goes on without it."""
    arrived: list[int] = []

    async def source(go_on: asyncio.Event) -> AsyncIterator[int]:
        yield 1
        yield 2
        await asyncio.sleep(0)  # it is over before the next chunk is asked for
        yield 3
        await go_on.wait()
        yield 4
        yield 5
        await asyncio.sleep(0.01)

    async def consume() -> list[list[int]]:
        go_on = asyncio.Event()
        chunks = []
        async for chunk in in_chunks(source(go_on), 1000):
            chunks.append(chunk)
            arrived.extend(chunk)
            if 3 in arrived:
                go_on.set()
            await asyncio.sleep(0)
        return chunks

    assert asyncio.run(asyncio.wait_for(consume(), 300)) == [[1, 2], [3], [4, 5]]


def test_what_a_source_raises_comes_after_what_it_yielded() -> None:
    async def source() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise ZeroDivisionError

    async def consume() -> None:
        async for chunk in in_chunks(source(), 1000):
            arrived.extend(chunk)

    arrived: list[int] = []
    with pytest.raises(ZeroDivisionError):
        asyncio.run(consume())
    assert arrived == [1, 2]


@pytest.mark.parametrize("fails", [False, True])
def test_a_page_that_was_read_is_no_garbage_for_the_collector(fails: bool) -> None:
    left: list[weakref.ref[Request]] = []

    async def source() -> AsyncIterator[Any]:
        made = request(1)
        left.append(weakref.ref(made))
        yield made
        if fails:
            raise ZeroDivisionError

    async def consume() -> None:
        with contextlib.suppress(ZeroDivisionError):
            async for _ in in_chunks(source(), 1000):
                pass

    gc.disable()
    try:
        asyncio.run(consume())
        assert [reference() for reference in left] == [None]
    finally:
        gc.enable()


def test_a_source_is_cancelled_where_it_waits() -> None:
    ended: list[str] = []

    async def source() -> AsyncIterator[int]:
        yield 1
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def consume() -> None:
        async for _ in in_chunks(source(), 1000):
            pass

    async def scenario() -> None:
        task = asyncio.ensure_future(consume())
        while not task.done() and not ended:
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert ended == ["cancelled"]


def test_a_source_may_use_a_timeout() -> None:
    async def source() -> AsyncIterator[str]:
        yield "before"
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(300)
        except TimeoutError:
            yield "after"

    assert chunks_of(source()) == [["before"], ["after"]]


def test_verdicts_go_by_the_object_and_are_taken_once() -> None:
    left = LeftVerdicts()
    one, equal = request(1), request(1)
    # Yielded twice, it is new the first time and seen the second.
    left.leave(one, Verdict.NEW, droppable=True)
    left.leave(one, Verdict.SEEN, droppable=False)
    assert left.take(equal) is None
    assert left.take(one.replace()) is None
    assert [left.take(one) for _ in range(3)] == [(Verdict.NEW, True), (Verdict.SEEN, False), None]


def test_a_request_that_is_given_up_leaves_nothing() -> None:
    left = LeftVerdicts()
    for number in range(100):
        left.leave(request(number), Verdict.NEW, droppable=True)
    gc.collect()
    assert len(left) == 0
    kept = request(1)
    left.leave(kept, Verdict.SEEN, droppable=True)
    assert len(left) == 1


REACTORS = [
    pytest.param("twisted.internet.asyncioreactor.AsyncioSelectorReactor", id="asyncio"),
    pytest.param("twisted.internet.selectreactor.SelectReactor", id="select"),
]
COUNTED = (
    "dupefilter/filtered",
    "offsite/filtered",
    "scheduler/enqueued",
    "response_received_count",
    "item_scraped_count",
    "finish_reason",
)


@pytest.mark.parametrize("reactor", REACTORS)
def test_a_crawl_does_what_it_does_with_scrapys_own_filter(
    reactor: str, crawl: Callable[..., Any], site: Any, r: redis.Redis
) -> None:
    """The same requests and items in the same order, the same stats; nothing of it is offsite."""
    pipelines = {"__main__.NotingPipeline": 1}
    options = {
        "CONCURRENT_REQUESTS": 1,
        "TWISTED_REACTOR": reactor,
        "ITEM_PIPELINES": pipelines,
    }
    theirs = crawl(
        spider="MixedSpider",
        DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter",
        SPIDER_MIDDLEWARES={},
        **options,
    )
    assert len(theirs.fetched) == len(site.requested) > 20
    ours = crawl(spider="MixedSpider", BLOOMLOCK_NEAR_CACHE=0, **options)
    assert "spider_exceptions/count" not in ours.stats
    assert {name: ours.stats.get(name) for name in COUNTED} == {
        name: theirs.stats.get(name) for name in COUNTED
    }
    assert sorted(ours.fetched) == sorted(theirs.fetched)
    assert by_page(ours.events) == by_page(theirs.events)
    assert ours.log.count("no more duplicates will be shown") == 1
    shared = BloomFilter.open("spider:dupefilter", client=r)
    paths = {path for _, path in theirs.events} - {"item", "item begins"}
    seen = {path for path in paths if shared.exists(fingerprint(Request(f"{site.url}/{path}")))}
    assert seen == paths - {"elsewhere"}
    assert not shared.exists(fingerprint(Request("http://localhost:1/elsewhere")))


@pytest.mark.usefixtures("r")
def test_a_request_that_cannot_be_scheduled_takes_no_others_along(
    crawl: Callable[..., Any], site: Any
) -> None:
    site.links = lambda page: [] if page else range(1, 6)
    result = crawl(SCHEDULER_MEMORY_QUEUE="__main__.PickyQueue")
    assert sorted(result.fetched) == ["/0", "/1", "/2", "/4", "/5"]
    assert "not this one" in result.log


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("place", [1, 20])
def test_middlewares_on_both_sides_get_the_requests(
    place: int, crawl: Callable[..., Any], site: Any
) -> None:
    middlewares = {
        "scrapy_ext.middleware.BatchingMiddleware": 10,
        "__main__.EvenPages": place,
    }
    result = crawl(SPIDER_MIDDLEWARES=middlewares, BLOOMLOCK_RECORD_UNFILTERED=True)
    assert sorted(result.fetched) == [path for path in site.paths if int(path[1:]) % 2 == 0]


@pytest.mark.usefixtures("r")
def test_what_start_yields_is_not_lost_when_the_crawl_stops_in_order(
    crawl: Callable[..., Any], site: Any, tmp_path: Any
) -> None:
    """It stops while requests are checked that the engine has not asked for yet."""
    site.links = lambda _: []
    options = {"spider": "SeedSpider", "JOBDIR": str(tmp_path)}
    first = crawl(**options, STOP_AFTER=50)
    assert first.stats["finish_reason"] == "shutdown"
    second = crawl(**options)
    assert sorted(first.fetched + second.fetched) == sorted(f"0?{number}" for number in range(120))


def by_page(events: list[list[str]]) -> dict[str, list[str]]:
    """Return what each page led to, in order."""
    pages: dict[str, list[str]] = {}
    for page, event in events:
        pages.setdefault(page, []).append(event)
    # Items of start() go to the pipelines beside its requests.
    pages["start"].sort(key=lambda event: event.startswith("item"))
    return pages
