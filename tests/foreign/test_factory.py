"""What LockStrategy makes of a factory: its names, its errors, and things that are none."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import defaultdict
from urllib.parse import quote

import pytest
from filelock import FileLock
from proxy import Proxy
from servers import wait_until

from bloomlock import AsyncBloomFilter, BloomFilter, LockStrategy
from bloomlock.errors import BatchError, ConfigurationError, OutcomeUnknownError

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
    """A context manager of both kinds; it excludes nobody."""

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

    async def __aenter__(self):
        self.__enter__()

    async def __aexit__(self, *_):
        self.__exit__()


class InALoop:
    """An AsyncBloomFilter, called as one of threads."""

    def __init__(self, runner, made):
        self._runner = runner
        self._made = made

    def __getattr__(self, name):
        call = getattr(self._made, name)
        return lambda *arguments: self._runner.run(call(*arguments))


@pytest.fixture
def factory():
    return Recorded()


@pytest.fixture(params=["threads", "asyncio"])
def make(request, r, valkey):
    """Attach to a filter under a lock."""
    BloomFilter("x", 5_000, 1e-9, client=r).add("first")
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())

        def make(lock, url=valkey, **options):
            options |= {"client": url, "strategy": LockStrategy(lock)}
            if request.param == "threads":
                return stack.enter_context(BloomFilter("x", 5_000, 1e-9, **options))
            made = InALoop(runner, AsyncBloomFilter("x", 5_000, 1e-9, **options))
            stack.callback(made.close)
            return made

        yield make


def everything(r):
    return {key: r.dump(key) for key in r.scan_iter()}


def test_an_add_is_inside_the_context_and_a_test_needs_none(make, factory, valkey):
    def judge(name, _number):
        if name in {"SETBIT", "EXEC"} and factory.names:
            factory.events.append("write")
        return "pass"

    with Proxy(valkey, judge) as proxy:
        made = make(factory, proxy.url)
        assert [made.add("item"), made.add("item")] == [True, False]
        events = [each for each, _ in itertools.groupby(factory.events)]
        assert events == ["in", "write", "out"] * 2
        assert made.exists("item") is True
        assert made.exists_many(["item", "no"]) == [True, False]
    assert len(factory.names) == 2


def test_an_item_has_the_same_name_for_everybody_and_filters_do_not_share_them(make, factory, r):
    make(factory).add_many(ITEMS)
    mine, others = Recorded(), Recorded()
    BloomFilter.open("x", client=r, strategy=LockStrategy(mine)).add_many(ITEMS)
    BloomFilter("y", 5_000, 1e-9, client=r, strategy=LockStrategy(others)).add_many(ITEMS)
    assert set(mine.names) == set(factory.names)
    assert not set(others.names) & set(factory.names)
    make(factory).add_many(map(str, range(4_000)))
    assert 900 < len(set(factory.names)) <= 1024


def test_an_error_on_entering_is_raised_and_nothing_is_written(make, factory, r):
    made = make(factory)
    for error in (Boom("no quorum"), KeyboardInterrupt()):
        factory.fail_enter = error
        before = everything(r)
        with pytest.raises(type(error)) as caught:
            made.add("item")
        assert caught.value is error
        assert everything(r) == before
    factory.fail_enter = None
    assert made.add("item") is True


@pytest.mark.parametrize("where", ["factory", "enter"])
def test_a_batch_stops_at_the_first_lock_it_does_not_get_and_keeps_its_answers(
    make, factory, where
):
    asked = []

    def third_fails(name):
        asked.append(name)
        boom = Boom("the third") if len(asked) == 3 else None
        if boom and where == "factory":
            raise boom
        factory.fail_enter = boom
        return factory(name)

    with pytest.raises(BatchError, match="the third") as caught:
        make(third_fails).add_many(ITEMS)
    # The caller's own exception is the cause, and left as it is.
    assert isinstance(caught.value.__cause__, Boom)
    assert not vars(caught.value.__cause__)
    assert len(asked) == 3
    assert factory.events == ["in", "out"] * 2
    answered = [new for new in caught.value.results if new is not None]
    assert answered == [True] * len(answered)
    # What has no answer was not written.
    factory.fail_enter = None
    assert make(factory).add_many(ITEMS).count(True) == len(ITEMS) - len(answered)


def test_an_error_on_leaving_means_not_known(make, factory):
    made, other = make(factory), make(factory, on_unknown="new")
    factory.fail_exit = Boom("session lost")
    with pytest.raises(OutcomeUnknownError, match="session lost") as caught:
        made.add("item")
    assert caught.value.__cause__ is factory.fail_exit
    assert other.add("item") is True
    factory.fail_exit = None
    assert made.add("item") is False


class Swallowing(contextlib.suppress):
    """A context manager of both kinds that swallows all errors."""

    async def __aenter__(self):
        return self.__enter__()

    async def __aexit__(self, *error):
        return self.__exit__(*error)


def test_a_context_that_swallows_errors_does_not_swallow_the_servers(make, valkey):
    def judge(name, _number):
        return "before" if name == "SETBIT" else "pass"

    with Proxy(valkey, judge) as proxy:
        made = make(lambda _name: Swallowing(Exception), proxy.url)
        with pytest.raises(OutcomeUnknownError):
            made.add("item")


@pytest.mark.parametrize("wrong", [5, "zookeeper", threading.Lock(), contextlib.nullcontext()])
def test_a_factory_that_cannot_be_called_is_refused_at_once(wrong):
    with pytest.raises(ConfigurationError, match="factory must be") as caught:
        LockStrategy(wrong)
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("wrong", [None, "name", object(), contextlib.nullcontext])
def test_a_factory_that_gives_no_context_manager_is_told_so(make, r, wrong):
    before = everything(r)
    with pytest.raises(ConfigurationError, match="factory must") as caught:
        make(lambda _name: wrong).add("item")
    assert repr(wrong) in str(caught.value)
    assert "context manager" in str(caught.value)
    assert everything(r) == before


def test_one_that_works_keeps_the_other_out(r, valkey, tmp_path):
    """A lock file: the second is in its place only when the first has left."""
    half, go_on, order = threading.Event(), threading.Event(), []

    def judge(name, _number):
        if name == "SETBIT" and not half.is_set():
            half.set()
            go_on.wait()
        return "pass"

    class Told(FileLock):
        def __enter__(self):
            order.append("asks")
            return super().__enter__()

        def __exit__(self, *error):
            order.append("leaves")
            return super().__exit__(*error)

    def file_of(name):
        return Told(tmp_path / quote(name, safe=""))

    def add(url):
        with BloomFilter("x", 5_000, 1e-9, client=url, strategy=LockStrategy(file_of)) as made:
            answers.append(made.add("item"))

    answers = []
    with Proxy(valkey, judge) as proxy:
        first = threading.Thread(target=add, args=(proxy.url,))
        first.start()
        half.wait()
        second = threading.Thread(target=add, args=(valkey,))
        second.start()
        wait_until(lambda: len(order) == 2)
        assert (order, answers) == (["asks", "asks"], [])
        go_on.set()
        first.join()
        second.join()
    assert (order, answers) == (["asks", "asks", "leaves", "leaves"], [True, False])


def test_tasks_of_one_filter_have_one_winner(r, valkey):
    async def run():
        locks = defaultdict(asyncio.Lock)
        async with AsyncBloomFilter(
            "x", 5_000, client=valkey, strategy=LockStrategy(locks.__getitem__)
        ) as made:
            answers = await asyncio.gather(*(made.add(item) for item in ITEMS * 5))
        assert not any(lock.locked() for lock in locks.values())
        return sorted(item for item, new in zip(ITEMS * 5, answers, strict=True) if new)

    assert asyncio.run(run()) == sorted(ITEMS)
