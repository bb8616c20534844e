"""bloomlock in Scrapy: a duplicates filter that several spider processes share."""

from scrapy_ext.dupefilter import BloomDupeFilter

__all__ = ["BloomDupeFilter"]
