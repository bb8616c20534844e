"""One filter object in many threads: exact winners, whoever clears or attaches anew meanwhile."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from strategies import EXACT

from bloomlock import BloomFilter, CapacityError, FilterLostError
from bloomlock.filters.fill import FillWatch
from bloomlock.filters.state import Unreported

THREADS = 8


@pytest.fixture(autouse=True)
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def chance(seed):
    return random.Random(seed)


def in_threads(*works):
    """Run the works at the same time, each in a thread of its own; return their results."""
    start = threading.Barrier(len(works))

    def run(work):
        start.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(60) for future in [pool.submit(run, work) for work in works]]


def offering(made, items, chance, again=lambda add: add()):
    """Work that offers all items in an order of its own, alone and in batches; gives the winners.

    Args:
        again: Calls an add, and again until it is told something.
    """
    order = chance.sample(items, len(items))

    def offer():
        won, position = [], 0
        while position < len(order):
            batch = order[position : position + 1 + position % 7]
            position += len(batch)
            if len(batch) == 1:
                new = [again(lambda item=batch[0]: made.add(item))]
            else:
                new = again(lambda batch=batch: made.add_many(batch))
            won += [item for item, is_new in zip(batch, new, strict=True) if is_new]
        return won

    return offer


def winners(results):
    return Counter(item for won in results for item in won)


@pytest.mark.parametrize("strategy", EXACT)
def test_every_item_has_one_winner(r, chance, strategy):
    made = BloomFilter("x", 5000, 1e-9, client=r, strategy=strategy)
    items = [str(number) for number in range(300)]
    offers = [offering(made, items, chance) for _ in range(THREADS)]
    assert winners(in_threads(*offers)) == Counter(items)
    assert all(made.exists_many(items))


@pytest.mark.parametrize("strategy", ["atomic", "lua", "lock"])
@pytest.mark.parametrize("on_lost", ["raise", "recreate"])
def test_a_clear_by_another_thread_is_no_loss(r, chance, strategy, on_lost):
    made = BloomFilter("x", 5000, 1e-9, client=r, strategy=strategy, on_lost=on_lost)
    for round_ in range(3):
        items = [f"{round_} {number}" for number in range(100)]
        offers = [offering(made, items, chance) for _ in range(THREADS)]
        *results, _, _, _ = in_threads(*offers, made.clear, made.count, made.info)
        won = winners(results)
        # Once before the clear and once after it, at most, and in any case once.
        assert set(won) == set(items)
        assert set(won.values()) <= {1, 2}
        assert all(made.exists(item) for item, times in won.items() if times == 2)


@pytest.mark.parametrize("strategy", ["atomic", "lua", "lock"])
def test_after_a_clear_by_others_every_item_has_one_winner(r, chance, strategy):
    """Each thread is told of the loss, attaches anew and repeats what failed."""
    made = BloomFilter("x", 5000, 1e-9, client=r, strategy=strategy)

    def again(add):
        while True:
            try:
                return add()
            except FilterLostError:
                made.reattach()

    for round_ in range(3):
        made.add(f"{round_} was there")
        BloomFilter.open("x", client=r).clear()
        items = [f"{round_} {number}" for number in range(60)]
        offers = [offering(made, items, chance, again) for _ in range(THREADS)]
        # A batch of which some answers were known is repeated whole here: those are "seen" then.
        won = winners(in_threads(*offers))
        assert won == Counter(items)


def test_a_filter_that_vanishes_is_made_once(r, chance):
    made = BloomFilter("x", 5000, 1e-9, client=r, on_lost="recreate")
    for round_ in range(3):
        r.flushall()
        items = [f"{round_} {number}" for number in range(60)]
        won = winners(in_threads(*(offering(made, items, chance) for _ in range(THREADS))))
        assert won == Counter(items)
        assert made.generation == BloomFilter.open("x", client=r).generation


def test_there_are_no_more_connections_than_threads(r, valkey, chance):
    with redis.Redis.from_url(valkey, client_name="threads", max_connections=THREADS + 1) as client:
        made = BloomFilter("x", 5000, 1e-9, client=client)
        items = [str(number) for number in range(200)]
        in_threads(*(offering(made, items, chance) for _ in range(THREADS)))
        assert sum(one["name"] == "threads" for one in r.client_list()) <= THREADS + 1
        made.close()
        assert not client.connection_pool._in_use_connections


def test_a_full_filter_is_found_full_by_all(r, chance):
    """New items that threads count together are not forgotten."""
    made = BloomFilter("x", 3000, client=r, on_full="raise")

    def fill(name):
        for number in range(1200):
            try:
                made.add(f"{name} {number}")
            except CapacityError:
                return True
        return False

    assert all(in_threads(*(lambda name=name: fill(name) for name in range(THREADS))))
    assert made.count() < 3000 * 1.1


def test_no_count_of_new_items_is_lost():
    watch = FillWatch("x", refuse=False)
    watch._until_look = 10**6

    def add():
        return sum(watch.due(1) for _ in range(20_000))

    assert in_threads(*[add] * THREADS) == [0] * THREADS
    assert watch.until_look == 10**6 - THREADS * 20_000


def test_one_of_many_threads_looks():
    watch = FillWatch("x", refuse=False)
    for _ in range(50):
        watch._until_look = 1
        assert sum(in_threads(*[lambda: watch.due(1)] * 4)) == 1


def test_one_of_many_threads_is_told_of_an_untold_item():
    unreported = Unreported()
    noted = unreported.of(7)
    for number in range(50):
        unreported.remember(7, [b"%d" % number, b"other"])
        assert sum(in_threads(*[lambda n=number: unreported.take(noted, b"%d" % n)] * 4)) == 1
        assert not unreported.take(unreported.of(8), b"other")
        assert unreported.take(noted, b"other")
    assert not noted


def test_untold_items_of_generations_long_gone_are_forgotten():
    unreported = Unreported()
    before = unreported.moment()
    unreported.remember(7, [b"a"])
    unreported.attached(7, unreported.moment())
    # However many threads attach late to what was there before.
    for header in range(100, 120):
        unreported.attached(header, before)
    noted = unreported.of(7)
    assert b"a" in noted
    unreported.attached(8, unreported.moment())
    assert not unreported.of(7)
    # What still works on that generation finds it.
    assert unreported.take(noted, b"a")


def test_slow_threads_that_attach_to_an_old_generation_forget_no_untold_item(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 2000, client=client)
        other = BloomFilter.open("x", client=client)
        slow = []
        for _ in range(5):
            core = made._state.attach()
            step = next(core)

            def one(step=step):
                return (yield step)

            # It has looked, and does not know yet what it saw.
            slow.append((core, made._runtime.run(one())))
        other.clear()
        with pytest.raises(FilterLostError):
            made.add("a")
        for core, replies in slow:
            made._runtime.run(_with_replies(core, replies))
        made.reattach()
        assert made.add("a") is True
        assert made.add("a") is False


def _with_replies(core, replies):
    step = core.send(replies)
    while True:
        replies = yield step
        try:
            step = core.send(replies)
        except StopIteration:
            return
