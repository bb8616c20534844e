"""Run it every hour: `scrapy crawl news -a url=...` fetches the articles that are new."""

BOT_NAME = "news_crawl"
SPIDER_MODULES = ["news_crawl.spiders"]
ROBOTSTXT_OBEY = True

ADDONS = {"scrapy_ext.BloomlockAddon": 500}
# For years of articles; the filter stays from crawl to crawl.
BLOOMLOCK_CAPACITY = 10_000_000
