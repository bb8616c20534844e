"""The threads that ask servers: every job is run, in order for each line, and they end."""

from __future__ import annotations

import queue
import random
import threading
import time

import pytest
from servers import wait_until
from several import LONG

from bloomlock.runtime import workers as workers_module
from bloomlock.runtime.workers import Line, Workers

CALLERS = 4
JOBS = 1500


@pytest.fixture
def workers(monkeypatch):
    """Workers of their own, which end about as often as they find something to do."""
    monkeypatch.setattr(workers_module, "IDLE_SECONDS", 0.0005)
    made = Workers()
    monkeypatch.setattr(workers_module, "WORKERS", made)
    return made


def from_several_threads(seed, call):

    def run(number):
        rng = random.Random(seed + number)
        for job in range(JOBS):
            call(number, job)
            if rng.random() < 0.2:
                time.sleep(rng.uniform(0, 0.001))

    callers = [
        threading.Thread(target=run, args=(number,), daemon=True) for number in range(CALLERS)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LONG)
    assert not any(caller.is_alive() for caller in callers)


def test_every_job_is_run_once(workers, seed):
    done = []
    from_several_threads(seed, lambda *what: workers.start(lambda: done.append(what)))
    wait_until(lambda: len(done) >= CALLERS * JOBS)
    assert len(set(done)) == len(done) == CALLERS * JOBS


class LateQueue(queue.SimpleQueue):
    """Says that there is nothing at the very moment when something comes."""

    def get(self, **_):
        raise queue.Empty


def test_a_job_given_to_a_thread_that_was_about_to_end(workers):
    workers._jobs, workers._idle = LateQueue(), 1
    job = list
    workers.start(job)
    assert workers._next() is job
    assert workers._idle == 0
    assert workers._next() is None


def test_a_line_keeps_its_order(workers, seed):
    lines = [Line() for _ in range(CALLERS)]
    done = [[] for _ in range(CALLERS)]
    from_several_threads(
        seed,
        lambda line, job: lines[line].append(lambda: done[line].append(job)),
    )
    wait_until(lambda: sum(map(len, done)) >= CALLERS * JOBS)
    assert done == [list(range(JOBS))] * CALLERS


def test_threads_end(workers):
    before, gate = set(threading.enumerate()), threading.Event()
    for _ in range(10):
        workers.start(gate.wait)
    ours = set(threading.enumerate()) - before
    assert len(ours) == 10
    gate.set()
    wait_until(lambda: not any(thread.is_alive() for thread in ours))


def test_where_no_thread_can_be_started_the_caller_does_it(workers, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    line = Line()
    line.append(lambda: done.append(1))
    line.append(lambda: done.append(2))
    assert done == [1, 2]
