"""Steps 4 to 6: how a lock is given back. Another's lock opened, a lease outlived by the work."""

from __future__ import annotations

import pytest
from redis.exceptions import RedisError
from road.gate import LONG, Gate, every_preemption
from road.ours import Ours
from road.steps import OwnerGetDel, OwnerLua, OwnerWatch, SetNxPx
from servers import wait_until

from bloomlock import LockLostError


def let_expire(client, way):
    """What the server does when a lease is over."""
    client.pexpire(way.key, 0)


def quietly_release(way):
    try:
        way.release()
    except RedisError as error:  # bloomlock's LockError is redis-py's
        return error
    return None


def late_release(way, client):
    """The lease runs out, another takes the lock, the first gives it back: is it still held?"""
    client.flushall()
    late, other = way(client, "job"), way(client, "job")
    assert late.acquire()
    let_expire(client, late)
    assert other.acquire()
    told = quietly_release(late)
    return client.get(other.key) is not None, told


def test_without_an_owner_another_ones_lock_is_opened(client):
    assert late_release(SetNxPx, client) == (False, None)


@pytest.mark.parametrize("way", [OwnerGetDel, OwnerWatch, OwnerLua])
def test_a_late_release_with_an_owner_opens_nothing(way, client):
    assert late_release(way, client) == (True, None)


def test_a_late_release_of_ours_opens_nothing_and_says_so(client):
    still_held, told = late_release(Ours, client)
    assert still_held
    assert isinstance(told, LockLostError)


def opened_between(way, server_url, client):
    """The lease runs out and another comes in the midst of the release, at every place in turn."""
    opened = []
    client.flushall()

    def release_of_a_holder(r):
        way_of_holder = way(r, "job")
        assert way_of_holder.acquire()
        return lambda: quietly_release(way_of_holder)

    def the_lease_is_over_and_another_comes():
        other = way(client, "job")
        let_expire(client, other)
        assert other.acquire()
        return other

    for _, other in every_preemption(
        server_url, release_of_a_holder, the_lease_is_over_and_another_comes
    ):
        opened.append(client.get(other.key) is None)
        client.flushall()
    return opened


def test_between_get_and_del_another_ones_lock_is_opened(server_url, client):
    assert any(opened_between(OwnerGetDel, server_url, client))


@pytest.mark.parametrize("way", [OwnerWatch, OwnerLua, Ours])
def test_compare_and_delete_opens_only_its_own(way, server_url, client):
    opened = opened_between(way, server_url, client)
    assert opened
    assert not any(opened)


def not_given_back(way, server_url, client):
    """The holder's lease is renewed in the midst of its release: how often does the lock stay?"""
    stayed = []
    client.flushall()

    def release_of_a_holder(r):
        holder = way(r, "job")
        assert holder.acquire()
        return lambda: (holder.key, quietly_release(holder))

    def renew():
        return [client.pexpire(key, 60_000) for key in client.keys("*job*")]

    for (key, _), _ in every_preemption(server_url, release_of_a_holder, renew):
        stayed.append(client.get(key) is not None)
        client.flushall()
    return stayed


def test_watch_gives_up_over_a_renewal_of_its_own_lock(server_url, client):
    assert any(not_given_back(OwnerWatch, server_url, client))


@pytest.mark.parametrize("way", [OwnerLua, Ours])
def test_a_renewal_does_not_keep_the_lock(way, server_url, client):
    stayed = not_given_back(way, server_url, client)
    assert stayed
    assert not any(stayed)


def trips_to_release(way, server_url):
    with Gate(server_url) as gate, gate.client() as r:
        for name in ("warm-up", "job"):
            holder = way(r, name)
            assert holder.acquire()
            before = gate.packets
            holder.release()
        return gate.packets - before


def test_watch_costs_several_round_trips_and_lua_one(server_url, client):
    assert trips_to_release(OwnerWatch, server_url) >= 3
    assert trips_to_release(OwnerLua, server_url) == 1


def test_ours_is_given_back_in_one_round_trip(server_url, client):
    assert trips_to_release(Ours, server_url) == 1


def test_work_that_outlives_the_lease_has_company(client):
    holder, other = OwnerLua(client, "job", lease=0.1), OwnerLua(client, "job")
    assert holder.acquire()
    wait_until(other.acquire)  # while the holder works
    assert holder.held
    assert other.held


@pytest.mark.usefixtures("often")
def test_ours_is_renewed_while_the_work_goes_on(client):
    renewals = []

    def note(event):
        renewals.extend([event] if event.kind == "renewed" else [])

    holder, other = Ours(client, "job", LONG, renew=True, observer=note), Ours(client, "job")
    assert holder.acquire()
    holder.lock.extend()
    for _ in range(2):
        client.pexpire(holder.key, 30_000)
        before = len(renewals)
        wait_until(lambda before=before: len(renewals) >= before + 2, LONG)
        assert client.pttl(holder.key) > 30_000
    assert holder.held
    assert not other.acquire()
    holder.release()
    assert other.acquire()


def test_ours_without_renewal_says_that_its_lease_is_over(client):
    holder, other = Ours(client, "job", 0.2), Ours(client, "job")
    assert holder.acquire()
    wait_until(other.acquire)
    assert not holder.held
    assert other.held
