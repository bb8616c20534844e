"""The add-on is all a project needs, and what the project sets wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import scrapy_redis.scheduler
from crawling import ADDON
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.utils.misc import load_object

from scrapy_ext import BloomDupeFilter, Scheduler
from scrapy_ext.middleware import BatchingMiddleware

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

THEIRS = "scrapy.dupefilters.BaseDupeFilter"
PATH = "scrapy_ext.middleware.BatchingMiddleware"


class OwnScheduler(scrapy_redis.scheduler.Scheduler):  # type: ignore[misc]
    """A project's own kind of the scheduler of scrapy-redis."""


class OwnFilter(BloomDupeFilter):
    """A project's own kind of our filter."""


def settings_of(spider: type[Spider] = Spider, **settings: Any) -> BaseSettings:
    # (get_crawler of Scrapy 2.14 asks for a reactor that is installed.)
    crawler = Crawler(spider, {**ADDON, **settings})
    crawler.addons.load_settings(crawler.settings)
    return crawler.settings


def middleware_of(settings: BaseSettings) -> dict[Any, Any]:
    given = settings.getdict("SPIDER_MIDDLEWARES")
    return {load_object(name): number for name, number in given.items()}


def test_it_sets_the_filter_and_the_middleware() -> None:
    settings = settings_of()
    assert load_object(settings["DUPEFILTER_CLASS"]) is BloomDupeFilter
    assert middleware_of(settings) == {BatchingMiddleware: 10}


@pytest.mark.parametrize("number", [None, 7])
def test_the_place_that_a_project_gives_the_middleware_stays(number: int | None) -> None:
    settings = settings_of(SPIDER_MIDDLEWARES={PATH: number})
    assert middleware_of(settings) == {BatchingMiddleware: number}


class WithTheirs(Spider):
    """A spider with another filter."""

    custom_settings = {"DUPEFILTER_CLASS": THEIRS}  # noqa: RUF012 - Scrapy's way


@pytest.mark.parametrize(
    ("spider", "settings"), [(Spider, {"DUPEFILTER_CLASS": THEIRS}), (WithTheirs, {})]
)
def test_another_filter_wins_with_a_warning(
    spider: type[Spider], settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    found = settings_of(spider, **settings)
    assert found["DUPEFILTER_CLASS"] == THEIRS
    assert middleware_of(found) == {}
    (record,) = [record for record in caplog.records if record.name == "bloomlock.scrapy"]
    assert f"sets DUPEFILTER_CLASS to {THEIRS}, which wins over the add-on" in record.getMessage()


class Cluster(Spider):
    """A spider of a project that uses scrapy-redis."""

    custom_settings = {  # noqa: RUF012 - Scrapy's way
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    }


@pytest.mark.parametrize(
    ("spider", "settings"),
    [
        (Spider, {"SCHEDULER": "scrapy_redis.scheduler.Scheduler"}),
        (Spider, {"SCHEDULER": "scrapy_ext.Scheduler"}),
        (Cluster, {}),
    ],
)
def test_our_scheduler_takes_the_place_of_that_of_scrapy_redis(
    spider: type[Spider], settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    found = settings_of(spider, **settings)
    assert load_object(found["SCHEDULER"]) is Scheduler
    assert middleware_of(found) == {}
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_scheduler_of_the_project_stays() -> None:
    assert settings_of(SCHEDULER=OwnScheduler)["SCHEDULER"] is OwnScheduler


def test_a_kind_of_our_filter_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_of(DUPEFILTER_CLASS=OwnFilter)
    assert settings["DUPEFILTER_CLASS"] is OwnFilter
    assert middleware_of(settings) == {BatchingMiddleware: 10}
    assert not [record for record in caplog.records if record.name == "bloomlock.scrapy"]
