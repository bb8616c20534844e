"""bloomlock in Scrapy: a duplicates filter that several spider processes share."""

from scrapy_ext.dupefilter import BloomDupeFilter
from scrapy_ext.fingerprints import EarlierFingerprinter, ScrapyRedisFingerprinter

__all__ = ["BloomDupeFilter", "EarlierFingerprinter", "ScrapyRedisFingerprinter"]
