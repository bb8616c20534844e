"""A site, and what runs crawls of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crawling import Runner, Site
from forks import SUPPORT, Forks
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.reactor import install_reactor

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

try:
    is_asyncio_available()
except RuntimeError:
    # The oldest Scrapy asks for a reactor first; a crawl has one.
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")


@pytest.fixture
def site() -> Iterator[Site]:
    with Site().served() as made:
        yield made


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """What starts processes that have imported Scrapy."""
    with Forks("crawl_process.py", PYTHONPATH=str(SUPPORT)) as made:
        yield made


@pytest.fixture
def crawls(
    forks: Forks,
    site: Site,
    valkey: str,
    r: redis.Redis,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Runner]:
    """What runs crawls of the site; the server is empty."""
    del r
    made = Runner(forks, valkey, site, tmp_path_factory.mktemp("crawls"))
    yield made
    made.end()
