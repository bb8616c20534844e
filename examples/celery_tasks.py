"""Welcome mails by Celery: each user gets one, also when a worker is killed.

celery -A celery_tasks worker
"""

from __future__ import annotations

import os
from functools import cache
from urllib.request import Request, urlopen

from celery import Celery, Task

from bloomlock import BloomFilter, once
from bloomlock.errors import InProgress

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
MAILER = os.environ.get("MAILER", "http://localhost:8025")

app = Celery("mails", broker=URL)
app.conf.task_acks_late = True  # a message is acknowledged after its task,
app.conf.task_reject_on_worker_lost = True  # and goes back where the process of a task dies
app.conf.worker_prefetch_multiplier = 1


@cache
def welcomed() -> BloomFilter:
    """Make the filter at the first task, in the process that runs it."""
    return BloomFilter("welcomed", capacity=1_000_000, client=URL)


@app.task(bind=True, max_retries=None)
def welcome(self: Task, user: int) -> None:
    """Mail a user; if a process that may be dead has the user, try when its lease is over."""
    try:
        mail(user)
    except InProgress as busy:
        raise self.retry(countdown=busy.remaining) from busy


@once(welcomed, key="user", ttl=10)
def mail(user: int) -> None:
    """Send the mail."""
    urlopen(Request(f"{MAILER}/welcome/{user}", method="POST"))
