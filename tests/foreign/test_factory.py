"""What LockStrategy makes of a factory: its names, its errors, and things that are none."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from foreign.half_way import HalfWay, lock_strategy
from proxy import Proxy

from bloomlock import BatchError, BloomFilter, ConfigurationError, LockStrategy, OutcomeUnknownError

ITEMS = [f"https://example.org/{number}" for number in range(40)]


class Boom(Exception):  # noqa: N818 - an error that nobody else knows
    """What a foreign lock raises."""


class Recorded:
    """A factory that notes what is asked of it, and raises where it is told to."""

    def __init__(self):
        self.names = []
        self.events = []
        self.fail_enter = self.fail_exit = None

    def __call__(self, name):
        self.names.append(name)
        return Watched(self)


class Watched:
    """A context manager that nothing leaves but a call; a generator would, when it is collected."""

    def __init__(self, factory):
        self._factory = factory

    def __enter__(self):
        if self._factory.fail_enter is not None:
            raise self._factory.fail_enter
        self._factory.events.append("in")

    def __exit__(self, *_):
        self._factory.events.append("out")
        if self._factory.fail_exit is not None:
            raise self._factory.fail_exit


@pytest.fixture
def factory():
    """A factory whose locks exclude nobody, but are watched."""
    return Recorded()


@pytest.fixture
def made(r, factory):
    """A filter that stands, under those locks."""
    filter_ = BloomFilter("x", 5_000, 1e-9, client=r, strategy=LockStrategy(factory))
    assert filter_.add("first") is True
    factory.names.clear()
    factory.events.clear()
    return filter_


def everything(r):
    return {key: r.dump(key) for key in r.scan_iter()}


def test_an_add_is_inside_the_context_and_a_test_needs_none(made, factory):
    assert made.add("item") is True
    assert made.add("item") is False
    assert factory.events == ["in", "out"] * 2
    assert made.exists("item") is True
    assert made.exists_many(["item", "no"]) == [True, False]
    assert len(factory.names) == 2


def test_an_item_has_the_same_name_for_everybody(r, made, factory):
    made.add_many(ITEMS)
    mine = Recorded()
    other = BloomFilter.open("x", client=r, strategy=LockStrategy(mine))
    for item in ITEMS:
        other.add(item)
    assert set(mine.names) == set(factory.names)
    assert all(isinstance(name, str) for name in mine.names)


def test_filters_do_not_wait_for_each_other(r, made, factory):
    mine = Recorded()
    other = BloomFilter("y", 5_000, 1e-9, client=r, strategy=LockStrategy(mine))
    other.add_many(ITEMS)
    made.add_many(ITEMS)
    assert not set(mine.names) & set(factory.names)


def test_there_are_no_more_names_than_stripes(made, factory):
    made.add_many(map(str, range(4_000)))
    assert 900 < len(set(factory.names)) <= 1024


def test_an_error_on_entering_is_raised_and_nothing_is_written(r, made, factory):
    factory.fail_enter = Boom("no quorum")
    before = everything(r)
    with pytest.raises(Boom, match="no quorum") as caught:
        made.add("item")
    assert caught.value is factory.fail_enter
    assert everything(r) == before
    factory.fail_enter = None
    assert made.add("item") is True


@pytest.mark.parametrize("where", ["factory", "enter"])
def test_a_batch_stops_at_the_first_lock_it_does_not_get_and_keeps_its_answers(
    r, made, factory, where
):
    asked = []

    def third_fails(name):
        asked.append(name)
        boom = Boom("the third") if len(asked) == 3 else None
        if boom and where == "factory":
            raise boom
        factory.fail_enter = boom
        return factory(name)

    other = BloomFilter.open("x", client=r, strategy=LockStrategy(third_fails))
    with pytest.raises(BatchError, match="the third") as caught:
        other.add_many(ITEMS)
    # The caller's own exception is the cause, and left as it is.
    assert isinstance(caught.value.__cause__, Boom)
    assert not vars(caught.value.__cause__)
    assert len(asked) == 3
    assert factory.events == ["in", "out"] * 2
    answered = [new for new in caught.value.results if new is not None]
    assert answered == [True] * len(answered)
    # What has no answer was not written.
    factory.fail_enter = None
    assert made.add_many(ITEMS).count(True) == len(ITEMS) - len(answered)


def test_an_error_on_leaving_means_not_known(made, factory):
    factory.fail_exit = Boom("session lost")
    with pytest.raises(OutcomeUnknownError, match="session lost") as caught:
        made.add("item")
    assert caught.value.__cause__ is factory.fail_exit
    factory.fail_exit = None
    assert made.add("item") is False


def test_who_takes_not_known_for_new_is_answered_new(r, factory):
    filter_ = BloomFilter(
        "x", 5_000, 1e-9, client=r, strategy=LockStrategy(factory), on_unknown="new"
    )
    factory.fail_exit = Boom("session lost")
    assert filter_.add("item") is True
    assert filter_.add("item") is True


def test_an_interrupt_while_it_waits_goes_through(r, made, factory):
    factory.fail_enter = KeyboardInterrupt()
    before = everything(r)
    with pytest.raises(KeyboardInterrupt):
        made.add("item")
    assert everything(r) == before


def test_an_interrupt_while_it_works_gives_the_lock_back(valkey, made, factory):
    caught = threading.Event()

    def judge(name, _number):
        if name == "SETBIT" and not caught.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            caught.wait(60)
        return "pass"

    with Proxy(valkey, judge) as proxy:
        other = BloomFilter.open("x", client=proxy.url, strategy=LockStrategy(factory))
        with pytest.raises(KeyboardInterrupt):
            other.add("item")
        caught.set()
    assert factory.events == ["in", "out"]


def test_a_context_that_swallows_errors_does_not_swallow_the_servers(valkey, made):
    def judge(name, _number):
        return "before" if name == "SETBIT" else "pass"

    with Proxy(valkey, judge) as proxy:
        swallowing = LockStrategy(lambda _name: contextlib.suppress(Exception))
        other = BloomFilter.open("x", client=proxy.url, strategy=swallowing)
        with pytest.raises(OutcomeUnknownError):
            other.add("item")


@pytest.mark.parametrize("wrong", [5, "zookeeper", threading.Lock(), contextlib.nullcontext()])
def test_a_factory_that_cannot_be_called_is_refused_at_once(wrong):
    with pytest.raises(ConfigurationError, match="factory must be") as caught:
        LockStrategy(wrong)
    assert repr(wrong) in str(caught.value)


class OnlyAsync:
    """A context manager for tasks."""

    async def __aenter__(self):
        raise NotImplementedError

    async def __aexit__(self, *_):
        raise NotImplementedError


@pytest.mark.parametrize("wrong", [None, "name", object(), OnlyAsync(), contextlib.nullcontext])
def test_a_factory_that_gives_no_context_manager_is_told_so(r, made, wrong):
    before = everything(r)
    other = BloomFilter.open("x", client=r, strategy=LockStrategy(lambda _name: wrong))
    with pytest.raises(ConfigurationError, match="factory must") as caught:
        other.add("item")
    assert repr(wrong) in str(caught.value)
    assert "context manager" in str(caught.value)
    assert everything(r) == before


def race_half_way(valkey, made, factory, patience):
    """Two threads add the same items, the first stopped in the middle of each.

    Returns the winners of each item, and on how many the second came in meanwhile.
    """
    half_way = HalfWay(made.num_hashes, len(ITEMS), patience)

    def offer(url):
        strategy = lock_strategy(factory, pieces=True)
        with BloomFilter("x", 5_000, 1e-9, client=url, strategy=strategy) as mine:
            return [item for item in ITEMS if mine.add(item)]

    with (
        Proxy(valkey, half_way.stopped) as one,
        Proxy(valkey, half_way.passing) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        won = Counter(item for each in threads.map(offer, [one.url, other.url]) for item in each)
    return won, half_way.met


def test_threads_under_a_lock_for_each_name_have_one_winner(valkey, made):
    locks = {}

    def lock(name):
        return locks.setdefault(name, threading.Lock())

    assert race_half_way(valkey, made, lock, 0.02) == (Counter(ITEMS), 0)


def test_without_a_lock_threads_have_two_winners(valkey, made):
    # The control: the same race.
    outcome = race_half_way(valkey, made, lambda _name: contextlib.nullcontext(), 60)
    assert outcome == (Counter(ITEMS + ITEMS), len(ITEMS))
