"""bloomlock in Scrapy: a duplicates filter that several spider processes share."""

from scrapy_ext.dupefilter import BloomDupeFilter
from scrapy_ext.fingerprints import EarlierFingerprinter, ScrapyRedisFingerprinter
from scrapy_ext.scheduler import Scheduler

__all__ = ["BloomDupeFilter", "EarlierFingerprinter", "Scheduler", "ScrapyRedisFingerprinter"]
