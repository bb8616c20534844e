"""Steps 1 to 3: how a lock is taken. Two winners, and a lock nobody will ever give back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import redis
from road.gate import LONG, every_crash, every_preemption
from road.ours import Ours
from road.steps import GetSet, SetNx, SetNxExpire, SetNxPx

NO_LEASE = -1


def most_winners(way, server_url, client):
    """Two clients take a free lock, one in the midst of the other, at every place in turn."""
    most = 0
    places = 0
    client.flushall()
    for results in every_preemption(
        server_url, lambda r: way(r, "job").acquire, lambda: way(client, "job").acquire()
    ):
        most = max(most, sum(results))
        places += 1
        client.flushall()
    assert places
    return most


def test_get_then_set_has_two_winners(server_url, client):
    assert most_winners(GetSet, server_url, client) == 2


@pytest.mark.parametrize("way", [SetNx, SetNxPx, Ours])
def test_taking_in_one_command_has_one_winner(way, server_url, client):
    assert most_winners(way, server_url, client) == 1


def leases_after_crashes(way, server_url, client):
    """A client dies at each of its commands; what became of the lock, in milliseconds."""
    client.flushall()
    leases = []
    for verdict in ("before", "after"):
        for _ in every_crash(server_url, lambda r: way(r, "job").acquire(), verdict=verdict):
            leases += [client.pttl(key) for key in client.keys("*job*") if is_lock(client, key)]
            client.flushall()
    return leases


def is_lock(client, key):
    return client.type(key) == b"string" and not key.endswith(b"fence")


@pytest.mark.parametrize("way", [SetNx, SetNxExpire])
def test_a_holder_that_dies_between_take_and_lease_locks_for_ever(way, server_url, client):
    assert NO_LEASE in leases_after_crashes(way, server_url, client)
    # And nobody can ever have it.
    way(client, "job").r.setnx("job", "the dead holder's")
    assert not way(client, "job").acquire()


@pytest.mark.parametrize("way", [SetNxPx, Ours])
def test_a_lock_that_was_taken_has_a_lease(way, server_url, client):
    leases = leases_after_crashes(way, server_url, client)
    assert leases
    assert all(0 < lease <= 30_000 for lease in leases)


def test_no_key_of_ours_stays_for_ever_after_a_crash(server_url, client):
    for verdict in ("before", "after"):
        for _ in every_crash(server_url, lambda r: Ours(r, "job").acquire(), verdict=verdict):
            assert [key for key in client.keys("*") if client.pttl(key) == NO_LEASE] == []
            client.flushall()


HOLDER = """
import sys
from bloomlock import Lock
Lock("job", client=sys.argv[1], ttl=2.0).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_ours_outlives_a_killed_holder_by_its_lease(valkey):
    with redis.Redis.from_url(valkey) as r:
        r.flushall()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, valkey], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            other = Ours(redis.Redis.from_url(valkey), "job")
            assert not other.acquire()
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    assert other.lock.acquire(timeout=LONG)
    other.release()
