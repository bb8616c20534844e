"""The server is not there, dies, hangs or forgets: what a real crawl fetches then."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import redis
from proxy import Proxy
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter
from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy import Verdict

PAGES = 8
LOST = 4
"""Replies that are lost: more than there are tries."""
POLICIES = ["allow", "drop", "close"]
# The queue of scrapy-redis stays on a server that works: what it does without one is its own.
SCRAPY_REDIS = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": True}
SCHEDULERS = [pytest.param({}, id="scrapy"), pytest.param(SCRAPY_REDIS, id="scrapy-redis")]
NAME = "spider:dupefilter"


def check_stats(result: Any, policy: str) -> None:
    assert result.process.returncode == 0
    assert "spider_exceptions/count" not in result.stats
    assert "log_count/CRITICAL" not in result.stats
    assert result.own("outages") >= 1
    assert "cannot be asked" in result.log
    reason = "bloomlock_outage" if policy == "close" else "finished"
    assert result.stats["finish_reason"] == reason


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nobody_listens_at_the_start(
    scheduler: dict[str, Any], crawl: Callable[..., Any], site: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = crawl(BLOOMLOCK_URL=f"redis://:secret@127.0.0.1:{port}/0", **scheduler)
    assert result.process.returncode == 1
    assert site.requested == []
    sentence = f"BLOOMLOCK_URL: no Redis server can be used at 127.0.0.1:{port}"
    assert sum(sentence in line for line in result.log.splitlines() if "CRITICAL" in line) == 1
    assert "secret" not in result.log.partition(sentence)[2]


def test_a_server_that_hangs_does_not_cost_a_timeout_for_each_link(
    crawl: Callable[..., Any], site: Any
) -> None:
    links = 40
    site.links = lambda page: range(1000 + links * page, 1000 + links * (page + 1))
    with PrivateServer() as server:
        site.on_request = lambda count: os.kill(server.pid, signal.SIGSTOP) if count == 1 else None
        result = crawl(BLOOMLOCK_URL=server.url, BLOOMLOCK_ON_OUTAGE="drop", BLOOMLOCK_TIMEOUT=3)
    check_stats(result, "drop")
    # The first one had no reply and may be recorded, so it is fetched; its links are dropped too.
    assert len(result.fetched) == 1 + result.own("unknown")
    assert result.own("dropped") + result.own("unknown") == links * len(result.fetched)
    # Nothing is remembered of what is dropped, so each link would ask.
    assert result.own("errors") < links / 2


@pytest.mark.parametrize("policy", POLICIES)
def test_the_server_is_killed_in_the_middle(
    policy: str, crawl: Callable[..., Any], site: Any
) -> None:
    # Each page links to all before it, and to two more.
    site.links = lambda page: range(min(page + 3, 12))
    with PrivateServer() as server:

        def kill(count: int) -> None:
            if count == 4:
                os.kill(server.pid, signal.SIGKILL)

        site.on_request = kill
        result = crawl(
            BLOOMLOCK_URL=server.url,
            BLOOMLOCK_ON_OUTAGE=policy,
            BLOOMLOCK_RECORD_UNFILTERED=True,
            CONCURRENT_REQUESTS=1,
        )
    check_stats(result, policy)
    fetched = Counter(result.fetched)
    assert set(fetched.values()) == {1}, (fetched, result.log)
    if policy == "allow":
        assert len(fetched) == 12
        assert result.own("allowed") + result.own("unknown") > 0
    if policy == "drop":
        assert len(fetched) < 12
        assert result.own("dropped") > 0


def restart_empty(server: PrivateServer) -> None:
    server.start()


def restart_without_the_end(server: PrivateServer) -> None:
    """Bring back all but the last part of the append-only file."""
    (file,) = server.directory.glob("appendonlydir/*.incr.aof")
    os.truncate(file, file.stat().st_size - 600)
    server.start()


def flush(server: PrivateServer) -> None:
    with redis.Redis.from_url(server.url) as r:
        r.flushall()


def evict(server: PrivateServer) -> None:
    with redis.Redis.from_url(server.url) as r:
        assert r.delete(f"bloomlock:{{{NAME}}}:bits") == 1


def clear(server: PrivateServer) -> None:
    with BloomFilter.open(NAME, client=server.url) as shared:
        shared.clear()


FAULTS = {
    "restarted empty": (PrivateServer.kill, restart_empty),
    "restarted without the end": (PrivateServer.kill, restart_without_the_end),
    "flushed": (flush, flush),
    "evicted": (evict, evict),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_page_is_fetched_twice_and_none_is_forgotten(
    fault: str, crawl: Callable[..., Any], site: Any
) -> None:
    pages = 40
    # As on a real site: each page links to all that were met before, and to two more.
    site.links = lambda page: range(min(page + 3, pages))
    first, then = FAULTS[fault]
    with PrivateServer(config={"appendonly": "end" in fault}) as server:
        site.on_request = lambda count: {10: first, 25: then}.get(count, id)(server)
        result = crawl(
            BLOOMLOCK_URL=server.url, BLOOMLOCK_RECORD_UNFILTERED=True, CONCURRENT_REQUESTS=1
        )
        keys = [fingerprint(Request(f"{site.url}/{page}")) for page in range(pages)]
        recorded = BloomFilter.open(NAME, client=server.url).exists_many(keys)
    assert result.process.returncode == 0
    assert Counter(result.fetched) == {f"/{page}": 1 for page in range(pages)}
    assert recorded == [True] * pages


CLAIM_FAULTS = {**FAULTS, "cleared": (clear, clear)}


@pytest.mark.parametrize("fault", ["restarted empty", "restarted without the end", "cleared"])
def test_what_is_claimed_while_the_server_forgets_is_not_lost(
    fault: str, crawl: Callable[..., Any], site: Any
) -> None:
    pages = 40
    # Each page links to three before it, and is the only one that leads to two others.
    site.links = lambda page: [
        *(page // 2, page // 3, page // 4),
        *(child for child in (2 * page + 1, 2 * page + 2) if child < pages),
    ]
    first, then = CLAIM_FAULTS[fault]
    with PrivateServer(config={"appendonly": "end" in fault}) as server:
        site.on_request = lambda count: {10: first, 25: then}.get(count, id)(server)
        result = crawl(
            ADDONS={"scrapy_ext.BloomlockAddon": 500},
            SPIDER_MIDDLEWARES={},
            BLOOMLOCK_URL=server.url,
            BLOOMLOCK_MARK="processed",
            BLOOMLOCK_RECORD_UNFILTERED=True,
            # A claim that the server remembers, although it was done, has to end.
            BLOOMLOCK_LEASE=5,
            CONCURRENT_REQUESTS=4,
        )
        with BloomFilter.open(NAME, client=server.url) as shared:
            counts = shared.count_claims()
            recorded = shared.exists_many(
                [fingerprint(Request(f"{site.url}/{page}")) for page in range(pages)]
            )
    assert result.process.returncode == 0, result.log
    assert result.stats["finish_reason"] == "finished"
    fetched = Counter(result.fetched)
    assert set(fetched) == {f"/{page}" for page in range(pages)}
    if fault != "cleared":
        assert set(fetched.values()) == {1}
        assert recorded == [True] * pages
    assert counts.open == 0


def test_a_dropped_request_whose_claim_was_granted_does_not_keep_the_spider_open(
    r: Any, valkey: str, crawl: Callable[..., Any], site: Any
) -> None:
    del r
    lost: list[str] = []

    def judge(name: str, _number: int) -> Verdict:
        # What comes first after the start page is the claim of all that it links to.
        if name != "EVALSHA" or not site.requested or len(lost) == LOST:
            return "pass"
        lost.append(name)
        return "after"

    with BloomFilter("other", 100, client=valkey) as other:
        other.claim("the first is refused, as the server does not know the script").abandon()
    with Proxy(valkey, judge) as proxy:
        result = crawl(
            ADDONS={"scrapy_ext.BloomlockAddon": 500},
            SPIDER_MIDDLEWARES={},
            REDIS_URL=proxy.url,
            BLOOMLOCK_MARK="processed",
            BLOOMLOCK_RECORD_UNFILTERED=True,
            BLOOMLOCK_ON_OUTAGE="drop",
            # A claim whose reply was lost would keep it open for longer than the test waits.
            BLOOMLOCK_LEASE=3600,
        )
    assert len(lost) == LOST
    assert result.own("dropped") == 2 * (PAGES - 1), result.log
    assert result.stats["finish_reason"] == "finished"
    assert Counter(result.fetched) == {f"/{page}": 1 for page in range(PAGES)}
    with BloomFilter.open(NAME, client=valkey) as shared:
        assert shared.count_claims().open == 0
