"""Users who may not run scripts, or not publish or listen, get the lock all the same."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import lock_ways
import pytest

from bloomlock import Lock, ReadWriteLock
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol import waiting
from bloomlock.locks.protocol.model import AcquireRequest, Granted, ReleaseRequest

THREADS, ROUNDS = 5, 20
PATIENCE = 60
NO_SCRIPTS = (["-@scripting"], ["-eval"], ["-eval", "-evalsha"])
NO_CHANNELS = ["resetchannels"]


def count_under(locks, client):
    """Let each thread raise a number on the server in two commands, under its lock."""
    client.set("number", 0)

    def work(lock):
        for _ in range(ROUNDS):
            assert lock.acquire(timeout=PATIENCE)
            client.set("number", int(client.get("number")) + 1)
            lock.release()

    with ThreadPoolExecutor(len(locks)) as pool:
        list(pool.map(work, locks))
    assert int(client.get("number")) == len(locks) * ROUNDS


@pytest.mark.parametrize("rules", NO_SCRIPTS, ids=" ".join)
def test_without_scripts_the_same_transitions_run_under_watch(client, as_user, rules):
    client.script_flush()
    user = as_user(*rules)
    count_under([Lock("x", client=user)] * THREADS, client)
    assert list(client.scan_iter("*:lock*")) == [LockKeys.of("x").fence.encode()]


def test_with_and_without_scripts_they_exclude_each_other(client, as_user):
    """Some run the scripts and some run under WATCH, on one lock at the same time."""
    users = [as_user("-@scripting"), as_user(), as_user("-@scripting"), as_user()]
    count_under([Lock("x", client=user) for user in users], client)


def test_without_scripts_readers_share(client, as_user):
    first, second = (ReadWriteLock("x", client=as_user("-@scripting")) for _ in range(2))
    with first.read, second.read:
        assert not first.write.acquire(blocking=False)
    with second.write:
        assert not first.read.acquire(blocking=False)


@pytest.mark.parametrize("rules", [[], ["-@scripting"]], ids=["scripts", "watch"])
@pytest.mark.parametrize("who", ["waiter", "holder", "both"])
def test_without_channels_a_waiter_looks_by_itself(client, as_user, rules, who, monkeypatch):
    # Who hears nothing though it may listen looks every two seconds.
    monkeypatch.setattr(waiting, "SLICE_MS", 200)
    allowed, not_allowed = as_user(*rules), as_user(*rules, *NO_CHANNELS)
    holder = Lock("x", client=allowed if who == "waiter" else not_allowed)
    waiter = Lock("x", client=allowed if who == "holder" else not_allowed)
    queue = LockKeys.of("x").queue
    assert holder.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(waiter.acquire(timeout=PATIENCE)))
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not client.exists(queue):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # The lease is 30 s: it is the release that lets the waiter in, told of or not.
    holder.release()
    thread.join(PATIENCE)
    assert got == [True]


def test_a_forbidden_announcement_does_not_undo_the_grant(client, as_user):
    """The error that PUBLISH gives must not leave a step half done."""
    for name, rules in {"scripts": NO_CHANNELS, "watch": [*NO_CHANNELS, "-@scripting"]}.items():
        way = lock_ways.ServerWay(as_user(*rules), LockKeys.of(name), set())
        waiter = AcquireRequest(b"waiter", 60_000, channel=b"forbidden")
        way.acquire(AcquireRequest(b"holder", 60_000))
        way.acquire(waiter)
        assert way.release(ReleaseRequest(b"holder"))
        assert way.picture() == lock_ways.Picture(b"waiter", frozenset(), ())
        assert isinstance(way.acquire(waiter), Granted)
