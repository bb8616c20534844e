"""The server dies, hangs or was never there: the crawl goes by its policy, and ends."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGES = 8
LINKS_PER_PAGE = 2 * PAGES
POLICIES = ["allow", "drop", "close"]
# The queue of scrapy-redis stays on a server that works: what it does without one is its own.
SCRAPY_REDIS = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": True}
SCHEDULERS = [pytest.param({}, id="scrapy"), pytest.param(SCRAPY_REDIS, id="scrapy-redis")]


def fetched_after_an_outage_at_the_start(policy: str) -> Counter[str]:
    """What each policy makes of a crawl in which no link can be checked."""
    start = Counter(["/0"])
    # Nothing says that the start page was fetched already, so its first link is followed.
    return start + Counter(f"/{page}" for page in range(PAGES)) if policy == "allow" else start


def check_stats(result: Any, policy: str) -> None:
    assert result.process.returncode == 0
    assert "spider_exceptions/count" not in result.stats
    assert "log_count/CRITICAL" not in result.stats
    assert result.own("outages") == 1
    assert "cannot be asked" in result.log
    reason = "bloomlock_outage" if policy == "close" else "finished"
    assert result.stats["finish_reason"] == reason


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_listens(policy: str, scheduler: dict[str, Any], crawl: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"redis://127.0.0.1:{port}/0"
    result = crawl(BLOOMLOCK_URL=url, BLOOMLOCK_ON_OUTAGE=policy, **scheduler)
    check_stats(result, policy)
    fetched = Counter(result.fetched)
    if policy == "close":
        # The spider is closed as soon as it is open; its start page may be under way by then.
        assert fetched <= Counter(["/0"])
        return
    assert fetched == fetched_after_an_outage_at_the_start(policy)
    decided = result.own("allowed"), result.own("dropped")
    assert decided == ((PAGES, 0) if policy == "allow" else (0, LINKS_PER_PAGE))


@pytest.fixture
def silent_server() -> Iterator[str]:
    """URL of something that takes connections and never answers."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    held.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for each in held:
        each.close()


def test_a_server_that_hangs_does_not_cost_a_timeout_for_each_link(
    silent_server: str, crawl: Callable[..., Any]
) -> None:
    # Nothing is remembered of what is dropped, so every link would ask again.
    result = crawl(BLOOMLOCK_URL=silent_server, BLOOMLOCK_TIMEOUT=0.3, BLOOMLOCK_ON_OUTAGE="drop")
    check_stats(result, "drop")
    assert result.fetched == ["/0"]
    assert result.own("dropped") == LINKS_PER_PAGE
    assert result.own("errors") <= 3


@pytest.mark.parametrize("policy", POLICIES)
def test_the_server_is_killed_in_the_middle(
    policy: str, crawl: Callable[..., Any], site: Any
) -> None:
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
    # All links stand on the first page, so all were queued before the server died.
    assert set(fetched) <= set(site.paths)
    if policy == "drop":
        # A link whose check lost its reply may be recorded by now, so it is not dropped.
        assert sum(fetched.values()) == PAGES + result.own("unknown")
        assert result.own("unknown") <= 1
        assert result.own("dropped") > 0
    if policy == "allow":
        # Without the filter this process knows only what it let through itself since.
        assert set(fetched) == set(site.paths)
        assert max(fetched.values()) <= 2
        assert result.own("allowed") + result.own("unknown") > 0
