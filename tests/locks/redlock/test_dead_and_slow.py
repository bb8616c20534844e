"""Servers that are down, that say nothing, and that answer late."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from road.gate import Gate
from servers import wait_until
from several import LONG, PATIENT, QUICK

from bloomlock import LockLostError, QuorumError, Redlock
from bloomlock.runtime import workers

WORKERS = ("bloomlock-worker", "bloomlock-renewal")


@pytest.fixture
def hasty(monkeypatch):
    """Threads that have nothing to do end sooner, so that the test has less to wait for."""
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.05)


def threads():
    return [thread for thread in threading.enumerate() if thread.name in WORKERS]


@pytest.mark.parametrize("dead", [[0], [2]])
def test_one_of_three_may_be_dead(three, dead):
    for index in dead:
        three.servers[index].kill()
    one_holder_at_a_time(three)


def test_two_of_five_may_be_dead(five):
    five.servers[1].kill()
    five.servers[4].kill()
    one_holder_at_a_time(five)


def test_one_of_five_may_be_dead_and_one_silent(five):
    five.servers[1].kill()
    five.stop(0)
    one_holder_at_a_time(five)


def one_holder_at_a_time(several):
    first, second = several.lock(), several.lock()
    with first:
        assert not second.acquire(blocking=False)
        assert first.owned()
        assert second.locked()
        first.extend()
    with second:
        assert second.owned()
    wait_until(lambda: several.held(first.key) == 0)


@pytest.mark.timeout(LONG)
def test_a_silent_server_is_not_waited_for_if_the_others_are_a_majority(three):
    clients = [redis.Redis.from_url(url, socket_timeout=None) for url in three.urls]
    lock = Redlock("job", clients=clients, ttl=3600, longest_ttl=0, server_timeout=10 * LONG)
    three.stop(1)
    with lock:
        assert lock.owned()
        assert lock.locked()
        lock.extend()
    assert not lock.locked()


def test_more_than_a_minority_may_not(five):
    for index in (0, 1, 2):
        five.servers[index].kill()
    lock = five.lock(ttl=5)
    with pytest.raises(QuorumError, match=r"2 of 5 servers answered .* 3 are needed; .*clients\[2"):
        lock.acquire(blocking=False)
    with pytest.raises(QuorumError):
        lock.acquire(timeout=0.3)
    with pytest.raises(QuorumError), five.lock(ttl=5, blocking_timeout=0.1):
        pytest.fail("no majority")
    with pytest.raises(QuorumError):
        lock.locked()
    wait_until(lambda: five.held(lock.key) == 0)
    with pytest.raises(QuorumError):
        five.lock(ttl=0.1).acquire()  # without a limit: for as long as the lease


def test_a_majority_of_those_that_answer_is_none(five):
    """Two of five grant it and nobody refuses: that is all who are alive, and not enough."""
    for index in (0, 1, 2):
        five.servers[index].kill()
    lock = five.lock()
    assert all(client.get(lock.key) is None for client in five.clients[3:])
    with pytest.raises(QuorumError):
        lock.acquire(blocking=False)


def test_others_that_hold_it_are_no_missing_majority(five):
    for client in five.clients[:3]:
        client.set(five.lock().key, "somebody else's", px=60_000)
    five.servers[4].kill()
    assert not five.lock().acquire(blocking=False)


def test_who_waits_gets_it_when_the_servers_are_back(three):
    three.servers[0].kill()
    three.servers[1].kill()
    lock = three.lock()
    got = threading.Event()

    def wait():
        with lock:
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not got.wait(0.5)
    three.servers[1].start()
    assert got.wait(LONG)
    thread.join(LONG)


@pytest.mark.usefixtures("hasty")
def test_a_silent_server_is_told_when_it_answers(three):
    three.stop(2)
    lock = three.lock()
    with lock:
        assert three.tokens(lock.key) == [lock.token, lock.token, None]
    three.resume()
    # It carries out what came late, and at last the release.
    wait_until(lambda: not threads(), LONG)
    wait_until(lambda: three.held(lock.key) == 0)


@pytest.mark.usefixtures("hasty")
def test_silent_servers_are_told_of_a_try_that_failed(three):
    three.stop(1)
    three.stop(2)
    lock = three.lock(server_timeout=QUICK)
    with pytest.raises(QuorumError, match="no answer"):
        lock.acquire(blocking=False)
    wait_until(lambda: three.held(lock.key) == 0)
    three.resume()
    wait_until(lambda: not threads(), LONG)
    wait_until(lambda: three.held(lock.key) == 0)


@pytest.mark.usefixtures("hasty")
def test_servers_that_are_silent_for_longer_than_their_clients_wait(three):
    """The server carries the grant out when its client has long gone."""
    retry = Retry(NoBackoff(), 0)
    clients = [redis.Redis.from_url(url, socket_timeout=0.5, retry=retry) for url in three.urls]
    lock = Redlock("job", clients=clients, longest_ttl=0, server_timeout=QUICK)
    with lock:
        pass
    three.stop(1)
    three.stop(2)
    with pytest.raises(QuorumError):
        lock.acquire(blocking=False)
    # The client has timed out twice.
    time.sleep(1.0)
    three.resume()
    wait_until(lambda: not threads(), LONG)
    wait_until(lambda: three.held(lock.key) == 0)


@pytest.mark.usefixtures("hasty")
def test_a_grant_that_comes_late_is_given_back(three):
    """The script reaches the server long after the caller was refused."""
    late = threading.Event()
    late_lock = "late"

    def judge(name: str, _: int) -> str:
        if name.startswith("EVAL"):
            assert late.wait(LONG)
        return "pass"

    with Gate(three.urls[0], judge) as first, Gate(three.urls[1], judge) as second:
        lock = Redlock(
            late_lock,
            clients=[first.url, second.url, three.urls[2]],
            ttl=300,
            longest_ttl=0,
            server_timeout=QUICK,
        )
        with pytest.raises(QuorumError):
            lock.acquire(blocking=False)
        wait_until(lambda: three.held(lock.key) == 0)
        late.set()
        wait_until(lambda: not threads(), LONG)
        assert first.seen.count("EVALSHA") + first.seen.count("EVAL") > 0
        wait_until(lambda: three.held(lock.key) == 0)


def test_a_grant_whose_reply_is_lost_is_given_back(three):
    # Each server has the script: a grant is lost, not the answer that there is none.
    with three.lock() as held:
        wait_until(lambda: three.held(held.key) == 3)
    wait_until(lambda: three.held(held.key) == 0)

    def judge(name: str, _: int) -> str:
        return "after" if name.startswith("EVAL") else "pass"

    with Gate(three.urls[0], judge) as gate:
        urls = [gate.url, *three.urls[1:]]
        lock = Redlock("job", clients=urls, ttl=300, longest_ttl=0, server_timeout=PATIENT)
        with lock:
            wait_until(lambda: three.held(lock.key) == 3)
        wait_until(lambda: three.held(lock.key) == 0)
        for client in three.clients[1:]:
            client.set(lock.key, "somebody else's", px=60_000)
        assert not lock.acquire(timeout=0.1)
        wait_until(lambda: three.held(lock.key) == 2)
        assert gate.lost > 0


def test_a_late_vote_is_one_by_the_next_renewal(three):
    three.stop(2)
    lock = three.lock()
    lock.acquire()
    three.resume()
    wait_until(lambda: three.held(lock.key) == 3)
    three.servers[0].kill()
    lock.extend()
    assert lock.owned()
    lock.release()
    wait_until(lambda: three.held(lock.key) == 0)


def test_a_holder_that_no_majority_answers_is_told(three):
    told = threading.Event()
    lock = three.lock(ttl=1, server_timeout=0.2, on_lost=lambda _: told.set())
    lock.acquire()
    three.stop(0)
    three.stop(1)
    assert told.wait(LONG)
    assert lock.lost.is_set()
    assert lock.remaining() == 0.0
    with pytest.raises(LockLostError):
        lock.check()
    with pytest.raises(LockLostError):
        lock.release()


def test_a_lock_that_cannot_be_given_back_says_so(three):
    lock = three.lock(server_timeout=QUICK)
    lock.acquire()
    three.stop(0)
    three.stop(1)
    with pytest.raises(QuorumError, match="ends by itself"):
        lock.release()
    three.resume()
    wait_until(lambda: three.held(lock.key) == 0)


def test_leaving_a_context_says_so_in_the_log(three, caplog):
    lock = three.lock(server_timeout=QUICK)
    with lock:
        three.stop(0)
        three.stop(1)
    assert "left to expire" in caplog.text
    assert not lock.owned()
    three.resume()
    wait_until(lambda: three.held(lock.key) == 0)


def test_leaving_a_context_does_not_hide_what_the_body_raised(three):
    with pytest.raises(KeyError) as caught, three.lock(server_timeout=QUICK):
        three.stop(0)
        three.stop(1)
        raise KeyError
    assert "ends by itself" in caught.value.__notes__[0]


def test_an_extension_that_no_majority_answers_counts_as_the_shorter(three):
    lock = three.lock(ttl=30, server_timeout=QUICK, renew=False)
    lock.acquire()
    three.stop(0)
    three.stop(1)
    with pytest.raises(QuorumError):
        lock.extend(5)
    assert 0 < lock.remaining() < 5
    three.resume()
    lock.extend(30)
    assert lock.remaining() > 20
    lock.release()


@pytest.mark.usefixtures("often")
def test_no_thread_is_left_behind(three):
    # A lock that an earlier test has left in a circle would be renewed until somebody looks.
    gc.collect()
    wait_until(lambda: not threads())
    events = []
    lock = three.lock(ttl=LONG, observer=events.append)
    for _ in range(20):
        with lock:
            pass
    with lock:
        lock.extend()
        wait_until(lambda: any(event.kind == "renewed" for event in events))
    # How many there are at a time depends on how fast the machine is.
    wait_until(lambda: not threads())


SCRIPT = """
import sys, redis
from bloomlock import Redlock
clients = [redis.Redis.from_url(url, socket_timeout=None) for url in sys.argv[1:]]
lock = Redlock("job", clients=clients, longest_ttl=0)
with lock:
    pass
"""


def test_a_silent_server_does_not_keep_the_process_from_ending(three):
    """Its client waits for ever, and so does the thread that asked."""
    three.stop(0)
    subprocess.run([sys.executable, "-c", SCRIPT, *three.urls], check=True, timeout=LONG)
