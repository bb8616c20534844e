"""The lock scripts do what lock_rules.py says, step by step, from whatever state they find."""

from __future__ import annotations

import random
from collections import Counter

import lock_rules as rules
import pytest
import redis
from lock_rules import NEVER_MS, SHARED, LockState

from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.steps import (
    ACQUIRE,
    NO_CHANNEL,
    RELEASE,
    RENEW,
    AcquireRequest,
    Busy,
    Granted,
    ReleaseRequest,
    RenewRequest,
)
from bloomlock.runtime._sync.driver import Driver

KEYS = LockKeys.of("compared")
HEARD, UNHEARD = b"heard", b"unheard"
LEASES_MS = (600_000, 1_200_000, 2_400_000)
STEP_MS = 300_000
"""Times are compared in units of this; what passes between two looks is no such unit."""
ROUNDS = 600


def read(r):
    """Return the server's time and the state that it has."""
    seconds, us = r.time()
    now_us = seconds * 1_000_000 + us
    left_ms = r.pttl(KEYS.lock)
    expires_ms = now_us // 1000 + left_ms if left_ms >= 0 else NEVER_MS
    keys = KEYS.holders, KEYS.queue, KEYS.alive
    named = [dict(r.zrange(key, 0, -1, withscores=True)) for key in keys]
    return now_us, LockState(r.get(KEYS.lock), expires_ms, *named, int(r.get(KEYS.fence) or 0))


def shown(state, now_us):
    """Return what two states must have in common: holders, waiters in order, marks, leases."""
    units = lambda ms: round((ms - now_us // 1000) / STEP_MS)  # noqa: E731
    rules._forget(state, now_us)
    lease = units(state.expires_ms) if state.value and state.expires_ms < NEVER_MS else None
    holders = {token: units(until_ms) for token, until_ms in state.holders.items()}
    marks = {record: until_ms % 1 for record, until_ms in state.alive.items()}
    return state.value, lease, holders, state.in_order(), marks


class Comparison:
    """Random steps, each by the scripts and by the rules."""

    def __init__(self, r, seed):
        self.r, self.run, self.chance = r, Driver.of(r).run, random.Random(seed)
        self.seen = Counter()

    def request(self):
        """Return what one of ten clients always asks for; each has one channel, three read."""
        number = self.chance.randrange(10)
        channel = (b"", HEARD, HEARD, UNHEARD, NO_CHANNEL)[number % 5]
        lease_ms, provisional_ms = LEASES_MS[number % 3], (0, LEASES_MS[0])[number % 2]
        token = b"t%d" % number
        return AcquireRequest(token, lease_ms, number in {4, 6, 8}, channel, provisional_ms)

    def step(self):
        asked, told = self.request(), []
        now_us, state = read(self.r)
        hears = lambda channel: channel == HEARD  # noqa: E731
        match kind := self.chance.choice(("acquire", "acquire", "release", "renew", "disturb")):
            case "acquire":
                answer, _ = self.run(ACQUIRE.run(KEYS, asked))
                expected = rules.acquire(state, now_us, asked, told.append, hears)
                kind += f" {type(answer).__name__}"
                assert type(answer) is type(expected)
                if isinstance(answer, Busy):
                    assert answer.position == expected.position
            case "release":
                leaving = ReleaseRequest(asked.token, asked.is_shared, asked.record)
                answer, _ = self.run(RELEASE.run(KEYS, leaving))
                assert answer == rules.release(state, now_us, leaving, told.append, hears)
                kind += f" {answer}"
            case "renew":
                renewal = RenewRequest(asked.token, asked.is_shared, asked.lease_ms)
                [answer] = self.run(RENEW.run_all([(KEYS, renewal)]))
                assert answer == rules.renew(state, now_us, *renewal)
                kind += f" {answer}"
            case _:
                self.disturb()
                return
        self.seen.update([kind, f"grants {min(len(told), 2)}"])
        after_us, after = read(self.r)
        if after.holders and after.value == SHARED:
            assert after.expires_ms > max(after.holders.values()) - STEP_MS
        assert shown(after, after_us) == shown(state, now_us), (kind, asked, told)
        if told or isinstance(answer, Granted):
            assert after.fence > 0

    def disturb(self):
        """Let somebody's time be over, or the key be deleted."""
        key = self.chance.choice((KEYS.lock, KEYS.holders, KEYS.alive, KEYS.queue))
        if key == KEYS.lock:
            self.r.delete(key)
        elif members := self.r.zrange(key, 0, -1):
            self.r.zadd(key, {self.chance.choice(members): 1})


def test_the_scripts_follow_the_rules(client, seed):
    if client.connection_pool.connection_kwargs.get("decode_responses"):
        pytest.skip("it reads bytes")
    client.delete(*KEYS)
    compared = Comparison(client, seed)
    with redis.Redis(connection_pool=client.connection_pool).pubsub() as listening:
        listening.subscribe(HEARD)
        listening.get_message(timeout=60)
        for _ in range(ROUNDS):
            compared.step()
    assert compared.seen.keys() >= {
        *("acquire Granted", "acquire Busy", "release True", "release False"),
        *("renew True", "renew False", "grants 0", "grants 1", "grants 2"),
    }
