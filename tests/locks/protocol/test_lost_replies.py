"""A reply that never came changes nothing for the worse.

Every command of every step is lost once before it reaches the server and once after it was carried
out, in every way the steps have; the state is then what it is when nothing is lost.
"""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor

import lock_ways
import pytest
import redis
from proxy import HANDSHAKE, PUSH, Proxy

from bloomlock import Lock
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.model import AcquireRequest, Busy, Granted, ReleaseRequest

LEASE_MS = 600_000
PATIENCE = 60
KEYS = LockKeys.of("lossy")
HOLDER, WAITER, OTHER, READER = (
    AcquireRequest(name, LEASE_MS, group, channel=b"channel")
    for name, group in ((b"holder", b""), (b"waiter", b""), (b"other", b""), (b"reader", b"r"))
)


def leaving(asking):
    return ReleaseRequest(asking.token, asking.group, asking.record)


# What stands before, and the step whose commands are lost.
STEPS = {
    "acquire": ([], lambda way: way.acquire(HOLDER)),
    "acquire shared": ([], lambda way: way.acquire(READER)),
    "enqueue": ([HOLDER], lambda way: way.acquire(WAITER)),
    "enqueue behind": ([HOLDER, WAITER], lambda way: way.acquire(OTHER)),
    "ask again": ([HOLDER, WAITER, OTHER], lambda way: way.acquire(WAITER)),
    "renew": ([HOLDER], lambda way: way.renew(HOLDER.token, b"", LEASE_MS)),
    "renew shared": ([READER], lambda way: way.renew(READER.token, b"r", LEASE_MS)),
    "renew nothing": ([WAITER], lambda way: way.renew(HOLDER.token, b"", LEASE_MS)),
    "release": ([HOLDER], lambda way: way.release(ReleaseRequest(HOLDER.token))),
    "release shared": ([READER], lambda way: way.release(ReleaseRequest(READER.token, b"r"))),
    "hand on": ([HOLDER, WAITER, OTHER], lambda way: way.release(ReleaseRequest(HOLDER.token))),
    "hand on to a reader": (
        [HOLDER, READER],
        lambda way: way.release(ReleaseRequest(HOLDER.token)),
    ),
    "leave": ([HOLDER, WAITER, OTHER], lambda way: way.release(leaving(WAITER))),
    "release nothing": ([WAITER], lambda way: way.release(ReleaseRequest(HOLDER.token))),
}


def start(client, before):
    client.delete(*KEYS)
    direct = lock_ways.ServerWay(client, KEYS, lock_ways.WAYS["scripts"]())
    for asking in before:
        direct.acquire(asking)
    return direct


def lose(proxy, number, verdict):
    """Lose the command that is `number`th from now on."""
    state = {"left": number, "done": False}

    def judge(name, _number):
        if name in HANDSHAKE:
            return "pass"
        state["left"] -= 1
        state["done"] = state["done"] or state["left"] < 0
        return verdict if state["left"] == -1 else "pass"

    proxy.judge = judge
    return state


def plain(answer):
    match answer:
        case Granted():
            return ("granted", answer.waiters)
        case Busy():
            return ("busy", answer.position)
        case _:
            return answer


@pytest.mark.parametrize("name", lock_ways.WAYS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("verdict", ["before", "after"])
def test_any_single_loss(client, proxy, through, name, step, verdict):
    before, carry_out = STEPS[step]
    # Whatever is to be found out of the server is found out first.
    way = lock_ways.ServerWay(through, KEYS, lock_ways.WAYS[name]())
    for _ in range(2):
        direct = start(client, before)
        expected = plain(carry_out(way))
    picture = direct.picture()
    for number in range(100):
        direct = start(client, before)
        state = lose(proxy, number, verdict)
        answer = plain(carry_out(way))
        proxy.judge = lambda _name, _number: "pass"
        assert direct.picture() == picture, number
        if not state["done"]:
            assert answer == expected
            assert number >= 1
            return
        # None: it is not held any more, but nobody knows whether it was until now.
        assert answer == expected or (answer is None and isinstance(expected, bool)), number
        assert answer is not None or not step.startswith("renew")
    pytest.fail("a step of a hundred commands?")


def test_many_threads_exclude_each_other_whatever_is_lost(server_url, client, seed):
    """One command in thirty is cut off; whoever enters is alone, and everybody enters each time."""
    chance = random.Random(seed)

    def judge(name, _number):
        if name in HANDSHAKE or name in (PUSH, "SUBSCRIBE") or chance.random() > 1 / 30:
            return "pass"
        return chance.choice(["before", "after"])

    threads, rounds = 4, 150
    inside, entered = [], []

    def work(number):
        with redis.Redis.from_url(proxy.url) as own:
            lock = Lock("x", client=own)
            for _ in range(rounds):
                while not acquired(lock):
                    pass
                inside.append(number)
                assert inside == [number]
                entered.append(number)
                inside.remove(number)
                # Whether it was released is not known then; the next acquire tells.
                with contextlib.suppress(redis.ConnectionError):
                    lock.release()

    with Proxy(server_url, judge, pushes=True) as proxy:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        assert min(proxy.cuts.values()) > 0
    assert sorted(entered) == sorted(list(range(threads)) * rounds)


def acquired(lock):
    """Acquire; False if the server could not be asked three times in a row."""
    try:
        assert lock.acquire(timeout=PATIENCE)
    except redis.ConnectionError:
        return False
    return True
