"""What every lock promises, over several servers that all run."""

from __future__ import annotations

import threading

import pytest
import redis
from road.gate import Gate
from servers import wait_until
from several import LONG, PATIENT

from bloomlock import (
    Lock,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Redlock,
)


def test_it_is_the_same_token_on_every_server_and_gone_afterwards(three):
    lock = three.lock(ttl=300)
    assert lock.acquire()
    wait_until(lambda: three.tokens(lock.key) == [lock.token] * 3)
    assert lock.locked()
    assert lock.owned()
    assert 0 < lock.remaining() < 300
    lock.check()
    assert lock.fence is None
    lock.release()
    wait_until(lambda: three.held(lock.key) == 0)
    assert not lock.locked()
    assert not lock.owned()
    assert lock.remaining() == 0.0


def test_one_holder_at_a_time(three):
    first, second = three.lock(), three.lock()
    assert first.acquire()
    wait_until(lambda: three.held(first.key) == 3)
    assert not second.acquire(blocking=False)
    assert not second.acquire(timeout=0.3)
    assert three.tokens(first.key) == [first.token] * 3
    first.release()
    assert second.acquire(blocking=False)
    second.release()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_with_any_number_of_servers(five, count):
    locks = [
        Redlock("job", clients=five.urls[:count], longest_ttl=0, server_timeout=PATIENT)
        for _ in range(2)
    ]
    for mine, other in (locks, reversed(locks)):
        with mine:
            assert not other.acquire(blocking=False)
            assert mine.owned()
            assert not other.owned()
            assert other.locked()


def test_half_of_the_servers_is_no_majority(five):
    lock = Redlock("job", clients=five.urls[:4], longest_ttl=0, server_timeout=PATIENT)
    for client in five.clients[:2]:
        client.set(lock.key, "somebody else's", px=60_000)
    assert not lock.acquire(blocking=False)
    # A server whose vote is not waited for is told when that is there.
    wait_until(lambda: five.tokens(lock.key)[2:4] == [None, None])
    assert not lock.locked()


def test_each_server_has_the_lock_of_that_name(three):
    plain = [Lock("job", client=url) for url in three.urls]
    lock = three.lock()
    with plain[0]:
        assert lock.acquire(blocking=False)
        wait_until(lambda: three.held(lock.key) == 3)
        assert not plain[1].acquire(blocking=False)
        lock.release()
        wait_until(lambda: three.tokens(lock.key) == [plain[0].token, None, None])
        with plain[1]:
            assert not lock.acquire(blocking=False)
        assert lock.acquire(blocking=False)
        lock.release()


def test_who_waits_gets_it_when_it_is_released(three):
    first, second = three.lock(), three.lock()
    first.acquire()
    got = threading.Event()

    def wait():
        with second:
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not got.wait(0.5)
    first.release()
    assert got.wait(LONG)
    thread.join(LONG)
    wait_until(lambda: three.held(first.key) == 0)


def test_a_thread_is_not_the_other(three):
    lock = three.lock()
    lock.acquire()
    seen = []

    def look():
        seen.append(lock.acquire(blocking=False))
        with pytest.raises(LockNotOwnedError):
            lock.release()
        seen.append(lock.owned())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(LONG)
    assert seen == [False, False]
    with pytest.raises(LockError, match="would wait for itself"):
        lock.acquire()
    lock.release()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    with pytest.raises(LockNotOwnedError):
        lock.extend()


def test_a_context_that_is_not_obtained(three):
    with (
        three.lock(),
        pytest.raises(LockTimeoutError),
        three.lock(blocking_timeout=0.1),
    ):
        pytest.fail("two holders")


def test_each_try_has_a_token_of_its_own(three):
    """A release that comes late, of a try that failed, must not take away what a later one got."""
    client = three.clients[0]
    client.config_set("slowlog-log-slower-than", 0)

    def tokens():
        words = [entry["command"].split() for entry in client.slowlog_get(128)]
        return [line[-1] for line in words if line[0] == b"EVALSHA"]

    with three.lock() as held:
        wait_until(lambda: held.token.encode() in tokens())
        other, tried = three.lock(pauses=(0.001, 0.01)), []
        # A machine that is busy has time for one try only, now and then.
        while len(tried) < 3:
            client.slowlog_reset()
            assert not other.acquire(timeout=0.2)
            tried = tokens()
    client.config_set("slowlog-log-slower-than", -1)
    assert len(set(tried)) == len(tried)


def test_a_server_that_refuses_is_asked_once_for_each_try(three):
    with three.lock() as held, Gate(three.urls[0], lambda *_: "pass") as gate:
        wait_until(lambda: three.held(held.key) == 3)
        # One server: with others, an attempt ends as soon as a majority of them has refused.
        other = Redlock("job", clients=[gate.url], longest_ttl=0, server_timeout=PATIENT)
        assert not other.acquire(blocking=False)
        before = len(gate.seen)
        assert before > 0
        assert not other.acquire(blocking=False)
        assert len(gate.seen) == before + 1


@pytest.mark.usefixtures("often")
def test_an_observer_hears_of_it(three):
    events = []
    lock = three.lock(observer=events.append, ttl=LONG)
    with lock:
        lock.extend()
        assert not three.lock(observer=events.append).acquire(blocking=False)
        wait_until(lambda: any(event.kind == "renewed" for event in events))
    # A renewal that is being reported reports the release after it, in its own thread.
    wait_until(lambda: events[-1].kind == "released")
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds.count("timeout")) == ("acquired", 1)
    assert {*kinds[1:-1]} == {"timeout", "renewed"}
    assert {event.fence for event in events} == {None}


def test_an_extension_reaches_every_server(three):
    lock = three.lock(ttl=50)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 3)
    lock.extend(500)
    assert lock.remaining() > 400
    # It returns when a majority has answered.
    wait_until(lambda: all(client.ttl(lock.key) > 400 for client in three.clients))
    lock.extend(50)
    assert 40 < lock.remaining() < 50
    lock.reacquire()
    # What a server was told once it keeps: no lease is made shorter.
    assert all(client.ttl(lock.key) > 40 for client in three.clients)
    assert lock.remaining() < 50
    lock.release()


@pytest.mark.parametrize("act", ["release", "extend", "reacquire"])
def test_a_lock_that_was_deleted_on_a_majority_is_lost(three, act):
    lock = three.lock(renew=False)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 3)
    for client in three.clients[:2]:
        client.delete(lock.key)
    with pytest.raises(LockLostError):
        getattr(lock, act)()
    assert not lock.owned()


def test_a_minority_that_lost_it_takes_nothing(three):
    lock = three.lock(renew=False)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 3)
    three.clients[2].delete(lock.key)
    assert lock.owned()
    lock.extend()
    lock.release()


def test_scripts_and_info_may_be_forbidden(three):
    user = ["worker", "on", ">secret", "~*", "+@all", "-@scripting"]
    for client in three.clients:
        client.execute_command("ACL", "SETUSER", *user)
    urls = [f"{url}&username=worker&password=secret" for url in three.urls]
    with Redlock("job", clients=urls, longest_ttl=0, server_timeout=PATIENT) as lock:
        assert lock.owned()
        assert not three.lock().acquire(blocking=False)
    wait_until(lambda: three.held(lock.key) == 0)
    clients = [redis.Redis.from_url(url) for url in urls]
    with Redlock("job", clients=clients, longest_ttl=0, server_timeout=PATIENT) as lock:
        lock.extend()
