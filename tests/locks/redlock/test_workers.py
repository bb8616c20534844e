"""The threads that ask servers: every job is run once, in order for each queue."""

from __future__ import annotations

import threading

import pytest
from servers import wait_until

from bloomlock.runtime import background as workers_module
from bloomlock.runtime.background import SerialQueue, Workers

JOBS = 300


@pytest.fixture
def workers(monkeypatch):
    """Workers of their own, which end about as often as they find something to do."""
    monkeypatch.setattr(workers_module, "IDLE_SECONDS", 0.0005)
    made = Workers()
    monkeypatch.setattr(workers_module, "WORKERS", made)
    return made


def test_every_job_is_run_once_and_a_queue_keeps_its_order(workers):
    queues, done, free = [SerialQueue() for _ in range(4)], [[] for _ in range(4)], []
    for job in range(JOBS):
        for serial, told in zip(queues, done, strict=True):
            serial.append(lambda job=job, told=told: told.append(job))
        workers.start(lambda job=job: free.append(job))
    wait_until(lambda: len(free) + sum(map(len, done)) >= 5 * JOBS)
    assert done == [list(range(JOBS))] * 4
    assert sorted(free) == list(range(JOBS))


def test_where_no_thread_can_be_started_the_caller_does_it(workers, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done, serial = [], SerialQueue()
    serial.append(lambda: done.append(1))
    serial.append(lambda: done.append(2))
    assert done == [1, 2]
