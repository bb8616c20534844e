"""Spiders that read their start URLs from Redis."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from proxy import Proxy

from scrapy_ext.spiders import StartMessages

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from tests.scrapy_ext.conftest import Crawl, Site

PATIENCE = 300.0
KINDS = ("list", "set", "zset")


def fill(server: redis.Redis, kind: str, messages: list[str]) -> None:
    """Put messages where the first is taken first."""
    if kind == "list":
        server.rpush("feed", *messages)
    elif kind == "set":
        server.sadd("feed", *messages)
    else:
        server.zadd("feed", {message: -place for place, message in enumerate(messages)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_is_not_done_is_there_again(server: redis.Redis, kind: Any) -> None:
    fill(server, kind, ["a", "b", "c"])
    one, two = (StartMessages(server, "feed", kind, 60.0) for _ in range(2))
    first = one.take(2)
    (last,) = two.take(9)
    assert {message for _, message in [*first, last]} == {b"a", b"b", b"c"}
    if kind != "set":
        assert [message for _, message in first] == [b"a", b"b"]
    assert one.take(9, [first[0][0]]) == []
    for identity in server.zrange("{feed}:leases", 0, -1):
        server.zadd("{feed}:leases", {identity: 1})
    assert {message for _, message in one.take(9)} == {first[1][1], last[1]}
    one.take(0, server.hkeys("{feed}:taken"))
    assert server.keys("*feed*") == []


@pytest.mark.parametrize("scheduler", ["scrapy_ext.Scheduler", "scrapy.core.scheduler.Scheduler"])
def test_start_urls_come_from_redis(
    site: Site, server: redis.Redis, crawl: Callable[..., Crawl], scheduler: str
) -> None:
    messages = [json.dumps({"url": f"{site.url}/{page}"}) for page in (0, 1, 0)]
    fill(server, "list", messages)
    site.links = lambda page: [*range(page), 7]
    # While it works for longer than it may be idle, no message is read; there is one left.
    site.on_request = lambda count: time.sleep(2.5) if count == 1 else None
    done = crawl(
        spider="FeedSpider",
        SCHEDULER=scheduler,
        REDIS_START_URLS_KEY="feed",
        MAX_IDLE_TIME_BEFORE_CLOSE=1,
        CONCURRENT_REQUESTS=2,
        # Our scheduler records start requests by itself.
        BLOOMLOCK_RECORD_UNFILTERED=scheduler != "scrapy_ext.Scheduler",
    )
    # What is pushed twice is wanted twice; what was read is not followed as a link.
    assert sorted(done.fetched) == ["/0", "/0", "/1", "/2", "/3", "/4", "/5", "/6", "/7"]
    assert server.keys("*feed*") == []
    assert done.stats["finish_reason"] == "finished"


def test_messages_of_a_killed_process_come_again(
    site: Site, valkey: str, server: redis.Redis, start_spider: Callable[..., Crawl]
) -> None:
    fill(server, "list", [json.dumps({"url": f"{site.url}/{page}"}) for page in range(3)])
    site.links = lambda _: []
    settings = {
        "SCHEDULER": "scrapy_ext.Scheduler",
        "REDIS_START_URLS_KEY": "feed",
        "MAX_IDLE_TIME_BEFORE_CLOSE": 1,
    }
    with Proxy(valkey) as proxy:
        # No request gets into the queue once the messages are taken.
        proxy.judge = lambda name, _: (
            "pass" if server.exists("feed") or not name.startswith("EVAL") else "before"
        )
        killed = start_spider(spider="FeedSpider", BLOOMLOCK_URL=proxy.url, **settings)
        until = time.monotonic() + PATIENCE
        while proxy.cuts["before"] < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.finish()
    assert server.hlen("{feed}:taken") == 3
    for identity in server.zrange("{feed}:leases", 0, -1):
        server.zadd("{feed}:leases", {identity: 1})
    done = start_spider(spider="FeedSpider", **settings, BLOOMLOCK_LEASE=5).finish()
    assert sorted(done.fetched) == ["/0", "/1", "/2"]
