"""Spiders that read their start URLs from Redis: no message is lost, and each is wanted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from crawling import ADDON, ALONE, PATIENCE
from proxy import Proxy
from servers import wait_until

from scrapy_ext.spiders import take_messages

if TYPE_CHECKING:
    import redis
    from crawling import Runner, Site

FEED = {"REDIS_START_URLS_KEY": "feed", "MAX_IDLE_TIME_BEFORE_CLOSE": 1}


def fill(server: redis.Redis, kind: str, messages: list[str]) -> None:
    """Put messages where the first is taken first."""
    if kind == "list":
        server.rpush("feed", *messages)
    elif kind == "set":
        server.sadd("feed", *messages)
    else:
        server.zadd("feed", {message: -place for place, message in enumerate(messages)})


def end_leases(server: redis.Redis) -> None:
    server.zadd("{feed}:taken", dict.fromkeys(server.zrange("{feed}:taken", 0, -1), 1))


@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_a_message_that_is_not_done_is_there_again(r: redis.Redis, kind: Any) -> None:
    fill(r, kind, ["a", "b", "c"])
    one, two = (partial(take_messages, r, "feed", (kind, 60.0)) for _ in range(2))
    first = one(2)
    (last,) = two(9)
    assert {message for _, message in [*first, last]} == {b"a", b"b", b"c"}
    if kind != "set":
        assert [message for _, message in first] == [b"a", b"b"]
    assert one(9, [first[0][0]]) == []
    end_leases(r)
    assert {message for _, message in one(9)} == {first[1][1], last[1]}
    one(0, r.zrange("{feed}:taken", 0, -1))
    assert r.keys("*feed*") == []


def test_on_a_cluster_messages_are_at_any_key(cluster: redis.RedisCluster) -> None:
    cluster.rpush("feed", "a", "b")
    take = partial(take_messages, cluster, "feed", ("list", 60.0))
    (first,) = take(1)
    assert first[1] == b"a"
    assert [message for _, message in take(2, [first[0]])] == [b"b"]


@pytest.mark.parametrize("set_up", [ALONE, ADDON], ids=["filter alone", "add-on"])
def test_start_urls_come_from_the_server_of_the_crawl(
    set_up: dict[str, Any], crawls: Runner, site: Site, valkey: str, r: redis.Redis
) -> None:
    """A message that is no request holds up no other."""
    good = [json.dumps({"url": f"{site.url}/{page}"}) for page in (0, 1, 0)]
    fill(r, "list", ['{"url": "no scheme"}', *good])
    site.links = lambda page: [*range(page), 7]
    urls = {"BLOOMLOCK_URL": valkey, "REDIS_URL": "redis://127.0.0.1:1"}
    done = crawls.run(set_up, spider="FeedSpider", **FEED, **urls, CONCURRENT_REQUESTS=2)
    # What is pushed twice is wanted twice. It is not recorded, so a link to it is followed once.
    assert done.pages == Counter([*site.paths, "/0", "/0", "/1"])
    assert r.keys("*feed*") == []
    assert done.reason == "finished"
    assert len(done.lines("No request can be made of a message at 'feed'")) == 1
    if set_up is ADDON:
        (failed,) = r.hvals("{spider}:failed")
        assert failed.endswith(b'{"url": "no scheme"}')
        assert b"ValueError" in failed


def test_messages_of_a_killed_process_come_again(
    crawls: Runner, site: Site, valkey: str, r: redis.Redis
) -> None:
    fill(r, "list", [json.dumps({"url": f"{site.url}/{page}"}) for page in range(3)])
    site.links = lambda _: []
    cut = threading.Event()

    def judge(name: str, _: int) -> Any:
        # No request gets into the queue once the messages are taken.
        if r.exists("feed") or not name.startswith("EVAL"):
            return "pass"
        cut.set()
        return "before"

    with Proxy(valkey) as proxy:
        proxy.judge = judge
        killed = crawls.start(ADDON, spider="FeedSpider", BLOOMLOCK_URL=proxy.url, **FEED)
        assert cut.wait(PATIENCE)
        wait_until(lambda: r.zcard("{feed}:taken") == 3, PATIENCE)
        killed.kill()
    assert r.zcard("{feed}:taken") == 3
    end_leases(r)
    done = crawls.run(ADDON, spider="FeedSpider", **FEED)
    assert done.pages == Counter(["/0", "/1", "/2"])
