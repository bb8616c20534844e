"""One process or several: `scrapy crawl site -a url=https://docs.scrapy.org/`."""

BOT_NAME = "site_crawl"
SPIDER_MODULES = ["site_crawl.spiders"]
ROBOTSTXT_OBEY = True

ADDONS = {"scrapy_ext.BloomlockAddon": 500}
# Without BLOOMLOCK_URL the crawl is in a server that bloomlock starts on this machine.
BLOOMLOCK_CAPACITY = 1_000_000
