"""Users who may not run scripts, or not publish or listen, get the lock all the same."""

from __future__ import annotations

import pytest
from contract.lock_backends import TTL
from lock_tools import is_free, queue_of
from people import Person
from servers import wait_until

from bloomlock import Lock, ReadWriteLock
from bloomlock.locks.protocol import waiting


def test_without_scripts_a_waiter_is_handed_the_lock_by_one_with_scripts(r, as_user):
    holder, waiter, person = Lock("job", r, TTL), Lock("job", as_user("-@scripting"), TTL), Person()
    for one, other in ((holder, waiter), (waiter, holder)):
        assert one.acquire(blocking=False)
        assert other.acquire(blocking=False) is False
        wait = person.start(other.acquire)
        wait_until(lambda: queue_of(r, holder) == 1)
        one.extend()
        one.release()
        assert wait.result(TTL) is True
        person(other.release)
        assert is_free(r, holder)
    waiter.close()
    person.end()


def test_without_scripts_readers_share(r, as_user):
    first, second = (ReadWriteLock("job", as_user("-@scripting")) for _ in range(2))
    with first.read, second.read:
        assert not first.write.acquire(blocking=False)
    with second.write:
        assert not first.read.acquire(blocking=False)
    assert is_free(r, first.read)


@pytest.mark.parametrize("who", ["waiter", "holder", "both"])
def test_without_channels_a_waiter_looks_by_itself(r, as_user, who, monkeypatch):
    # Who hears nothing though it may listen looks every two seconds.
    monkeypatch.setattr(waiting, "SLICE_MS", 200)
    allowed, not_allowed, person = as_user(), as_user("resetchannels"), Person()
    holder = Lock("job", allowed if who == "waiter" else not_allowed, TTL)
    waiter = Lock("job", allowed if who == "holder" else not_allowed, TTL)
    holder.acquire()
    wait = person.start(waiter.acquire)
    wait_until(lambda: queue_of(r, holder) == 1)
    holder.release()
    assert wait.result(TTL) is True
    person(waiter.release)
    assert is_free(r, holder)
    waiter.close()
    person.end()
