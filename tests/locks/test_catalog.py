"""`list_locks`: which locks are held, by how many, and who waits."""

from __future__ import annotations

import pytest

from bloomlock import FairLock, Lock, ReadWriteLock
from bloomlock.catalog import list_locks
from bloomlock.errors import ConfigurationError
from bloomlock.keys import LockKeys


def found(r, **options):
    return [(lock.name, lock.holders, lock.waiting) for lock in list_locks(client=r, **options)]


def test_what_is_held_and_waited_for(r):
    r.sadd("bloomlock:{a set}:lock", "something else")
    # A waiter is in the queue for a moment longer than the lock is held.
    r.zadd(LockKeys.of("waited for").queue, {"token": 1})
    readers = [ReadWriteLock("shared/{odd}", r).read for _ in range(2)]
    with Lock("plain", r, ttl=600), readers[0], readers[1], FairLock("other", r, prefix="mine:"):
        assert found(r) == [("plain", 1, 0), ("shared/{odd}", 2, 0), ("waited for", 0, 1)]
        assert 500 < list_locks(client=r)[0].remaining <= 600
        assert found(r, prefix="mine:") == [("other", 1, 0)]
    assert found(r) == [("waited for", 0, 1)]
    with pytest.raises(ConfigurationError, match="prefix must be a text without braces"):
        list_locks(client=r, prefix="{")
