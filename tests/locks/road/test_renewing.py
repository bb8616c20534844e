"""Step 7: a watchdog. A thread for each lock, another one's lease changed, a death in silence."""

from __future__ import annotations

import contextlib
import threading

import pytest
from road.gate import LONG, Gate, Hold
from road.ours import Ours
from road.renewing import ComparingWatchdog, Watchdog
from road.steps import OwnerLua
from servers import wait_until

from bloomlock import LockLostError
from bloomlock.locks.watchdog import WATCHDOG

LEASE = 0.9
"""Of those that have a thread for each lock; ours have a minute and the fixture `often`."""
OFTEN = pytest.mark.usefixtures("often")
CUTS = 6
OUR_LEASE = 15.0
OTHERS_LEASE_MS = 30_000
"""Of who comes next."""


def lock_of(way, r, key, lease):
    return way(r, key, lease, renew=True) if way is Ours else way(r, key, lease)


def threads_for(way, client, count):
    locks = [lock_of(way, client, f"job {n}", 30.0) for n in range(count)]
    before = set(threading.enumerate())
    try:
        assert all(lock.acquire() for lock in locks)
        return len(set(threading.enumerate()) - before)
    finally:
        for lock in locks:
            lock.release()


def test_a_watchdog_for_each_lock_is_a_thread_for_each(client):
    assert threads_for(Watchdog, client, 50) == 50


def test_ours_has_one_watchdog_for_all_locks(client):
    # And one that asks within a time limit, which `blocking=False` is.
    assert threads_for(Ours, client, 50) <= 2


def lease_after_a_late_renewal(way, server_url, client):
    """A renewal is under way while the lock passes to another: what is the other's lease then?"""
    client.flushall()
    hold = Hold()
    with Gate(server_url, hold) as gate, gate.client() as r:
        holder = lock_of(way, r, "job", OUR_LEASE if way is Ours else LEASE)
        other = way(client, "job")
        assert holder.acquire()
        if way is Ours:
            holder.lock.extend()
        hold.at = len(gate.seen)  # the first renewal
        assert hold.reached.wait(LONG)
        client.pexpire(holder.key, 0)
        assert other.acquire()
        answers = gate.answers
        hold.let_go()
        wait_until(lambda: gate.answers > answers, LONG)
        lease = client.pttl(other.key)
        other.release()
        with contextlib.suppress(LockLostError):
            holder.release()
        return lease


def test_a_renewal_in_flight_changes_the_lease_of_the_next_holder(server_url, client):
    assert lease_after_a_late_renewal(Watchdog, server_url, client) <= LEASE * 1000


@OFTEN
@pytest.mark.parametrize("way", [ComparingWatchdog, Ours])
def test_a_renewal_that_compares_changes_only_its_own(way, server_url, client):
    lease = lease_after_a_late_renewal(way, server_url, client)
    assert OUR_LEASE * 1000 < lease <= OTHERS_LEASE_MS


@OFTEN
def test_ours_sends_nothing_after_its_release(server_url, client):
    with Gate(server_url) as gate, gate.client() as r:
        events = []
        holder = Ours(r, "job", LONG, renew=True, observer=events.append)
        assert holder.acquire()
        holder.lock.extend()
        wait_until(lambda: any(event.kind == "renewed" for event in events), LONG)
        holder.release()
        # A renewal that began before the release may be sent behind it, by a thread of its own.
        wait_until(
            lambda: not any(one.name == "bloomlock-renewal" for one in threading.enumerate()), LONG
        )
        sent = len(gate.seen)
        # Other locks' renewals show that the watchdog had its turns.
        turns = []
        busy = Ours(client, "other", LONG, renew=True, observer=turns.append)
        assert busy.acquire()
        busy.lock.extend()
        wait_until(lambda: sum(turn.kind == "renewed" for turn in turns) >= 3, LONG)
        busy.release()
        assert len(gate.seen) == sent


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watchdog_that_dies_tells_nobody(server_url, client):
    with Gate(server_url) as gate, gate.client() as r:
        holder, other = ComparingWatchdog(r, "job", LEASE), OwnerLua(client, "job")
        assert holder.acquire()
        gate.cut(1)
        wait_until(lambda: not holder.thread.is_alive(), LONG)  # one cut connection was enough
        wait_until(other.acquire, LONG)
        assert holder.held
        assert other.held


@OFTEN
def test_ours_survives_renewals_that_were_cut(server_url, client):
    events = []
    with Gate(server_url) as gate, gate.client() as r:
        holder = Ours(r, "job", LONG, renew=True, observer=events.append)
        assert holder.acquire()
        holder.lock.extend()
        gate.cut(CUTS)
        wait_until(lambda: gate.lost == CUTS, LONG)
        events.clear()
        wait_until(lambda: any(event.kind == "renewed" for event in events), LONG)
        assert holder.held
        assert not Ours(client, "job").acquire()
        holder.release()


def test_ours_tells_its_holder_when_the_server_is_out_of_reach(server_url, client):
    told = []
    with Gate(server_url) as gate, gate.client() as r:
        holder, other = Ours(r, "job", 1.0, renew=True, on_lost=told.append), Ours(client, "job")
        assert holder.acquire()
        lost = holder.lock.lost
        gate.judge = lambda _name, _number: "before"
        # Nobody asks it: it has to be told. The other cannot have the lock before that.
        wait_until(other.acquire, LONG)
        assert lost.wait(LONG)
        wait_until(lambda: told == [holder.lock], LONG)
        with pytest.raises(LockLostError):
            holder.release()
    assert other.held
    other.release()


@OFTEN
def test_ours_tells_its_holder_when_another_took_the_lock(server_url, client):
    events = []
    holder = Ours(client, "job", LONG, renew=True, observer=events.append)
    other = Ours(client, "job")
    with pytest.raises(LockLostError), holder.lock:
        holder.lock.extend()
        client.pexpire(holder.key, 0)
        assert other.acquire()
        assert holder.lock.lost.wait(LONG)
    # By a renewal, long before its lease was over.
    wait_until(lambda: any(event.kind == "lost" for event in events), LONG)
    assert ["gone" in event.error for event in events if event.kind == "lost"] == [True]
    assert other.held
    other.release()


def test_ours_knows_by_its_clock_that_it_is_lost_if_its_watchdog_is_held_up(
    server_url, client, monkeypatch
):
    held_up, go_on = threading.Event(), threading.Event()

    def hold_up():
        held_up.set()
        return go_on.wait(LONG)

    monkeypatch.setattr(WATCHDOG, "_look", hold_up)
    culprit = Ours(client, "other job")
    holder, other = Ours(client, "job", 1.0), Ours(client, "job")
    try:
        assert culprit.acquire()
        assert held_up.wait(LONG)
        assert holder.acquire()
        assert holder.held
        wait_until(other.acquire, LONG)
        assert not holder.held
        assert holder.lock.lost.is_set()
    finally:
        go_on.set()
    other.release()
    culprit.release()
