"""A guard by chance: outages, items that others forget, and slices of a window that end.

The clocks of the server and of the guard stand still between the steps, so each verdict is known.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from moved_clock import stopped_server
from proxy import Proxy, deliver
from randomized import naming
from scrapy.settings import Settings
from window_clocks import BEGIN, SLICE, SLICES, WINDOW

import scrapy_ext.answers
from bloomlock import BloomFilter
from bloomlock.strategies.sliced import SlicedStrategy
from scrapy_ext.answers import Verdict
from scrapy_ext.guard import GuardedFilter
from scrapy_ext.settings import FilterSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis

KEYS = [b"key %d" % number for number in range(12)]
ROUNDS, STEPS, MANY = 6, 80, 300
KINDS: dict[str, dict[str, Any]] = {
    "bitmap": {},
    "mirrored": {"mirror_bytes": 2**20},
    "window": {"window": float(WINDOW), "slices": SLICES},
}


class Walk:
    """Steps of a guard and of another client, and what both have to find."""

    def __init__(
        self, stop_at: Callable[[int], None], proxy: Proxy, url: str, kind: str, seed: str
    ) -> None:
        self.seed, self.kind, self.proxy = seed, kind, proxy
        self.chance = random.Random(seed)
        self._stop_at = stop_at
        self.now = 0
        self.what: Counter[str] = Counter()
        config = FilterSettings.read(Settings({"BLOOMLOCK_CAPACITY": 1000}), "spider")
        config = replace(config, near_cache=0, **({"mirror_bytes": 0} | KINDS[kind]))
        self.guard = GuardedFilter(config, self._connect, self.count, lambda _: None)
        # By key, when it was added to the filter, known to the guard, and is owed to the filter.
        self.there: dict[bytes, int] = {}
        self.known: dict[bytes, int] = {}
        self.lacking: dict[bytes, int] = {}
        self.is_flagged = self.is_out = self.was_out = False
        self.set_clock(0)
        self.guard.start()
        for breaker in (self.guard._breaker, self.guard._refills):
            breaker._clock = lambda: self.breaker_now
        self.breaker_now = 0.0
        self.other = BloomFilter.open(config.name, client=url)
        if kind == "window":
            for made in (self.guard.shared, self.other):
                # Else they would trust what they know of the time for a moment.
                strategy = made._state.strategy
                assert isinstance(strategy, SlicedStrategy)
                strategy._clock = lambda: float(self.now)
                strategy._now.clear()
                strategy._epochs.clear()

    def _connect(self) -> redis.Redis:
        return self.proxy.client()

    def count(self, what: str) -> None:
        self.what[what] += 1

    def __str__(self) -> str:
        return f"seed {self.seed!r}, {self.kind}"

    def set_clock(self, seconds: int) -> None:
        self.now = seconds
        self._stop_at(BEGIN + seconds)

    def is_there(self, key: bytes) -> bool:
        if key not in self.there:
            return False
        return self.kind != "window" or self.there[key] // SLICE >= self.now // SLICE - SLICES

    def has(self, some: dict[bytes, int], key: bytes) -> bool:
        return key in some and (self.kind != "window" or self.now - some[key] < WINDOW)

    # -- what is expected ------------------------------------------------------------------------

    def verdict(self, key: bytes, *, recorded: bool) -> Verdict:
        if self.is_out:
            if self.has(self.known, key):
                return Verdict.SEEN
            if recorded:
                self.known[key] = self.lacking[key] = self.now
            return Verdict.ALLOWED
        is_new = not self.is_there(key)
        forgets = self.is_flagged or self.kind == "window"
        owed = self.has(self.lacking if forgets else self.known, key)
        if recorded:
            if is_new:
                self.there[key] = self.now
            self.known[key] = self.now
        elif not is_new:
            self.known[key] = self.now
        self.was_out |= is_new and owed
        return Verdict.NEW if is_new and not owed else Verdict.SEEN

    def refill(self) -> None:
        """Give the filter what it is owed, at the end of a check that found it again."""
        if self.was_out and not self.is_out:
            self.was_out = False
            for key in self.lacking:
                if self.has(self.lacking, key) and not self.is_there(key):
                    self.there[key] = self.now
            self.lacking.clear()

    # -- steps -----------------------------------------------------------------------------------

    def check(self) -> None:
        if self.chance.random() < 0.5:
            key, recorded = self.chance.choice(KEYS), self.chance.random() < 0.8
            expected = self.verdict(key, recorded=recorded)
            assert self.guard.check(key, recorded=recorded) is expected, key
        else:
            keys = self.chance.sample(KEYS, 4)
            expected_all = [self.verdict(key, recorded=True) for key in keys]
            assert asyncio.run(self.guard.check_many(keys)) == expected_all, keys
        self.refill()

    def add(self) -> None:
        key = self.chance.choice(KEYS)
        assert self.other.add(key) is not self.is_there(key)
        if not self.is_there(key):
            self.there[key] = self.now

    def discard(self) -> None:
        key = self.chance.choice(KEYS)
        assert self.other.discard(key) is self.is_there(key)
        self.is_flagged |= self.is_there(key)
        self.there.pop(key, None)

    def later(self) -> None:
        if self.kind == "window":
            step = self.chance.choice((1, 300, SLICE, SLICE, 3 * SLICE))
            self.set_clock(self.now + step)

    def outage(self) -> None:
        """Let the server be away, or answer again."""
        if self.is_out:
            self.proxy.judge = deliver
            self.breaker_now += 60
            self.is_out = False
            return
        self.proxy.judge = lambda *_: "before"
        # What is sent first may count as new, or be decided by the policy.
        self.guard.check(b"first %d" % self.what["outages"])
        assert self.guard.broken
        self.is_out = self.was_out = True

    def run(self) -> None:
        acts = [self.check] * 6 + [self.add, self.discard, self.later, self.outage]
        try:
            for _ in range(STEPS):
                self.chance.choice(acts)()
                assert self.other.exists_many(KEYS) == [self.is_there(key) for key in KEYS]
        finally:
            self.proxy.judge = deliver
            self.guard.finish(lambda _: None)
            self.other.close()


class Now:
    seconds = 0


@pytest.fixture(autouse=True)
def _clock_of_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapy_ext.answers, "_boot_time", lambda: float(Now.seconds))


def walk(folder: Path, kind: str, seed: str, rounds: int) -> Counter[str]:
    what: Counter[str] = Counter()
    with stopped_server("valkey", folder) as (client, stop_at, url), Proxy(url) as proxy:

        def set_all(seconds: int) -> None:
            Now.seconds = seconds
            stop_at(seconds)

        for number in range(rounds):
            client.flushall()
            one = Walk(set_all, proxy, url, kind, f"{seed}/{number}")
            with naming(one):
                one.run()
            what += one.what
    print(what)
    return what


@pytest.mark.parametrize("kind", KINDS)
def test_each_verdict_is_the_expected_one(tmp_path: Path, kind: str, seed: int) -> None:
    assert walk(tmp_path, kind, f"{seed}", ROUNDS)["refills"]


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_each_verdict_of_many_walks(tmp_path: Path, kind: str, seed: int) -> None:
    walk(tmp_path, kind, f"{seed}", MANY)
