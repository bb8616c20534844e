"""The server is not there, dies, or forgets: what a real crawl fetches then, and what it says."""

from __future__ import annotations

import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import redis
from crawling import ADDON, FILTER, OURS, RECORDS, SET_UPS
from proxy import Proxy
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter
from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from crawling import Runner, Site

NAME = "spider:dupefilter"


@pytest.mark.parametrize("name", ["add-on", "scheduler", "scrapy-redis"])
def test_without_a_server_the_crawl_does_not_start(name: str, crawls: Runner, site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    # The password is in the dump of the settings only.
    result = crawls.run(SET_UPS[name], BLOOMLOCK_URL=f"redis://:secret@127.0.0.1:{port}/0")
    assert result.code == 1
    assert site.requested == []
    sentence = f"BLOOMLOCK_URL: no Redis server can be used at 127.0.0.1:{port}"
    assert len([line for line in result.lines(sentence) if "CRITICAL" in line]) == 1
    assert "secret" not in result.log.partition(sentence)[2]


@pytest.mark.parametrize("set_up", [ADDON, OURS], ids=["add-on", "scheduler"])
def test_a_bad_setting_stops_the_crawl_before_it_starts(
    set_up: dict[str, Any], crawls: Runner, site: Site
) -> None:
    result = crawls.run(set_up, BLOOMLOCK_CAPACITY="many")
    sentence = "BLOOMLOCK_CAPACITY is 'many'; allowed is a whole number above 0."
    # (The exit status of such a crawl is Scrapy's, and has changed between its versions.)
    assert (site.requested, result.fetched) == ([], [])
    assert "CRITICAL" in result.lines(sentence)[0]
    assert sentence in result.log.splitlines()[-1]


@pytest.mark.parametrize("policy", ["allow", "drop", "close"])
def test_the_server_is_killed_in_the_middle(policy: str, crawls: Runner, site: Site) -> None:
    # Each page links to all before it, and to two more.
    site.links = lambda page: range(min(page + 3, 12))
    with PrivateServer() as server:
        site.on_request = lambda count: count == 4 and server.kill()
        result = crawls.run(
            ADDON | RECORDS,
            BLOOMLOCK_URL=server.url,
            BLOOMLOCK_ON_OUTAGE=policy,
            CONCURRENT_REQUESTS=1,
        )
    assert result.code == 0
    assert "spider_exceptions/count" not in result.stats
    assert "log_count/CRITICAL" not in result.stats
    assert result.own("outages") == 1
    assert len(result.lines("cannot be asked")) == 1
    assert result.reason == ("bloomlock_outage" if policy == "close" else "finished")
    assert set(result.pages.values()) == {1}
    assert (len(result.fetched) == 12) is (policy == "allow")
    # What was asked for first had no reply, and may be recorded.
    unknown = {"allow": "allowed", "drop": "dropped"}.get(policy, "errors")
    assert result.own(unknown) > 0


def flush(server: PrivateServer) -> None:
    with redis.Redis.from_url(server.url) as r:
        r.flushall()


def evict(server: PrivateServer) -> None:
    with redis.Redis.from_url(server.url) as r:
        assert r.delete(f"bloomlock:{{{NAME}}}:bits") == 1


FAULTS: dict[str, Any] = {
    "restarted empty": (PrivateServer.kill, PrivateServer.start),
    "flushed": (flush, flush),
    "evicted": (evict, evict),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_page_is_fetched_twice_and_none_is_forgotten(
    fault: str, crawls: Runner, site: Site
) -> None:
    pages = 40
    # As on a real site: each page links to all that were met before, and to two more.
    site.links = lambda page: range(min(page + 3, pages))
    first, then = FAULTS[fault]
    with PrivateServer() as server:
        site.on_request = lambda count: {10: first, 25: then}.get(count, id)(server)
        result = crawls.run(
            (ADDON if fault == "flushed" else FILTER) | RECORDS,
            BLOOMLOCK_URL=server.url,
            CONCURRENT_REQUESTS=1,
        )
        keys = [fingerprint(Request(f"{site.url}/{page}")) for page in range(pages)]
        with BloomFilter.open(NAME, client=server.url) as shared:
            recorded = shared.exists_many(keys)
    assert result.code == 0
    assert result.pages == Counter(f"/{page}" for page in range(pages))
    assert recorded == [True] * pages


@pytest.mark.parametrize("policy", ["allow", "close"])
def test_with_the_scheduler_the_crawl_waits_or_closes(
    policy: str, crawls: Runner, site: Site, valkey: str, r: redis.Redis
) -> None:
    # A script is tried three times before it counts as failed.
    ways = iter([*["pass"] * 5, *["after"] * 3, *["pass"] * 3, *["before"] * 3])
    with Proxy(valkey) as proxy:
        proxy.judge = lambda name, _: next(ways, "pass") if name == "EVALSHA" else "pass"  # type: ignore[arg-type,return-value]
        options = {"REDIS_URL": proxy.url, "CONCURRENT_REQUESTS": 1}
        done = crawls.run(OURS, BLOOMLOCK_ON_OUTAGE=policy, **options)
    assert done.code == 0
    assert len(done.lines("cannot be used")) >= 1
    if policy == "close":
        assert done.reason == "bloomlock_outage"
        done.fetched += crawls.run(OURS, name="spider").fetched
    else:
        assert proxy.cuts == {"before": 3, "after": 3}
        assert done.own("outages") == done.own("errors") == 2
        assert len(done.lines("answers again after")) == 2
    assert done.pages == Counter(site.paths)
    assert r.keys("spider:requests*") == []


def test_a_scheduler_whose_server_forgets_all_says_so(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    site.on_request = lambda count: count == 4 and r.flushall()
    done = crawls.run(OURS, CONCURRENT_REQUESTS=1)
    assert done.lines("The server does not know this process any more")
    assert "log_count/ERROR" not in done.stats


def test_an_entry_that_is_no_request_is_left_out(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    site.on_request = lambda count: count == 1 and r.zadd("spider:requests", {"no request": -9})
    done = crawls.run(OURS)
    assert done.own("unreadable") == 1
    assert len(done.lines("A request in the queue 'spider:requests' cannot be read.")) == 1
    assert done.pages == Counter(site.paths)
    assert r.keys("spider:requests*") == []
