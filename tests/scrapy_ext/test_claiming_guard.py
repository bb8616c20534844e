"""The filter that claims requests, in this process and on a real server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from proxy import Proxy, deliver
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy import Request, Spider
from scrapy.settings import Settings
from servers import wait_until

from bloomlock import BloomFilter, ConfigurationError
from bloomlock.server import PrivateServer
from scrapy_ext.answers import Verdict
from scrapy_ext.claims import ClaimingFilter
from scrapy_ext.settings import FilterSettings
from scrapy_ext.settlements import DONE, Settlement, decode_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SPIDER = Spider("spider")
SETTINGS = {"BLOOMLOCK_CAPACITY": 1000, "BLOOMLOCK_MARK": "processed"}
CONFIG = FilterSettings.read(Settings(SETTINGS), SPIDER.name)


@pytest.fixture
def server() -> Iterator[PrivateServer]:
    """A server that the test may kill, and start again."""
    with PrivateServer() as private:
        yield private


@pytest.fixture
def proxy(server: PrivateServer) -> Iterator[Proxy]:
    """Between the guard and the server."""
    with Proxy(server.url) as made:
        yield made


@pytest.fixture
def policy() -> str:
    """BLOOMLOCK_ON_OUTAGE."""
    return "allow"


@pytest.fixture
def window() -> float | None:
    """BLOOMLOCK_WINDOW."""
    return None


@pytest.fixture
def guard(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, policy: str, window: float | None
) -> Iterator[ClaimingFilter]:
    """A guard that sends outcomes when the test says so: there is no reactor."""
    monkeypatch.setattr("scrapy_ext.claims.call_later", lambda *_: None)

    def connect() -> redis.Redis:
        retry = Retry(NoBackoff(), 0)
        timeouts = {"socket_timeout": 30, "socket_connect_timeout": 30}
        return redis.Redis.from_url(proxy.url, retry=retry, **timeouts)

    config = replace(CONFIG, max_staleness=3600.0, on_outage=policy, window=window)
    if window is not None:
        config = replace(config, near_cache=0)
    made = ClaimingFilter(config, connect, lambda _: None, print, SPIDER)
    made.start()
    yield made
    made.finish(lambda _: None)


def check(guard: ClaimingFilter, *requests: Request) -> list[Verdict]:
    keys = [request.url.encode() for request in requests]
    return asyncio.run(guard.check_many(keys, requests=requests))


def lose_replies(server: PrivateServer, proxy: Proxy) -> None:
    """Let scripts be carried out, and their replies get lost."""
    with BloomFilter.open(CONFIG.name, client=server.url) as shared:
        shared.claim("the first is refused, as the server does not know the script").abandon()
    proxy.judge = lambda name, _: "after" if name == "EVALSHA" else "pass"


def open_urls(server: PrivateServer) -> list[str]:
    """Return the URLs in the payloads of all open claims."""
    with BloomFilter.open(CONFIG.name, client=server.url) as shared:
        found = [decode_request(claim.payload, SPIDER) for claim in shared.open_claims()]
    return sorted("none" if request is None else request.url for request in found)


def test_of_equal_requests_of_a_page_the_first_is_claimed_and_kept(
    guard: ClaimingFilter, server: PrivateServer
) -> None:
    first, second = (Request("data:,a", cb_kwargs={"number": number}) for number in (1, 2))
    assert check(guard, first, second) == [Verdict.NEW, Verdict.SEEN]
    with BloomFilter.open(CONFIG.name, client=server.url) as shared:
        (claim,) = shared.open_claims()
    kept: Any = decode_request(claim.payload, SPIDER)
    assert kept.cb_kwargs == {"number": 1}


def test_a_server_that_runs_no_scripts_is_refused_at_the_start(server: PrivateServer) -> None:
    with redis.Redis.from_url(server.url) as r:
        BloomFilter(CONFIG.name, CONFIG.capacity, client=r)
        r.execute_command("ACL", "SETUSER", "default", "-eval", "-evalsha")
        connect = partial(redis.Redis.from_url, server.url)
        made = ClaimingFilter(CONFIG, connect, lambda _: None, print, SPIDER)
        with pytest.raises(ConfigurationError, match="claims need a server that runs scripts"):
            made.start()
        made.finish(lambda _: None)


def test_what_is_open_or_done_here_is_seen_without_the_server(
    guard: ClaimingFilter, server: PrivateServer
) -> None:
    a, b = Request("data:,a"), Request("data:,b")
    assert check(guard, a, b) == [Verdict.NEW, Verdict.NEW]
    guard.settle([b"data:,b"], DONE)
    assert guard.settle_now()
    trips: list[Any] = []
    guard.on_trip = lambda *trip: trips.append(trip)
    assert check(guard, a, b, a) == [Verdict.SEEN] * 3
    assert not trips
    assert open_urls(server) == ["data:,a"]


@pytest.mark.parametrize("window", [None, 86_400.0])
def test_what_another_client_forgot_is_claimed_anew(
    guard: ClaimingFilter, server: PrivateServer
) -> None:
    a, b = Request("data:,a"), Request("data:,b")
    assert check(guard, a) == [Verdict.NEW]
    guard.settle([b"data:,a"], DONE)
    assert guard.settle_now()
    with BloomFilter.open(CONFIG.name, client=server.url) as shared:
        assert shared.discard(b"data:,a")
    # The near-cache ends with the answer to any request, which says that items were forgotten.
    assert check(guard, b) == [Verdict.NEW]
    assert check(guard, a, b) == [Verdict.NEW, Verdict.SEEN]
    assert open_urls(server) == ["data:,a", "data:,b"]


def cleared(guard: ClaimingFilter, server: PrivateServer, check_again: Callable[[], Any]) -> None:
    with BloomFilter.open(CONFIG.name, client=server.url) as shared:
        shared.clear()
    check_again()


def restarted(guard: ClaimingFilter, server: PrivateServer, check_again: Callable[[], Any]) -> None:
    server.kill()
    check_again()
    server.start()
    wait_until(guard.settle_now, 60)


@pytest.mark.parametrize("loss", [cleared, restarted])
def test_what_is_open_is_claimed_again_where_the_claims_are_lost(
    loss: Callable[..., None], guard: ClaimingFilter, server: PrivateServer
) -> None:
    a, b = Request("data:,a"), Request("data:,b")
    assert check(guard, a) == [Verdict.NEW]
    answers: list[Verdict] = []
    loss(guard, server, lambda: answers.extend(check(guard, b)))
    assert answers[0] in {Verdict.NEW, Verdict.ALLOWED}
    assert check(guard, a) == [Verdict.SEEN]
    wait_until(guard.settle_now, 60)
    assert open_urls(server) == ["data:,a", "data:,b"]
    guard.settle([b"data:,a", b"data:,b"], DONE)
    assert guard.settle_now()
    assert open_urls(server) == []


def test_what_is_claimed_again_while_the_filter_is_cleared_is_claimed_once_more(
    guard: ClaimingFilter, server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = Request("data:,a"), Request("data:,b")
    assert check(guard, a) == [Verdict.NEW]
    cleared(guard, server, lambda: check(guard, b))

    generations: list[int] = []

    def clear_once(_: Settlement, shared: BloomFilter) -> None:
        if not generations:
            shared.clear()
        generations.append(shared.generation)

    monkeypatch.setattr(Settlement, "_record", clear_once)
    assert guard.settle_now()
    assert open_urls(server) == []
    assert guard.settle_now()
    assert open_urls(server) == ["data:,a", "data:,b"]


@pytest.mark.parametrize("window", [None, 86_400.0])
def test_a_server_that_lost_all_gets_what_is_done(
    server: PrivateServer, proxy: Proxy, guard: ClaimingFilter
) -> None:
    a, b = Request("data:,a"), Request("data:,b")
    assert check(guard, a) == [Verdict.NEW]
    guard.settle([b"data:,a"], DONE)
    assert guard.settle_now()
    proxy.judge = lambda *_: "before"
    assert check(guard, b) == [Verdict.ALLOWED]
    with redis.Redis.from_url(server.url) as r:
        r.flushall()
    proxy.judge = deliver
    wait_until(guard.settle_now)
    with BloomFilter.open(CONFIG.name, client=server.url) as shared:
        assert shared.exists_many([b"data:,a", b"data:,b"]) == [True, False]
    assert open_urls(server) == ["data:,b"]


@pytest.mark.parametrize("outcome", [DONE, "an error"])
def test_a_claim_whose_reply_was_lost_ends_with_its_request(
    outcome: str, server: PrivateServer, proxy: Proxy, guard: ClaimingFilter
) -> None:
    lose_replies(server, proxy)
    assert check(guard, Request("https://example.org/")) == [Verdict.ALLOWED]
    proxy.judge = deliver
    with BloomFilter.open(CONFIG.name, client=server.url) as shared:
        assert shared.count_claims().open == 1
        guard.settle([b"https://example.org/"], outcome)
        wait_until(lambda: guard.settle_now() and not guard._open)
        assert shared.count_claims().open == 0
        assert shared.exists(b"https://example.org/") is (outcome == DONE)


@pytest.mark.parametrize("policy", ["drop"])
def test_a_claim_of_a_request_that_was_dropped_is_offered(
    server: PrivateServer, proxy: Proxy, guard: ClaimingFilter
) -> None:
    a, b = Request("data:,a"), Request("data:,b")
    lose_replies(server, proxy)
    assert check(guard, a) == [Verdict.DROPPED]
    # The server is left alone for a while, so nothing of this one comes to it.
    assert check(guard, b) == [Verdict.DROPPED]
    proxy.judge = deliver
    assert open_urls(server) == ["data:,a"]
    assert guard.take_over() is None
    wait_until(guard.settle_now, 60)
    taken = guard.take_over()
    assert taken is not None
    assert [request.url for request in taken] == ["data:,a"]
    guard.settle([b"data:,a"], DONE)
    assert guard.settle_now()
    assert open_urls(server) == []
    assert check(guard, a, b) == [Verdict.SEEN, Verdict.NEW]


@pytest.mark.parametrize("policy", ["drop"])
@pytest.mark.parametrize("is_asked_again", [True, False])
def test_a_request_that_was_dropped_and_is_met_again_is_not_offered(
    is_asked_again: bool, server: PrivateServer, proxy: Proxy, guard: ClaimingFilter
) -> None:
    a = Request("data:,a")
    lose_replies(server, proxy)
    assert check(guard, a) == [Verdict.DROPPED]
    if is_asked_again:
        proxy.judge = deliver
        wait_until(lambda: check(guard, a) == [Verdict.NEW], 60)
    else:
        guard.note(b"data:,a", a)
        assert guard.decide(b"data:,a", droppable=False) is Verdict.ALLOWED
        proxy.judge = deliver
    # It ends before anything is sent of what was dropped. What failed is left to the next start.
    guard.settle([b"data:,a"], "an error")
    wait_until(guard.settle_now, 60)
    assert guard.take_over() == []
    assert open_urls(server) == []


def test_what_is_done_is_recorded_at_the_end_though_the_server_was_away(
    server: PrivateServer, proxy: Proxy, guard: ClaimingFilter
) -> None:
    assert check(guard, Request("https://example.org/")) == [Verdict.NEW]
    guard.settle([b"https://example.org/"], DONE)
    proxy.judge = lambda *_: "before"
    assert not guard.settle_now()
    proxy.judge = deliver
    # The server is left alone for a while after a failure, but not at the end.
    guard.finish(lambda _: None)
    with BloomFilter.open(CONFIG.name, client=server.url) as shared:
        assert shared.exists(b"https://example.org/")
        assert shared.count_claims().open == 0
