"""bloomlock in Scrapy: a duplicates filter that several spider processes share."""

from scrapy_ext.addon import BloomlockAddon
from scrapy_ext.dupefilter import BloomDupeFilter
from scrapy_ext.middleware import BatchingMiddleware, DownloadMiddleware
from scrapy_ext.migration import EarlierFingerprinter, ScrapyRedisFingerprinter
from scrapy_ext.scheduler import Scheduler

__all__ = [
    "BatchingMiddleware",
    "BloomDupeFilter",
    "BloomlockAddon",
    "DownloadMiddleware",
    "EarlierFingerprinter",
    "Scheduler",
    "ScrapyRedisFingerprinter",
]
