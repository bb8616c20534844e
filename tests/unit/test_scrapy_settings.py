"""The settings of a crawl: what is read, and what is refused with one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler

from bloomlock.errors import ConfigurationError
from scrapy_ext.settings import CrawlSettings, warn_of_unknown


class PageSpider(Spider):
    name = "pages"
    category = "1"


def read(**settings: Any) -> CrawlSettings:
    named = {f"BLOOMLOCK_{name.upper()}": value for name, value in settings.items()}
    return CrawlSettings.read(Crawler(PageSpider, named))


def test_texts_of_the_command_line_are_read() -> None:
    settings = read(capacity="5000", resume="0", persist="True", filter='{"strategy": "lua"}')
    assert (settings.capacity, settings.resume, settings.persist) == (5000, False, True)
    assert settings.options == {"strategy": "lua"}
    assert read(filter={"timeout": 5}).timeout == 5


def test_attributes_of_the_spider_fill_the_name() -> None:
    assert read(name="%(name)s:%(category)s 100%%").name == "pages:1 100%"
    assert read(name="all").attributes is None


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("name", "", r"a text in which %\(NAME\)s"),
        ("name", "%(page)s", "the spider has no attribute 'page'"),
        ("name", "100%", "%% for a percent sign"),
        ("capacity", 0, "a whole number above 0"),
        ("capacity", 1.5, "a whole number"),
        ("capacity", True, "a whole number"),
        ("error_rate", 1, "a number above 0 and below 1"),
        ("window", "soon", "a number above 0"),
        ("lease", -1, "a number above 0"),
        ("retries", -1, "a whole number from 0 to 100"),
        ("retries", 101, "a whole number from 0 to 100"),
        ("pace", "slow", "'shared', 'process'"),
        ("on_outage", "drop", "'wait', 'close'"),
        ("persist", "perhaps", "True and False"),
        ("filter", "{", "a dict"),
        ("filter", {"capacity": 1}, "allowed are strategy, "),
    ],
)
def test_what_is_not_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigurationError, match=f"BLOOMLOCK_{name.upper()} .*{allowed}"):
        read(**{name: value})


def test_a_setting_that_there_is_not(caplog: pytest.LogCaptureFixture) -> None:
    crawler = Crawler(PageSpider, {"BLOOMLOCK_CAPACTIY": 1, "BLOOMLOCK_MARK": "processed"})
    warn_of_unknown(crawler.settings)
    assert "no setting BLOOMLOCK_CAPACTIY; it has no effect. Known are" in caplog.text
    assert "no setting BLOOMLOCK_MARK" in caplog.text
