"""Step 8: waiting. Polling past a free lock, a lost wake-up, a herd, an expiry nobody announces."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest
import redis
from road.gate import LONG, Gate, every_preemption, together
from road.ours import Ours
from road.steps import OwnerLua
from road.waiting import Announced, ExpiryEvents, ListenFirst, Polling, heard
from servers import require_server, wait_until

from bloomlock.server import PrivateServer

ROUNDS = 20
SHORT = 1.0
"""How long those wait that nobody wakes."""
PLACES = 2
"""Commands before who waits falls asleep: asking and listening, in either order."""
OUR_PLACES = 4


def test_a_poller_sleeps_while_the_lock_is_free_and_newcomers_pass(client):
    poller = Polling(client, "job")
    holder = Polling(client, "job")
    assert holder.acquire()
    passed = []

    def sleep(_seconds):
        nonlocal holder
        holder.release()
        newcomer = Polling(client, "job")
        passed.append(newcomer.acquire())  # the lock was free, and the poller asleep
        holder = newcomer

    assert not poller.wait(ROUNDS, sleep)
    assert passed == [True] * ROUNDS
    assert client.info("commandstats")["cmdstat_set"]["calls"] >= 2 * ROUNDS


def waiter(way, name, got, go_on):
    """A lock in its own thread: it waits, notes its name, and gives back when told to."""

    def work():
        assert way.lock.acquire(timeout=LONG)
        got.append(name)
        go_on.wait(LONG)
        way.release()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def waiting(client):
    """How many wait for a lock of ours, as its queue in Redis says."""
    return sum(client.zcard(key) for key in client.keys("*queue*"))


def test_ours_gives_a_freed_lock_to_who_waits_not_to_who_comes(client):
    got, go_on = [], threading.Event()
    holder = Ours(client, "job")
    assert holder.acquire()
    thread = waiter(Ours(client, "job"), "waiter", got, go_on)
    wait_until(lambda: waiting(client) == 1, LONG)
    try:
        holder.release()
        # It is the waiter's already, in the same step; it need not even have heard of it.
        assert client.get(holder.key)
        assert not Ours(client, "job").acquire()
        wait_until(lambda: got == ["waiter"], LONG)
    finally:
        go_on.set()
        thread.join(LONG)
    assert client.get(holder.key) is None


def slept_through(way, server_url, client, seconds):
    """The holder releases in the midst of another's `wait`, at every place before its sleep."""
    slept = []
    client.flushall()
    holder = way(client, "job")
    assert holder.acquire()

    def wait_for_it(r):
        return lambda: way(r, "job").wait(seconds)

    places = every_preemption(server_url, wait_for_it, holder.release)
    for got_it, _ in itertools.islice(places, PLACES):
        slept.append(not got_it and client.get("job") is None)
        client.flushall()
        assert holder.acquire()
    return slept


def test_who_asks_and_then_listens_can_sleep_for_ever(client, server_url):
    assert any(slept_through(Announced, server_url, client, SHORT))


def test_who_listens_and_then_asks_is_woken(client, server_url):
    slept = slept_through(ListenFirst, server_url, client, LONG)
    assert slept
    assert not any(slept)


def test_ours_gets_the_lock_wherever_the_release_comes(client, server_url):
    holder = Ours(client, "job")
    assert holder.acquire()

    def wait_for_it(r):
        return lambda: Ours(r, "job").lock.acquire(timeout=LONG)

    def release():
        holder.release()

    # It asks until it is served, so there are places without end; these include its falling asleep.
    places = every_preemption(server_url, wait_for_it, release)
    for got_it, _ in itertools.islice(places, OUR_PLACES):
        assert got_it
        client.flushall()
        holder = Ours(client, "job")
        assert holder.acquire()


def test_an_announcement_wakes_all_and_serves_one(client):
    holder = ListenFirst(client, "job")
    assert holder.acquire()
    waiters = [ListenFirst(client, "job") for _ in range(8)]
    with contextlib.ExitStack() as stack:
        ears = [stack.enter_context(client.pubsub()) for _ in waiters]
        for ear in ears:
            ear.subscribe("job")
            ear.get_message(timeout=LONG)
        holder.release()
        assert holder.woken == 8
        assert all(heard(ear, LONG) for ear in ears)
        assert [waiter.acquire() for waiter in waiters] == [True] + 7 * [False]


def test_ours_wakes_one_for_each_release(server_url, client):
    before_it = 10
    with Gate(server_url) as gate, gate.client() as last:
        holder = Ours(client, "job")
        assert holder.acquire()
        got, go_on = [], threading.Event()
        go_on.set()
        threads = [waiter(Ours(client, "job"), n, got, go_on) for n in range(before_it)]
        wait_until(lambda: waiting(client) == before_it, LONG)
        threads.append(waiter(Ours(last, "job"), "last", got, go_on))
        wait_until(lambda: waiting(client) == before_it + 1, LONG)
        sent = len(gate.seen)
        holder.release()
        wait_until(lambda: "last" in got, LONG)
        for thread in threads:
            thread.join(LONG)
        # Eleven releases, and of those only its own turn (and its release) made it talk. Whoever
        # is woken by every release tries at each.
        assert sorted(got, key=str) == [*range(before_it), "last"]
        assert len(gate.seen) - sent < before_it


@pytest.fixture(params=["valkey", "redis7"])
def lazy_server(request):
    """A client of a server that finds out that a key has expired only when somebody asks for it."""
    with (
        PrivateServer(
            binary=require_server(request.param),
            config={"enable-debug-command": "yes", "notify-keyspace-events": "Ex"},
        ) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        yield client


def test_an_expiry_event_comes_when_somebody_looks(lazy_server):
    dead, other = OwnerLua(lazy_server, "job", lease=0.2), ExpiryEvents(lazy_server, "job")
    assert dead.acquire()
    assert not other.wait(SHORT)  # ten leases later
    assert lazy_server.get("job") is None


def test_ours_needs_no_word_of_the_expiry(lazy_server):
    dead, other = Ours(lazy_server, "job", lease=0.2), Ours(lazy_server, "job")
    assert dead.acquire()
    assert other.lock.acquire(timeout=LONG)
    other.release()


def test_ours_all_who_wait_for_a_dead_holder_get_it(lazy_server):
    dead = Ours(lazy_server, "job", lease=0.5)
    assert dead.acquire()

    def work():
        with Ours(lazy_server, "job").lock:
            return True

    assert together(*[work] * 8) == [True] * 8
