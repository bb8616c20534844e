"""What a server has is found by trying, and nothing of a lock stays for ever."""

from __future__ import annotations

from itertools import groupby

import lock_ways
import pytest
import redis
from proxy import HANDSHAKE

from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.model import (
    LIVENESS_MS,
    NO_CHANNEL,
    AcquireRequest,
    Busy,
    Granted,
    ReleaseRequest,
)
from bloomlock.locks.protocol.steps import LockSteps

LEASE_MS = 600_000
KEYS = LockKeys.of("steps")
ME = AcquireRequest(b"me", LEASE_MS)


@pytest.fixture
def kind(client):
    """The kind of server, by what it says of itself."""
    info = client.info("server")
    return "valkey" if "valkey_version" in info else "redis"


def sent_by(proxy, action):
    """The commands that an action sends; one that is sent again at once counts once."""
    before = len(proxy.seen)
    action()
    names = [name for name in proxy.seen[before:] if name not in HANDSHAKE]
    return [name for name, _ in groupby(names)]


def round_of(way):
    """The commands of one more acquire, renewal and release."""
    assert isinstance(way.acquire(ME), Granted)
    assert way.renew(b"me", b"", LEASE_MS)
    assert way.release(ReleaseRequest(b"me"))


def test_what_the_server_has_is_found_by_trying_once(kind, client, proxy, through):
    client.script_flush()
    way = lock_ways.ServerWay(through, KEYS, set())
    first = sent_by(proxy, lambda: round_of(way))
    second = sent_by(proxy, lambda: round_of(way))
    twice = ["EVALSHA", "EVAL"] * 2
    if kind == "valkey":
        assert first == [*twice, "DELIFEQ", "EXISTS"]
        assert second == ["EVALSHA", "DELIFEQ", "EXISTS"]
        assert "DELIFEQ" not in way.missing
    else:
        tried = ["DELIFEQ", "EXISTS", "DELEX", "EXISTS"]
        assert first == [*twice, *tried, "EVALSHA", "EVAL"]
        assert second == ["EVALSHA"]
        assert {"DELIFEQ", "DELEX"} <= way.missing
    assert "scripts" not in way.missing


def test_the_compare_and_delete_of_redis_is_tried_after_that_of_valkey():
    """Redis 8.4 has DELEX; the answers of one are given by hand here."""
    steps = LockSteps(KEYS, set())
    unknown = redis.ResponseError("unknown command 'DELIFEQ', with args beginning with: ...")
    for replies in ([unknown, 0], [1, 0]), ([1, 0],):
        core = steps.release(ReleaseRequest(b"me"), waiters=False)
        request = next(core)
        for reply in replies[:-1]:
            assert b"DELIFEQ" in request.commands[0]
            request = core.send(reply)
        assert b"DELEX" in request.commands[0]
        assert b"$4\r\nIFEQ\r\n$2\r\nme\r\n" in request.commands[0]
        with pytest.raises(StopIteration) as stopped:
            core.send(replies[-1])
        assert stopped.value.value is True


def test_a_user_may_be_forbidden_the_native_commands(kind, client, as_user):
    forbidden = "-delifeq" if kind == "valkey" else "-getdel"
    way = lock_ways.ServerWay(as_user(forbidden), KEYS, set())
    for _ in range(2):
        round_of(way)
    assert {"DELIFEQ", "DELEX"} <= way.missing
    assert "scripts" not in way.missing


def test_an_error_that_passes_switches_nothing_off(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        way = lock_ways.ServerWay(client, KEYS, set())
        assert isinstance(way.acquire(ME), Granted)
        client.config_set("min-replicas-to-write", 1)
        try:
            for step in (
                # Longer than the lease: a renewal that changes nothing writes nothing.
                lambda: way.renew(b"me", b"", 2 * LEASE_MS),
                lambda: way.release(ReleaseRequest(b"me")),
            ):
                with pytest.raises(redis.ResponseError, match="(?i)not enough good replicas"):
                    step()
        finally:
            client.config_set("min-replicas-to-write", 0)
        assert "DELIFEQ" not in way.missing
        assert "scripts" not in way.missing
        round_of(way)


def test_after_all_is_released_only_the_fence_is_left_and_expires(r):
    way = lock_ways.ServerWay(r, KEYS, set())
    everybody = [
        AcquireRequest(b"t%d" % number, LEASE_MS, group, channel=b"c")
        for number, group in enumerate([b"", b"", b"r", b"r", b"", b"o", b"o"])
    ]
    for asking in everybody:
        way.acquire(asking)
    for asking in everybody:
        assert isinstance(way.acquire(asking), Granted)
        assert way.release(ReleaseRequest(asking.token, asking.group, asking.record))
    assert list(r.scan_iter()) == [KEYS.fence.encode()]
    assert 0 < r.pttl(KEYS.fence) <= 2 * LEASE_MS


def test_everything_of_clients_that_were_killed_expires(r):
    way = lock_ways.ServerWay(r, KEYS, set())
    for group in (b"", b"r"):
        r.delete(*KEYS)
        assert isinstance(way.acquire(AcquireRequest(b"holder", LEASE_MS, group)), Granted)
        for number in range(3):
            for _ in range(2):  # the second time as one who comes back
                asking = AcquireRequest(b"w%d" % number, LEASE_MS, channel=b"c")
                assert isinstance(way.acquire(asking), Busy)
        wanted = {KEYS.lock, KEYS.queue, KEYS.alive, KEYS.fence, *([KEYS.holders] if group else [])}
        assert {key.decode() for key in r.scan_iter()} == wanted
        for key in wanted:
            assert 0 < r.pttl(key) <= 2 * LEASE_MS, key


@pytest.mark.parametrize("last_s", [-3, 3600, None])
def test_a_queue_lives_on_as_long_as_clients_come(r, last_s):
    """Whether those who wait last asked a moment ago, in a time still to come, or do so again."""
    way = lock_ways.ServerWay(r, KEYS, set())
    way.acquire(AcquireRequest(b"holder", LEASE_MS))
    first = AcquireRequest(b"first", LEASE_MS, channel=NO_CHANNEL)
    assert isinstance(way.acquire(first), Busy)
    assert r.pttl(KEYS.queue) > LIVENESS_MS
    if last_s is not None:
        ticket = (int(r.time()[0]) + last_s) * 1_000_000
        r.zadd(KEYS.queue, {first.record: ticket})
    r.pexpire(KEYS.queue, LIVENESS_MS)
    asking = first if last_s is None else first._replace(token=b"second")
    assert isinstance(way.acquire(asking), Busy)
    assert r.pttl(KEYS.queue) > LIVENESS_MS


def test_a_hold_that_is_over_is_not_held_though_others_share_the_lock(r):
    way = lock_ways.ServerWay(r, KEYS, set())
    for token in (b"one", b"two"):
        way.acquire(AcquireRequest(token, LEASE_MS, b"r"))
    assert way._run(way.steps.is_held(b"one", b"r"))
    way.expire_holder(b"one")
    assert not way._run(way.steps.is_held(b"one", b"r"))
    assert way._run(way.steps.is_held(b"two", b"r"))
    assert not way._run(way.steps.is_held(b"two", b""))
    assert not way._run(way.steps.is_held(b"nobody", b"r"))


def test_a_hold_is_confirmed_by_as_many_replicas_as_there_are(r):
    way = lock_ways.ServerWay(r, KEYS, set())
    granted = way.acquire(ME)
    confirmed, replicas = way._run(way.steps.confirm(ME, 1, 10))
    assert replicas == 0
    assert confirmed.fence > granted.fence
    r.set(KEYS.lock, b"somebody else", px=LEASE_MS)
    assert way._run(way.steps.confirm(ME, 0, 10)) == (Granted(0, waiters=True), 0)
    assert r.get(KEYS.lock) == b"somebody else"


@pytest.mark.parametrize("group", [b"", b"r"])
def test_late_copies_of_earlier_requests_shorten_no_lease(r, group):
    way = lock_ways.ServerWay(r, KEYS, set())
    early = AcquireRequest(b"me", LEASE_MS // 100, group)
    assert isinstance(way.acquire(early), Granted)
    assert way.renew(b"me", group, early.lease_ms)
    assert way.renew(b"me", group, LEASE_MS)
    for late in (lambda: way.renew(b"me", group, early.lease_ms), lambda: way.acquire(early)):
        assert late()
        assert all(left_ms > LEASE_MS / 2 for left_ms in way.leases().values())
    assert way.renew(b"me", group, 2 * LEASE_MS)
    assert all(left_ms > 1.5 * LEASE_MS for left_ms in way.leases().values())


def test_a_lock_that_lost_its_lease_gets_one_with_the_next_renewal(r):
    way = lock_ways.ServerWay(r, KEYS, set())
    way.acquire(ME)
    r.persist(KEYS.lock)
    assert way.renew(b"me", b"", LEASE_MS)
    assert 0 < r.pttl(KEYS.lock) <= LEASE_MS
