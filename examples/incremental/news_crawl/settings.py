"""Run it every hour: `scrapy crawl news -a url=...` fetches the articles that are new."""

BOT_NAME = "news_crawl"
SPIDER_MODULES = ["news_crawl.spiders"]
ROBOTSTXT_OBEY = True

ADDONS = {"scrapy_ext.BloomlockAddon": 500}
# Pages that gave an item are not fetched again. Room for years of them.
BLOOMLOCK_PERSIST = True
BLOOMLOCK_CAPACITY = 10_000_000
