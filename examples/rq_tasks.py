"""Welcome mails by RQ: each user gets one.

python rq_tasks.py 1 2 1
rq worker mails
"""

from __future__ import annotations

import os
import sys
from functools import cache
from urllib.request import Request, urlopen

from redis import Redis
from rq import Queue, Retry

from bloomlock import BloomFilter, once

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
MAILER = os.environ.get("MAILER", "http://localhost:8025")


@cache
def welcomed() -> BloomFilter:
    """Make the filter at the first job, in the process that runs it."""
    return BloomFilter("welcomed", capacity=1_000_000, client=URL)


@once(welcomed, key="user")
def welcome(user: str) -> None:
    """Send the mail."""
    urlopen(Request(f"{MAILER}/welcome/{user}", method="POST"))


if __name__ == "__main__":
    queue = Queue("mails", connection=Redis.from_url(URL))
    for user in sys.argv[1:]:
        # A job that meets InProgress is tried again when that user's lease is over.
        queue.enqueue("rq_tasks.welcome", user, retry=Retry(max=3, interval=60))
