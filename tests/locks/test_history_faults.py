"""Holders and waiters stopped, killed and forked at a chosen moment."""

from __future__ import annotations

import os
import signal
import time

import pytest
import servers
from lock_chaos.harness import KEYS, NO_SCRIPTS, Chaos
from proxy import Proxy
from servers import wait_until

from bloomlock.server import PrivateServer

pytestmark = pytest.mark.processes

EXCLUSIVE = ("lock", "fair", "reentrant", "write", "async")
NOT_OWNED = "LockNotOwnedError"


def waiting(chaos):
    return chaos.server.zcard(KEYS.queue)


def start_waiting(chaos, hand):
    """Let a worker ask for the lock and stand in its queue."""
    before = waiting(chaos)
    hand.tell("acquire")
    wait_until(lambda: waiting(chaos) == before + 1, what="its place in the queue")


def held_by(chaos, hand):
    """Tell whether the hold that this worker believes in is the server's."""
    token = hand.await_event("acquired", hand.count("acquired"))["token"]
    return chaos.server.get(KEYS.lock) == token.encode()


@pytest.fixture
def chaos(forks, chaos_server, tmp_path, seed):
    """A run whose leases outlive a machine that stands still for half a second."""
    with Chaos(forks, chaos_server.url, tmp_path, 1.5, seed) as made:
        yield made


@pytest.fixture
def patient(forks, chaos_server, tmp_path, seed):
    """A run whose leases outlive four renewals that fail, also on a busy machine."""
    with Chaos(forks, chaos_server.url, tmp_path, 3.0, seed) as made:
        yield made


@pytest.mark.parametrize("kind", EXCLUSIVE)
def test_a_holder_that_slept_through_its_lease_learns_it_at_once(chaos, kind):
    one, other = chaos.workers(2, kind)
    one.tell("loop", holds=1, shortest=1.5, longest=1.5)
    one.await_event("valid")
    one.stop()
    other.do("loop", holds=1)
    one.go_on()
    one.await_done()
    assert chaos.counts()["lost"] == 1
    # What it wanted to write with its old fence was not even tried; the second hold wrote.
    assert chaos.counts()["wrote"] == chaos.register.state().value == 2
    assert chaos.counts()["refused"] == 0
    assert chaos.errors("released") == {"None": 2, "LockLostError": 1}
    assert one.count("told") == 1
    chaos.judge()


@pytest.mark.parametrize("kind", EXCLUSIVE)
def test_a_dead_holder_keeps_nobody_out_for_ever(chaos, kind):
    one, *others = chaos.workers(4, kind)
    one.do("acquire")
    for other in others:
        other.tell("loop", holds=5)
    wait_until(lambda: waiting(chaos) == 3, what="all in the queue")
    one.kill()
    chaos.judge()
    assert chaos.register.state().value == 15
    assert chaos.counts()["lost"] == 0


# A grant to a dead waiter costs two seconds and its lease: the server's side is the same for all.
@pytest.mark.parametrize("kind", ["fair"])
def test_dead_waiters_are_passed_over(chaos, kind):
    one, *others = chaos.workers(4, kind)
    one.do("acquire")
    for other in others:
        start_waiting(chaos, other)
        other.tell("release")
    others[1].kill()
    one.do("release")
    chaos.judge()
    # In the order of asking: nobody came in between.
    grants = sorted(chaos.holds(), key=lambda hold: hold.start)
    assert [hold.worker for hold in grants if hold.valid] == [0, 1, 3]


@pytest.mark.parametrize("kind", ["async"])
def test_a_waiter_killed_with_the_grant_in_its_pocket(chaos, kind):
    one, dead, other = chaos.workers(3, kind)
    one.do("acquire")
    start_waiting(chaos, dead)
    dead.stop()
    start_waiting(chaos, other)
    one.do("release")
    # The server says the lock is held, by one who does not know it yet.
    assert waiting(chaos) == 1
    assert chaos.server.exists(KEYS.lock)
    assert dead.state == other.state == "asked"
    dead.kill()
    other.tell("release")
    chaos.judge()
    assert [hold.worker for hold in chaos.holds() if hold.valid] == [0, 2]


@pytest.mark.parametrize("kind", ["lock", "async"])
def test_a_grant_that_was_slept_through_is_none(chaos, kind):
    one, slow, other = chaos.workers(3, kind)
    one.do("acquire")
    start_waiting(chaos, slow)
    slow.stop()
    start_waiting(chaos, other)
    one.do("release")
    other.await_event("acquired")
    slow.go_on()
    wait_until(lambda: waiting(chaos) == 1, what="its asking again")
    other.do("release")
    slow.tell("release")
    chaos.judge()
    grants = sorted(chaos.holds(), key=lambda hold: hold.start)
    assert [hold.worker for hold in grants if hold.valid] == [0, 2, 1]


@pytest.mark.parametrize("kind", ["lock", "reentrant", "read", "async"])
def test_a_fork_holds_nothing_and_takes_nothing(chaos, kind):
    one, other = chaos.worker(kind), chaos.worker("write" if kind == "read" else kind)
    one.do("acquire")
    one.do("fork", tries=["check", "remaining", "fence", "token", "extend", "release"])
    assert one.await_event("child")["found"] == {
        "check": NOT_OWNED,
        "remaining": 0,
        "fence": None,
        "token": None,
        "extend": NOT_OWNED,
        "release": NOT_OWNED,
    }
    # Its parent holds on, and goes on renewing.
    other.do("acquire", within=0.0)
    one.do("hold", seconds=1.2 * chaos.ttl)
    assert kind == "read" or held_by(chaos, one)
    one.do("release")
    other.do("acquire")
    other.do("release")
    chaos.judge()
    assert chaos.errors("failed") == {"timeout": 1}
    assert chaos.errors("released") == {"None": 2}
    assert chaos.counts()["lost"] == chaos.counts()["told"] == 0


@pytest.mark.parametrize("kind", EXCLUSIVE)
def test_a_holder_is_told_that_the_server_forgot_it(chaos, kind):
    one, other = chaos.workers(2, kind)
    one.do("acquire")
    one.tell("hold", seconds=60.0)
    one.await_event("valid")
    chaos.flush()
    other.do("acquire")
    one.await_event("lost")
    one.await_event("told")
    one.tell("release")
    other.tell("release")
    chaos.judge()
    assert chaos.counts()["lost"] == chaos.counts()["told"] == 1
    assert chaos.errors("released") == {"None": 1, "LockLostError": 1}
    # The two did overlap, as nobody can help, and the checker is not blind to it.
    chaos.wipes.clear()
    assert [violation.kind for violation in chaos.violations()] == ["overlap"]


@pytest.mark.parametrize("kind", ["lock", "async"])
def test_renewals_that_fail_are_tried_again(patient, cutting, kind):
    chaos = patient
    one, other = chaos.worker(kind, url=cutting.url), chaos.worker(kind)
    one.do("acquire")
    verdicts = ["before", "after", "after", "before"]

    def judge(name, _number):
        return verdicts.pop() if name.startswith("EVAL") and verdicts else "pass"

    cutting.judge = judge
    start_waiting(chaos, other)
    one.do("hold", seconds=2 * chaos.ttl)
    assert cutting.cuts == {"before": 2, "after": 2}
    assert chaos.counts()["lost"] == 0
    one.do("release")
    other.tell("release")
    chaos.judge()
    assert chaos.errors("released") == {"None": 2}


@pytest.mark.parametrize("kind", ["lock", "async"])
def test_a_holder_knows_its_lease_is_over_though_no_server_says_so(chaos, chaos_server, kind):
    one, other = chaos.workers(2, kind)
    one.do("acquire")
    start_waiting(chaos, other)
    one.tell("hold", seconds=60.0)
    one.await_event("valid")
    os.kill(chaos_server.pid, signal.SIGSTOP)
    try:
        one.await_event("lost")
        one.await_event("told")
    finally:
        os.kill(chaos_server.pid, signal.SIGCONT)
    # Whoever waited goes on waiting.
    other.await_event("acquired")
    one.tell("release")
    other.tell("release")
    chaos.judge()
    assert chaos.errors("released") == {"None": 1, "LockLostError": 1}


@pytest.mark.parametrize("kind", ["lock", "async"])
@pytest.mark.parametrize("verdict", ["before", "after"])
def test_an_announcement_that_got_lost_is_made_again(forks, tmp_path, kind, verdict, seed):
    """Where EVAL is forbidden it is a command of its own."""
    asked = []

    def judge(name, _number):
        asked.append(name)
        return verdict if name == "PUBLISH" and asked.count(name) == 1 else "pass"

    with (
        PrivateServer(binary=servers.require_server("valkey"), config=NO_SCRIPTS) as server,
        Proxy(server.url, judge, pushes=True) as proxy,
        Chaos(forks, server.url, tmp_path, 30.0, seed) as chaos,
    ):
        one, other = chaos.worker(kind, url=proxy.url), chaos.worker(kind)
        one.do("acquire")
        start_waiting(chaos, other)
        other.tell("release")
        one.do("release")
        chaos.judge()
    assert asked.count("PUBLISH") == 2
    assert proxy.cuts[verdict] == 1


def over_belief(chaos, hand):
    """Return by how many ms a holder trusted its lock beyond what the server had, at the worst."""
    worst = float("-inf")
    while hand.state == "acquired":
        until = max(event["until"] for event in hand.events() if "until" in event)
        left = chaos.server.pttl(KEYS.lock)
        asked = time.monotonic_ns()
        if left >= 0 and hand.state == "acquired":
            worst = max(worst, until / 1e6 - (asked / 1e6 + left + 1))
    return worst


@pytest.mark.parametrize("kind", ["lock", "async"])
@pytest.mark.parametrize("options", [{}, {"max_hold": 0.3}])
def test_nobody_trusts_a_lock_for_longer_than_the_server_keeps_it(chaos, kind, options):
    one, two = chaos.workers(2, kind, **options)
    one.do("acquire")
    # A waiter's grant is longer than its lease, by what it may take to hear of it.
    two.tell("acquire")
    two.tell("hold", seconds=0.8)
    one.tell("hold", seconds=0.4)
    one.await_event("valid")
    assert over_belief(chaos, one) < 0
    one.do("release")
    two.await_event("valid")
    assert over_belief(chaos, two) < 0
    two.do("release")
    chaos.judge()
