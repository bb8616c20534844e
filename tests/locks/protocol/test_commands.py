"""Which commands a server has is found by trying, once; and by which a step costs one trip."""

from __future__ import annotations

from itertools import groupby

import pytest
import redis
from contract.lock_backends import TTL
from proxy import HANDSHAKE, Proxy

from bloomlock import Lock
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.steps import LockSteps, ReleaseRequest


@pytest.fixture
def proxy(client, server_url):
    with Proxy(server_url) as made:
        yield made


def turn(lock):
    lock.acquire()
    lock.extend()
    lock.release()


def sent_by(proxy, lock):
    """The commands of a turn; one that is sent again at once counts once."""
    before = len(proxy.seen)
    turn(lock)
    names = [name for name in proxy.seen[before:] if name not in HANDSHAKE]
    return [name for name, _ in groupby(names)]


def test_what_the_server_has_is_found_by_trying_once(client, proxy):
    is_valkey = "valkey_version" in client.info("server")
    client.script_flush()
    with redis.Redis.from_url(proxy.url) as through:
        lock = Lock("job", through, TTL)
        first, second = sent_by(proxy, lock), sent_by(proxy, lock)
    twice = ["EVALSHA", "EVAL"] * 2
    if is_valkey:
        assert first == [*twice, "DELIFEQ", "EXISTS"]
        assert second == ["EVALSHA", "DELIFEQ", "EXISTS"]
    else:
        assert first == [*twice, "DELIFEQ", "EXISTS", "DELEX", "EXISTS", "EVALSHA", "EVAL"]
        assert second == ["EVALSHA"]


def test_the_compare_and_delete_of_redis_is_tried_after_that_of_valkey():
    """Redis 8.4 has DELEX; the answers of one are given by hand here."""
    steps = LockSteps(LockKeys.of("steps"), set())
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


def test_a_user_may_be_forbidden_the_native_commands(r, as_user):
    lock = Lock("job", as_user("-delifeq"), TTL)
    for _ in range(2):
        turn(lock)
    assert not r.exists(lock.key)


def test_an_error_that_passes_switches_nothing_off(r, valkey):
    with Proxy(valkey) as proxy, redis.Redis.from_url(proxy.url) as through:
        lock = Lock("job", through, TTL)
        turn(lock)
        usual = sent_by(proxy, lock)
        lock.acquire()
        r.config_set("min-replicas-to-write", 1)
        try:
            for step in (lambda: lock.extend(2 * TTL), lock.release):
                with pytest.raises(redis.ResponseError, match="(?i)not enough good replicas"):
                    step()
        finally:
            r.config_set("min-replicas-to-write", 0)
        r.delete(lock.key)
        assert sent_by(proxy, lock) == usual


@pytest.mark.parametrize("side", ["read", "write"])
def test_everything_of_clients_that_were_killed_expires(r, world, ann, bob, side):
    """A queue lives on as long as somebody asks, and so does what it is known by."""
    both = world.lock_class("ReadWriteLock")("job", world._client(world.urls[0]), TTL)
    holder, waiter = getattr(both, side), world.lock()
    ann(holder.acquire)
    future = bob.start(waiter.acquire)
    while world.waiting(waiter) == 0:
        assert not future.done()
    for key in r.keys("*{job}*"):
        assert 0 < r.pttl(key) <= 2000 * TTL, key
    ann(holder.release)
    assert future.result(TTL) is True
    bob(waiter.release)
    world._closed.append(both)
