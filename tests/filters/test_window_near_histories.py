"""The near-cache of filters with a time window: histories of several objects and threads."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest
import redis
from moved_clock import stopped_server
from near_cache_tools import MANY, delayed
from window_clocks import LONG, OVER, SLICE, SLICES, Clock, Clocks

from bloomlock import BloomFilter, BloomlockError, ClaimState
from bloomlock.filters import answers
from bloomlock.strategies.sliced import TRUST_S
from bloomlock.windows import DRIFT, Window

STEPS = ("a is sent", "a is answered", "b is sent", "b is answered", "turn")
ORDERS = [
    order
    for order in itertools.permutations(STEPS)
    if all(order.index(f"{item} is sent") < order.index(f"{item} is answered") for item in "ab")
]


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("ask", [answers.exists, answers.add])
def test_every_order_of_two_answers_and_a_turn(tmp_path, ask, is_set):
    """Of two threads; the end of an epoch is awaited, or the server's clock is set forward."""
    with stopped_server("valkey", tmp_path) as server:
        for order in ORDERS:
            server[0].flushall()
            _go(Clocks(*server), order, ask, is_set=is_set)


def _go(clocks, order, ask, *, is_set):
    clock = Clock()
    made = clocks.make(clock=clock)
    clocks.make().add("a")
    clocks.go_on(OVER - 10, clock)
    sent = {}
    for step in order:
        item = step[0]
        if step == "turn":
            clocks.go_on(OVER, *([] if is_set else [clock]))
        elif step.endswith("sent"):
            core = ask if item == "a" else answers.exists
            sent[item] = delayed(core(made._state, item), made._runtime)
        else:
            sent[item]()
        if not is_set:
            assert made.is_kept("a") <= clocks.make().exists("a"), f"{order}, after {step!r}"
    # A clock that was set is noticed with the next answer.
    clock.now += TRUST_S
    assert not made.exists("new")
    assert made.is_kept("a") <= clocks.make().exists("a"), order
    assert made.exists("a") is clocks.make().exists("a"), order


def test_any_history_is_that_of_the_server(tmp_path, seed):
    """Objects with and without a near-cache, and clocks that go too fast and too slow."""
    with stopped_server("valkey", tmp_path) as (client, stop_at, url):
        for number in range(12):
            client.flushall()
            chance = random.Random(f"{seed}/{number}")
            _History(Clocks(client, stop_at, url), chance).go()


class _History:
    """Random calls of several objects, each answered as by a filter that has all time in hand."""

    def __init__(self, clocks, chance):
        self.clocks, self.chance = clocks, chance
        shards = chance.choice((1, 3))
        rates = (1 - DRIFT / 2, 1.0, 1 + DRIFT / 2)
        self.objects = []
        for refresh in (False, False, True):
            clock = Clock(chance.choice(rates))
            options = {"max_staleness": chance.choice((30.0, LONG))}
            made = clocks.make(clock=clock, shards=shards, refresh=refresh, **options)
            self.objects.append((made, clock, refresh))
        self.items = [f"item {number}" for number in range(5)]
        # By item: the epoch in whose slice its bits were set last.
        self.epochs = {}
        # What takes the answers that are on their way.
        self.late = []
        self.hits = 0

    def is_live(self, item):
        now = self.clocks.now // SLICE
        return self.epochs.get(item, -SLICES - 1) >= now - SLICES

    def add(self, item, *, refresh):
        is_new = not self.is_live(item)
        if is_new or refresh:
            self.epochs[item] = self.clocks.now // SLICE
        return is_new

    def go(self):
        for _ in range(120):
            self.pass_time()
            # Few, so that an object is not asked again before something is over.
            for _ in range(self.chance.randrange(1, 4)):
                self.call()
        assert self.hits

    def pass_time(self):
        now = self.clocks.now
        end = (now // SLICE + 1) * SLICE
        steps = (now, now + 1, end - 600, end - 2, end - 1, end, end, end, end + 2 * SLICE)
        later = self.chance.choice([one for one in steps if one >= now])
        self.clocks.go_on(later, *(clock for _, clock, _ in self.objects))

    def call(self):
        made, clock, refresh = self.chance.choice(self.objects)
        some = self.chance.choices(self.items, k=self.chance.randrange(1, 5))
        item = some[0]
        what = self.chance.choice(
            ("add", "exists", "exists", "add_many", "exists_many", "claim", "update", "late")
        )
        self.hits += what not in ("update", "late") and made.is_kept(item)
        if what == "add":
            assert made.add(item) is self.add(item, refresh=refresh)
        elif what == "exists":
            assert made.exists(item) is self.is_live(item)
        elif what == "add_many":
            assert made.add_many(some) == [self.add(one, refresh=refresh) for one in some]
        elif what == "exists_many":
            assert made.exists_many(some) == [self.is_live(one) for one in some]
        elif what == "late":
            # Whatever it is, the answers that follow it are not wrong.
            if self.late and self.chance.random() < 0.5:
                self.late.pop(self.chance.randrange(len(self.late)))()
            else:
                self.late.append(delayed(answers.exists(made._state, item), made._runtime))
        elif what == "update":
            made.update(some)
            for one in some:
                self.add(one, refresh=refresh)
        else:
            with made.claim(item) as work:
                assert (work.state is ClaimState.SEEN) is self.is_live(item)
            self.epochs[item] = (
                self.clocks.now // SLICE if work.state is ClaimState.NEW else self.epochs[item]
            )
        # As if time went by while it was answered, for the client only.
        clock.now += self.chance.choice((0.0, 0.0, 0.0, 0.0, 0.11))


@pytest.mark.thorough
def test_threads_in_real_time(valkey, seed):
    """A window of 3 s turns while threads share an object: what is seen was added lately."""
    window = Window(3_000_000, SLICES)
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        options = {"client": client, "window": window.length, "slices": SLICES, "shards": 2}
        shared = BloomFilter("x", 4000, 1e-9, near_cache=MANY, **options)
        plain = BloomFilter("x", 4000, 1e-9, **options)
        workers = [
            _Worker(made, client, f"{seed}/{number}")
            for number, made in enumerate((shared, shared, shared, plain))
        ]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
    assert not [one.error for one in workers if one.error is not None]
    won, seen, unknown = (
        [(item, *times) for one in workers for what, item, *times in one.said if what == wanted]
        for wanted in ("new", "seen", "not known")
    )
    print(len(won), "new,", len(seen), "seen")
    for item, began_us, ended_us in seen:
        live = window.epoch_at(began_us) - SLICES
        assert any(
            other == item and start < ended_us and window.epoch_at(end) >= live
            for other, start, end in (*won, *unknown)
        ), f"{item} was seen after it was forgotten"
    for (item, start, _), (other, _, end) in itertools.pairwise(sorted(won)):
        assert other != item or end - start >= window.length_us, "two winners in one window"


class _Worker(threading.Thread):
    """Asks about the same items as others for some seconds.

    Attributes:
        said: What it was answered, about which item, from when to when by the server's clock.
        error: What went wrong.
    """

    def __init__(self, made, client, seed):
        super().__init__(daemon=True)
        self.said = []
        self.error = None
        self._made, self._client, self._chance = made, client, random.Random(seed)

    def run(self):
        until = time.monotonic() + 7.5
        try:
            while time.monotonic() < until:
                self._ask(str(self._chance.randrange(40)))
        except BaseException as error:  # noqa: BLE001 - the main thread looks at it
            self.error = error

    def _ask(self, item):
        began_us = self._now_us()
        try:
            if self._chance.random() < 0.3:
                what = "seen" if self._made.exists(item) else "not there"
            elif self._chance.random() < 0.5:
                what = "new" if self._made.add(item) else "seen"
            else:
                what = "new" if self._made.add_many([item, item])[0] else "seen"
        except BloomlockError:
            # It comes too late for its slice again and again, on a machine that is busy.
            what = "not known"
        self.said.append((what, item, began_us, self._now_us()))

    def _now_us(self):
        seconds, micros = self._client.time()
        return seconds * 10**6 + micros
