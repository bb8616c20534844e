"""Celery, RQ and Dramatiq with their own workers: each user gets one mail."""

from __future__ import annotations

from collections import Counter

import pytest

pytestmark = pytest.mark.processes
USERS = ["1", "2", "3", "1", "2"]
MAILS = Counter({"/welcome/1": 1, "/welcome/2": 1, "/welcome/3": 1})


def test_celery_with_a_worker_that_is_killed(start, changed, service, r, valkey):
    service.deadly.add("/welcome/3")
    folder = changed("celery_tasks.py", "ttl=10", "ttl=1")
    words = ("-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", 2)
    worker = start("celery", *words, folder=folder)
    send = "import sys; from celery_tasks import *; [welcome.delay(user) for user in sys.argv[1:]]"
    start("celery", "-c", send, *USERS, folder=folder).finish()
    # A task waits in `unacked` until it is done, also one that is tried again later.
    worker.wait_for(
        lambda: set(service.done) == set(MAILS) and not r.llen("celery") + r.hlen("unacked")
    )
    worker.stop()
    assert service.done == MAILS
    assert len(service.killed) == 1
    assert f"pid:{service.killed[0]} exited" in worker.printed


def test_rq(start, service, valkey):
    start("rq", "rq_tasks.py", *USERS).finish()
    start("rq", "-m", "rq.cli", "worker", "--burst", "--url", valkey, "mails").finish()
    assert service.done == MAILS


def test_dramatiq(start, service, r):
    start("dramatiq", "dramatiq_tasks.py", *USERS).finish()
    words = ("-m", "dramatiq", "dramatiq_tasks", "--processes", 2, "--threads", 2)
    worker = start("dramatiq", *words)
    worker.wait_for(lambda: not any(r.hlen(key) for key in r.keys("dramatiq:*.msgs")))
    assert service.done == MAILS
