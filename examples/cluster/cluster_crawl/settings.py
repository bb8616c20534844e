"""Any number of machines: start `scrapy crawl site -a url=...` as often as you like.

All processes need the same Redis server.
"""

import os

BOT_NAME = "cluster_crawl"
SPIDER_MODULES = ["cluster_crawl.spiders"]
ROBOTSTXT_OBEY = True

# Read by scrapy-redis and by bloomlock.
REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
SCHEDULER = "scrapy_redis.scheduler.Scheduler"
SCHEDULER_PERSIST = True
# Seconds for which a process without work waits for pages that others find.
SCHEDULER_IDLE_BEFORE_CLOSE = 2

DUPEFILTER_CLASS = "scrapy_ext.BloomDupeFilter"
SPIDER_MIDDLEWARES = {"scrapy_ext.middleware.BatchingMiddleware": 10}
BLOOMLOCK_CAPACITY = 10_000_000
BLOOMLOCK_RECORD_UNFILTERED = True
