"""Step 9: a lock that may be taken again. A key left for ever, and a hold that counts twice."""

from __future__ import annotations

import pytest
from road.counting import CheckedHashCount, HashCount
from road.gate import Gate, every_crash
from road.ours import Ours

from bloomlock import LockNotOwnedError, ReentrantLock

FOR_EVER = -1


def test_a_stray_unlock_leaves_a_key_for_ever_and_locks_all_others_out(client):
    stray, other = HashCount(client, "job"), HashCount(client, "job")
    stray.release()
    assert client.hgetall("job") == {stray.token: b"-1"}
    assert client.pttl("job") == FOR_EVER
    assert not other.acquire()
    # Not even to its owner is it of use: taken once, it counts 0, and taken twice it is not free.
    assert stray.acquire()
    assert client.hgetall("job") == {stray.token: b"0"}


def test_a_check_makes_a_stray_unlock_harmless(client):
    CheckedHashCount(client, "job").release()
    assert client.dbsize() == 0


def test_a_stray_unlock_of_ours_changes_nothing_and_says_so(client):
    with pytest.raises(LockNotOwnedError):
        ReentrantLock("job", client=client).release()
    assert client.dbsize() == 0
    holder, other = (ReentrantLock("job", client=client, owner=owner) for owner in "ab")
    assert holder.acquire()
    with pytest.raises(LockNotOwnedError):
        other.release()
    holder.check()
    assert holder.owned()
    holder.release()
    assert not holder.locked()


class Reentrant(Ours):
    """`bloomlock.ReentrantLock` as a step."""

    def __init__(self, r, key):
        super().__init__(r, key)
        self.lock = ReentrantLock(key, client=r, ttl=30.0, renew=False)


def held_after_lost_replies(way, server_url, client):
    """Taken once and given back once, with one reply lost: is the lock still held?"""
    left = []
    number = 0
    while True:
        client.flushall()
        with Gate(server_url) as gate, gate.client(retries=3) as r:
            lock = way(r, "job")
            gate.deafen(number)
            assert lock.acquire()
            if not gate.lost:
                return left
            lock.release()
        left.append(client.exists(lock.key) == 1)
        number += 1


def test_a_repeated_acquire_counts_twice_and_one_release_is_not_enough(server_url, client):
    assert held_after_lost_replies(CheckedHashCount, server_url, client) == [True]


def test_ours_counts_once_however_often_it_was_sent(server_url, client):
    left = held_after_lost_replies(Reentrant, server_url, client)
    assert left
    assert not any(left)


def test_ours_nests_and_is_free_after_the_last_release(server_url, client):
    lock, other = ReentrantLock("job", client=client), ReentrantLock("job", client=client)
    with lock:
        with lock:
            pass
        lock.check()
        assert lock.locked()
    assert not lock.locked()
    assert other.acquire(blocking=False)
    other.release()


def test_a_crash_of_ours_leaves_no_key_for_ever(server_url, client):
    def take_twice_and_give_back(r):
        lock = Reentrant(r, "job")
        lock.acquire()
        lock.acquire()
        lock.release()
        lock.release()

    for verdict in ("before", "after"):
        for _ in every_crash(server_url, take_twice_and_give_back, verdict=verdict):
            assert [key for key in client.keys("*") if client.pttl(key) == FOR_EVER] == []
            client.flushall()
