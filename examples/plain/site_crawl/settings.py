"""One process or several, no queue on disk: `scrapy crawl site -a url=https://docs.scrapy.org/`."""

BOT_NAME = "site_crawl"
SPIDER_MODULES = ["site_crawl.spiders"]
ROBOTSTXT_OBEY = True

ADDONS = {"scrapy_ext.BloomlockAddon": 500}
# Without BLOOMLOCK_URL the filter is in a server that bloomlock starts on this machine.
BLOOMLOCK_CAPACITY = 1_000_000
# Start requests are recorded too, so a link to the start page is a duplicate.
BLOOMLOCK_RECORD_UNFILTERED = True
# Each crawl is a whole one.
BLOOMLOCK_CLEAR_ON_CLOSE = True
