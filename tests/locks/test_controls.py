"""The harness on redis-py's own lock and on python-redis-lock: what it finds, and ours does not.

These tests hold what the harness can see; one that fails after an upgrade is good news.
"""

from __future__ import annotations

import threading

import pytest
from lock_chaos.harness import Chaos
from lock_chaos.locks import NAME
from servers import wait_until

pytestmark = pytest.mark.processes

BOTH = ("redis-py", "python-redis-lock")
KEY = {"redis-py": NAME, "python-redis-lock": f"lock:{NAME}"}
SIGNAL = f"lock-signal:{NAME}"
TTL = 1
RENEWED = {"redis-py": {}, "python-redis-lock": {"auto_renewal": True}}
NOT_OWNED = {"redis-py": "LockNotOwnedError", "python-redis-lock": "NotAcquired"}


@pytest.fixture
def chaos(forks, chaos_server, tmp_path, seed):
    with Chaos(forks, chaos_server.url, tmp_path, TTL, seed) as made:
        made.longest_lease = TTL
        yield made


@pytest.fixture
def patient(forks, chaos_server, tmp_path, seed):
    """With leases that do not end before the test does."""
    with Chaos(forks, chaos_server.url, tmp_path, 30 * TTL, seed) as made:
        yield made


def cut_first(cutting, verdict, name):
    """Cut the next command of this name, and no other."""
    left = [verdict]

    def judge(asked, _number):
        return left.pop() if left and asked == name else "pass"

    cutting.judge = judge


def kinds(chaos):
    return [violation.kind for violation in chaos.violations()]


def sleepers(chaos):
    return sum(client["cmd"] == "blpop" for client in chaos.server.client_list())


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("retries", [False, True])
def test_a_lost_reply_leaves_a_lock_nobody_owns(chaos, cutting, kind, retries):
    one = chaos.worker(kind, url=cutting.url, retries=retries)
    other = chaos.worker(kind)
    chaos.server.delete(KEY[kind])
    cut_first(cutting, "after", "SET")
    # A retry is told "busy" by its own first try, and waits for itself.
    one.tell("acquire", within=TTL)
    one.await_event("asked")
    wait_until(lambda: chaos.server.exists(KEY[kind]), what="its first try")
    chaos.server.persist(KEY[kind])
    other.do("acquire", within=TTL)
    one.await_done()
    assert cutting.cuts == {"before": 0, "after": 1}
    assert chaos.counts()["asked"] == 2
    assert chaos.counts()["acquired"] == 0
    assert chaos.errors("failed") == {
        "timeout": 1 + retries,
        **({} if retries else {"ConnectionError": 1}),
    }
    assert chaos.server.exists(KEY[kind])


def test_one_that_lost_a_reply_cannot_ask_again(chaos, cutting):
    one = chaos.worker("python-redis-lock", url=cutting.url)
    cut_first(cutting, "after", "SET")
    one.do("acquire")
    one.do("acquire")
    assert chaos.errors("failed") == {"ConnectionError": 1, "AlreadyAcquired": 1}


@pytest.mark.parametrize("kind", BOTH)
def test_a_release_that_worked_is_said_to_have_failed(chaos, cutting, kind):
    one = chaos.worker(kind, url=cutting.url, retries=True)
    one.do("acquire")
    # The script is known to the server by now, or is loaded after a first EVALSHA.
    chaos.server.script_flush()
    one.do("release")
    one.do("acquire")
    cut_first(cutting, "after", "EVALSHA")
    one.do("release")
    assert cutting.cuts["after"] == 1
    assert chaos.errors("released") == {"None": 1, NOT_OWNED[kind]: 1}
    assert kinds(chaos) == []


@pytest.mark.parametrize("kind", BOTH)
def test_a_stopped_holder_is_not_told(chaos, kind):
    one = chaos.worker(kind, **RENEWED[kind])
    other = chaos.worker(kind, **RENEWED[kind])
    one.tell("loop", holds=1, shortest=0.9 * TTL, longest=0.9 * TTL)
    one.await_event("valid")  # it has read what it is going to write over
    one.stop()
    other.do("loop", holds=1)
    one.go_on()
    one.await_done()
    # It went on and wrote, over what had been written meanwhile.
    assert kinds(chaos) == ["overlap"]
    assert chaos.counts()["lost"] == chaos.counts()["told"] == 0
    assert chaos.counts()["wrote"] == 2
    assert chaos.register.state().value == 1
    # Only then it was told, by its release.
    assert chaos.errors("released") == {"None": 1, NOT_OWNED[kind]: 1}


@pytest.mark.parametrize("kind", BOTH)
def test_a_forgotten_holder_believes_in_it_beyond_its_lease(chaos, kind):
    one = chaos.worker(kind, **RENEWED[kind])
    other = chaos.worker(kind)
    one.do("acquire")
    chaos.flush()
    other.do("acquire")
    one.do("hold", seconds=1.5 * TTL)
    one.do("release")
    assert kinds(chaos) == ["stale"]
    assert chaos.counts()["lost"] == 0


@pytest.mark.parametrize("kind", BOTH)
def test_a_fork_gives_away_its_parents_lock(chaos, kind):
    one, other = chaos.workers(2, kind)
    one.do("acquire")
    one.do("fork", tries=["release"])
    assert one.await_event("child")["found"] == {"release": None}
    other.do("acquire", within=TTL)
    one.do("hold", seconds=0.01)
    one.do("release")
    assert kinds(chaos) == ["overlap"]


def test_one_cut_connection_ends_all_renewals(chaos, cutting):
    one = chaos.worker("python-redis-lock", url=cutting.url, auto_renewal=True)
    other = chaos.worker("python-redis-lock")
    one.do("acquire")
    cut_first(cutting, "before", "EVALSHA")
    other.tell("acquire")
    one.tell("hold", seconds=30, interrupt=True)
    other.await_done()
    one.do("release")
    assert cutting.cuts["before"] == 1
    assert kinds(chaos) == ["overlap"]
    assert chaos.counts()["lost"] == 0


def test_a_slow_waiter_sleeps_through_a_free_lock(patient, cutting):
    """Asked before the release, listening after the signal was gone: nothing will wake it."""
    one = patient.worker("python-redis-lock")
    slow = patient.worker("python-redis-lock", url=cutting.url)
    one.do("acquire")
    came, go = threading.Event(), threading.Event()

    def judge(name, _number):
        if name == "BLPOP":
            came.set()
            go.wait(30)
        return "pass"

    cutting.judge = judge
    slow.tell("acquire")
    assert came.wait(30)
    one.do("release")
    wait_until(lambda: not patient.server.exists(SIGNAL), what="the end of the signal")
    assert not patient.server.exists(KEY["python-redis-lock"])
    go.set()
    wait_until(lambda: sleepers(patient) == 1, what="its sleep")
    assert slow.state == "asked"
    assert patient.server.keys() == []


def test_a_dead_waiter_takes_the_signal_with_it(patient):
    one, dead, other = patient.workers(3, "python-redis-lock")
    one.do("acquire")
    dead.tell("acquire")
    wait_until(lambda: sleepers(patient) == 1, what="the sleep of the first")
    dead.stop()
    other.tell("acquire")
    wait_until(lambda: sleepers(patient) == 2, what="the sleep of the second")
    one.do("release")
    dead.kill()
    # The lock is free, its signal was given to the dead, and the other sleeps.
    assert patient.server.keys() == []
    assert other.state == "asked"
    assert sleepers(patient) == 1
