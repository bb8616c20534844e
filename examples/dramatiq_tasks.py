"""Welcome mails by Dramatiq: each user gets one.

dramatiq dramatiq_tasks
python dramatiq_tasks.py 1 2 1
"""

from __future__ import annotations

import os
import sys
from functools import cache
from urllib.request import Request, urlopen

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bloomlock import BloomFilter, once

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
MAILER = os.environ.get("MAILER", "http://localhost:8025")
dramatiq.set_broker(RedisBroker(url=URL))


@cache
def welcomed() -> BloomFilter:
    """Make the filter at the first message, for all threads of a worker's process."""
    return BloomFilter("welcomed", capacity=1_000_000, client=URL)


@dramatiq.actor(min_backoff=1_000)
@once(welcomed, key="user")
def welcome(user: str) -> None:
    """Send the mail; Dramatiq tries again by itself what meets InProgress."""
    urlopen(Request(f"{MAILER}/welcome/{user}", method="POST"))


if __name__ == "__main__":
    for user in sys.argv[1:]:
        welcome.send(user)
