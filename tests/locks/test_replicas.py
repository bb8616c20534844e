"""replicas=n: a grant counts only when n replicas have it, else it is given back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import redis
import servers
from contract.lock_backends import TTL, Backend, World
from private import PrivateServer
from servers import wait_until

from bloomlock.errors import QuorumError


@pytest.fixture(scope="module")
def pair():
    """A master and its only replica."""
    binary = servers.require_server("valkey")
    with ExitStack() as stack:
        config = {"repl-diskless-sync-delay": "0"}
        master = stack.enter_context(PrivateServer(binary=binary, port=0, config=config))
        follow = {"replicaof": ["127.0.0.1", master.port]}
        yield master, stack.enter_context(PrivateServer(binary=binary, port=0, config=follow))


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def world(request, pair):
    with ExitStack() as stack:
        world = World(Backend("Lock", request.param), [pair[0].url], stack)
        wait_until(lambda: world.servers[0].execute_command("WAIT", 1, 100) == 1)
        yield world


def test_acknowledged(world, ann, pair, monkeypatch):
    monkeypatch.setattr("bloomlock.locks.session.CONFIRM_SECONDS", TTL)
    lock = world.lock(replicas=1)
    ann(lock.acquire)
    with redis.Redis.from_url(pair[1].url) as second:
        assert second.get(lock.key) == ann(lambda: lock.token).encode()
    ann(lock.release)
    assert world.is_free(lock)


def test_what_was_handed_over_is_confirmed_as_well(world, ann, bob):
    """The grant of the waiter was another client's write, of which WAIT does not speak."""
    holder, many, one = world.lock(), world.lock(replicas=2), world.lock(replicas=1)
    cid = world.person()
    ann(holder.acquire)
    first = bob.start(many.acquire)
    wait_until(lambda: world.waiting(holder) == 1)
    second = cid.start(one.acquire)
    wait_until(lambda: world.waiting(holder) == 2)
    ann(holder.release)
    with pytest.raises(QuorumError, match="'job' was acknowledged by 1 of 2 replicas within 1 s"):
        first.result(TTL)
    assert bob(lambda: many.token) is None
    assert second.result(TTL) is True
    assert cid(one.owned) is True
    cid(one.release)
    assert world.is_free(holder)
