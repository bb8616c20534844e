"""The server goes away in the middle of a crawl, and comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from crawling import ADDON, ALONE, PATIENCE
from proxy import Proxy, deliver
from servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis
    from crawling import Runner, Site

WAYS = [pytest.param(ALONE, id="filter alone"), pytest.param(ADDON, id="add-on")]


class Outage:
    """The server does not answer from the third request to the site on, until `end`."""

    def __init__(self, url: str, site: Site) -> None:
        self.proxy = Proxy(url)
        self.refused = 0
        site.links = lambda page: [page + 1, page + 2] if page < 6 else []
        site.on_request = self._note

    def _note(self, count: int) -> None:
        if count == 3:
            self.proxy.judge = self._refuse

    def _refuse(self, *_: Any) -> str:
        self.refused += 1
        return "before"

    def end(self) -> None:
        self.proxy.judge = deliver


@pytest.fixture
def outage(valkey: str, r: redis.Redis, site: Site) -> Iterator[Outage]:
    del r
    made = Outage(valkey, site)
    with made.proxy:
        yield made
        made.end()


@pytest.mark.parametrize("set_up", WAYS)
def test_the_crawl_goes_on_when_the_server_is_back(
    set_up: dict[str, Any], outage: Outage, crawls: Runner, site: Site
) -> None:
    started = crawls.start(set_up, BLOOMLOCK_URL=outage.proxy.url)
    wait_until(lambda: outage.refused >= 3 or not started.is_running, PATIENCE)
    outage.end()
    done = started.finish()
    assert {*done.fetched} == {*site.paths}
    assert done.reason == "finished"
    assert done.own("outages") == 1
    # The filter alone does not wait, and the crawl may end before.
    assert set_up is ALONE or len(done.lines("answers again after")) == 1
    assert set_up is ALONE or len(done.lines("cannot be used (ConnectionError")) == 1
    assert sorted(site.requested) == site.paths


@pytest.mark.parametrize("set_up", WAYS)
def test_with_close_it_ends_and_the_next_one_goes_on(
    set_up: dict[str, Any], outage: Outage, crawls: Runner, site: Site
) -> None:
    first = crawls.run(set_up, BLOOMLOCK_URL=outage.proxy.url, BLOOMLOCK_ON_OUTAGE="close")
    assert first.reason == "bloomlock_outage"
    outage.end()
    if set_up is ADDON:
        second = crawls.run(set_up)
        assert second.reason == "finished"
        assert {*first.fetched, *second.fetched} == {*site.paths}
