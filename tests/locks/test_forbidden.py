"""Users who may not run scripts get no lock; those who may not publish or listen get it."""

from __future__ import annotations

import pytest
from contract.lock_backends import TTL
from lock_tools import is_free, queue_of
from people import Person
from servers import wait_until

from bloomlock import Lock, ReadWriteLock
from bloomlock.errors import ConfigurationError
from bloomlock.locks.protocol import waiting


def test_without_scripts_there_is_no_lock_and_one_sentence_says_so(r, as_user):
    client = as_user("-@scripting")
    for lock in (Lock("job", client), ReadWriteLock("job", client).read):
        for how in ({}, {"timeout": 1}, {"blocking": False}):
            with pytest.raises(
                ConfigurationError, match="^locks need a server that runs scripts for this client"
            ):
                lock.acquire(**how)
        assert lock.token is None
    assert not r.keys()


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
