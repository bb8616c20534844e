"""Any number of machines: start `scrapy crawl site -a url=...` as often as you like.

All processes need the same Redis server. A process may be killed at any moment: another one takes
over what it was fetching, and nothing is lost.
"""

import os

BOT_NAME = "cluster_crawl"
SPIDER_MODULES = ["cluster_crawl.spiders"]
ROBOTSTXT_OBEY = True

# The queue and the filter are there. The settings of scrapy-redis are read.
REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
ADDONS = {"scrapy_ext.BloomlockAddon": 500}
BLOOMLOCK_CAPACITY = 10_000_000
