"""The add-on is all a project needs, and what the project or the spider sets wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import scrapy_redis.scheduler
from crawling import ADDON
from scrapy import Spider
from scrapy.core.scheduler import Scheduler as LocalScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.misc import load_object

from scrapy_ext import BloomDupeFilter, Scheduler
from scrapy_ext.middleware import BatchingMiddleware

if TYPE_CHECKING:
    from collections.abc import Mapping

THEIRS = "scrapy.dupefilters.BaseDupeFilter"
PATH = "scrapy_ext.middleware.BatchingMiddleware"
SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
}


class OwnScheduler(scrapy_redis.scheduler.Scheduler):  # type: ignore[misc]
    """A project's own kind of the scheduler of scrapy-redis."""


class OwnFilter(BloomDupeFilter):
    """A project's own kind of our filter."""


def spider_of(settings: Mapping[str, Any]) -> type[Spider]:
    return type("Own", (Spider,), {"custom_settings": dict(settings)})


@pytest.mark.parametrize("is_of_spider", [False, True], ids=["project", "spider"])
@pytest.mark.parametrize(
    ("given", "dupefilter", "scheduler", "place"),
    [
        ({}, BloomDupeFilter, LocalScheduler, 10),
        ({"SPIDER_MIDDLEWARES": {PATH: 7}}, BloomDupeFilter, LocalScheduler, 7),
        ({"SPIDER_MIDDLEWARES": {PATH: None}}, BloomDupeFilter, LocalScheduler, None),
        ({"DUPEFILTER_CLASS": OwnFilter}, OwnFilter, LocalScheduler, 10),
        ({"DUPEFILTER_CLASS": THEIRS}, BaseDupeFilter, LocalScheduler, "none"),
        ({"SCHEDULER": OwnScheduler}, BloomDupeFilter, OwnScheduler, 10),
        # Ours takes the place of that of scrapy-redis, and needs nothing else.
        ({"SCHEDULER": SCRAPY_REDIS["SCHEDULER"]}, RFPDupeFilter, Scheduler, "none"),
        ({"SCHEDULER": "scrapy_ext.Scheduler"}, RFPDupeFilter, Scheduler, "none"),
        (SCRAPY_REDIS, None, Scheduler, "none"),
    ],
)
def test_what_is_set_by_whom(
    given: dict[str, Any],
    dupefilter: type | None,
    scheduler: type,
    place: Any,
    is_of_spider: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # (get_crawler of Scrapy 2.14 asks for a reactor that is installed.)
    spider, project = (spider_of(given), {}) if is_of_spider else (Spider, given)
    crawler = Crawler(spider, {**ADDON, **project})
    crawler.addons.load_settings(crawler.settings)
    found = crawler.settings
    assert dupefilter is None or load_object(found["DUPEFILTER_CLASS"]) is dupefilter
    assert load_object(found["SCHEDULER"]) is scheduler
    middlewares = {load_object(key): at for key, at in found.getdict("SPIDER_MIDDLEWARES").items()}
    assert middlewares == ({} if place == "none" else {BatchingMiddleware: place})
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    wins = f"sets DUPEFILTER_CLASS to {THEIRS}, which wins over the add-on"
    assert [wins in message for message in warned] == [True] * (dupefilter is BaseDupeFilter)
