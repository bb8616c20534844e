"""`@once`: which calls run, what the others get, and what a decorated function still is."""

from __future__ import annotations

import asyncio
import inspect
import threading
from dataclasses import dataclass
from uuid import UUID

import pytest
from servers import wait_until

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ClaimLostError,
    ConfigurationError,
    Duplicate,
    FailedTooOften,
    InProgress,
    MemoryBloomFilter,
    OnceError,
    once,
)
from bloomlock.keys import ClaimKeys, FilterKeys

KEYS = ClaimKeys.of(FilterKeys("done").bits(0))
LONG = 600.0


@dataclass
class Order:
    id: object
    amount: int = 1


def let_expire(r):
    for item in r.zrange(KEYS.claims, 0, -1):
        r.zadd(KEYS.claims, {item: 1})


def test_the_body_runs_once_for_each_key(done, valkey):
    ran = []

    def charge(order, note="none"):
        ran.append((order.id, note))
        return f"charged {order.amount}"

    first = once(done, key="order.id")(charge)
    with BloomFilter("done", 1000, client=valkey) as other:
        second = once(other, key="order.id")(charge)
        assert first(Order("a", 5)) == "charged 5"
        assert first(Order("a", 5)) is None
        assert second(order=Order("a"), note="later") is None
        assert second(Order("b"), note="later") == "charged 1"
    assert ran == [("a", "none"), ("b", "later")]
    assert "a" in done, "a single key is the item"


@pytest.mark.parametrize(
    ("key", "item"),
    [
        ("order.id", "7"),
        ("order", "7"),
        (["order.id"], "7"),
        (("order.id", "more.deep.0"), "1:7,4:zero,"),
        ("currency", "EUR"),
        ("rest", "of it"),
        (lambda order, **_: order.id, "7"),
        (lambda order, **_: (order.id, b"\xff"), b"1:7,1:\xff,"),
    ],
)
def test_keys(done, key, item):
    @once(done, key=key)
    def charge(order, more=None, currency="EUR", **rest):
        return True

    order = 7 if key == "order" else Order(7)
    assert charge(order, more={"deep": {"0": "zero"}}, rest="of it")
    assert item in done


@pytest.mark.parametrize(
    ("value", "item"),
    [("é", "é"), (b"\xff", b"\xff"), (-3, "-3"), (UUID(int=1), str(UUID(int=1))), ("", "")],
)
def test_values_of_keys(done, value, item):
    assert once(done, key="x")(lambda x: (x, "ran"))(value) == (value, "ran")
    assert item in done


@pytest.mark.parametrize("value", [None, True, 1.5, ["a"], Order("a")])
def test_values_that_are_no_keys(done, r, value):
    charge = once(done, key="order.id")(lambda order: pytest.fail(f"it ran for {order}"))
    with pytest.raises(TypeError, match="key of .*lambda.* must be a str, bytes, an int or a UUID"):
        charge(Order(value))
    assert not r.exists(KEYS.open)


def test_arguments_without_a_key(done):
    @once(done, key=("order.id", "rest"))
    def charge(order, **rest):
        pytest.fail("it ran")

    for order, kwargs, message in (
        ({"number": 3}, {}, "'order.id' of .*charge.*: there is no 'id' in order"),
        (Order(1), {}, "there is no 'rest' in the arguments"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            charge(order, **kwargs)
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        charge()
    with pytest.raises(TypeError, match="too many positional"):
        charge(1, 2)


def test_methods(done):
    class Shop:
        def __init__(self, name):
            self.name = name

        @once(done, key=("self.name", "order"), scope="method")
        def charge(self, order):
            return self.name, order

        @staticmethod
        @once(done, key="order", scope="static")
        def ship(order):
            return order

        @classmethod
        @once(done, key="order", scope="class")
        def close(cls, order):
            return cls, order

    one, two = Shop("one"), Shop("two")
    assert [one.charge("a"), two.charge("a"), one.charge("a")] == [("one", "a"), ("two", "a"), None]
    assert [one.ship("a"), Shop.ship("a")] == ["a", None]
    assert [Shop.close("a"), two.close("a")] == [(Shop, "a"), None]


def test_functions_that_share_a_filter_need_scopes(done):
    def charge(order):
        return "charged"

    def ship(order):
        return "shipped"

    once(done, key="order")(charge)
    with pytest.raises(ConfigurationError, match=r"ship\(\) must have a scope= or a filter of its"):
        once(done, key="order")(ship)
    once(done, key="order")(charge)
    with pytest.raises(ConfigurationError, match="must have a scope="):
        once(lambda: done, key="order")(ship)("a")
    shipped = once(done, key="order", scope="ship")(ship)
    assert (once(done, key="order")(charge)("a"), shipped("a")) == ("charged", "shipped")
    assert (once(done, key="order")(charge)("a"), shipped("a")) == (None, None)


def test_the_filter_may_be_made_at_the_first_call(done):
    made = []

    @once(lambda: made.append(1) or done, key="order")
    def charge(order):
        return "charged"

    assert not made
    assert charge("a") == "charged"
    assert charge("a") is None


@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_gives_the_key_back_and_goes_on(done, error):
    errors = [error]

    @once(done, key="order")
    def charge(order):
        if errors:
            raise errors.pop()
        return "charged"

    with pytest.raises(type(error)) as found:
        charge("a")
    assert found.value is error
    assert "a" not in done
    assert charge("a") == "charged"


def test_a_key_that_failed_too_often(done):
    broken = True

    @once(done, key="order", max_attempts=2)
    def charge(order):
        if broken:
            raise ValueError("why")
        return "charged"

    for _ in range(2):
        with pytest.raises(ValueError, match="why"):
            charge("a")
    with pytest.raises(FailedTooOften, match="with the key 'a' failed 2 times") as found:
        charge("a")
    assert found.value.attempts == 2
    broken = False
    done.retry_failed(["a"])
    assert charge("a") == "charged"
    assert charge("a") is None


def test_who_comes_second_while_it_runs(done):
    inner = []

    @once(done, key="order", ttl=LONG)
    def charge(order, depth=0):
        if not depth:
            with pytest.raises(InProgress, match="runs now; its lease ends in") as found:
                charge(order, 1)
            inner.append(found.value.remaining)
        return "charged"

    assert charge("a") == "charged"
    assert 0 < inner[0] <= LONG


def test_none_for_who_comes_second_while_it_runs(done):
    @once(done, key="order", on_busy="return")
    def charge(order, depth=0):
        return ("charged", charge(order, 1)) if not depth else pytest.fail("it ran")

    assert charge("a") == ("charged", None)


def test_duplicates_raise_on_request(done):
    @once(done, key="order", on_duplicate="raise")
    def charge(order):
        return None

    charge("a")
    with pytest.raises(Duplicate, match=r"charge\(\) with the key 'a' was done before"):
        charge("a")
    assert issubclass(Duplicate, OnceError)


@pytest.mark.parametrize("fails", [False, True])
def test_who_waits_gets_the_outcome(done, r, fails, monkeypatch):
    # It would wait for ever if it were not woken.
    monkeypatch.setattr("bloomlock.filters.claims.SLICE_MS", LONG * 1000)
    begun, go, got = threading.Event(), threading.Event(), []

    @once(done, key="order", wait=LONG)
    def charge(order, is_first=False):
        if is_first:
            begun.set()
            assert go.wait(LONG)
            if fails:
                raise ValueError("why")
        return "charged"

    def first():
        try:
            got.append(charge("a", is_first=True))
        except ValueError:
            got.append("failed")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert begun.wait(LONG)
    threads.append(threading.Thread(target=lambda: got.append(charge("a"))))
    threads[1].start()
    wait_until(lambda: r.hlen(KEYS.waiting))
    go.set()
    for thread in threads:
        thread.join()
    assert sorted(got, key=str) == (["charged", "failed"] if fails else [None, "charged"])


def test_the_lease_is_renewed_while_it_runs(done, r, valkey):
    with BloomFilter("done", 1000, client=valkey) as other:

        @once(done, key="order", ttl=0.3)
        def charge(order):
            ends = r.zrange(KEYS.claims, 0, 0, withscores=True)[0][1]
            wait_until(lambda: r.zrange(KEYS.claims, 0, 0, withscores=True)[0][1] > ends + 900)
            return other.claim(order).state.name

        assert charge("a") in ("BUSY", "NEW")  # NEW: the machine stood still for a lease


def test_a_commit_that_is_refused_is_no_success(done, r, valkey):
    with BloomFilter("done", 1000, client=valkey) as other:

        @once(done, key="order", ttl=LONG)
        def charge(order):
            let_expire(r)
            assert other.claim(order).state.name == "NEW"
            return "charged"

        with pytest.raises(ClaimLostError, match="another worker claimed"):
            charge("a")


def test_its_own_lost_reply_does_not_block_a_call(r, valkey, proxy):
    with BloomFilter("done", 1000, client=proxy.url) as made:
        ran = []

        @once(made, key="order")
        def work(order):
            ran.append(order)
            proxy.deafen()

        work("warm")
        proxy.deafen()
        work("a")
        assert proxy.cuts["after"] >= 2
        assert ran == ["warm", "a"]
        work("a")
        assert ran == ["warm", "a"]


def done_for(order):
    return order


def test_round_trips(r, valkey, proxy):
    with BloomFilter("done", 100_000, client=proxy.url) as made:
        plain = once(made, key="order", scope="plain")(done_for)
        marked = once(made, key="order", fingerprint="order", scope="marked")(done_for)
        for function, new, again in ((plain, 2, 1), (marked, 3, 2)):
            function("warm")
            function("warm")
            for trips in (new, again):
                packets = proxy.packets
                function("a")
                assert proxy.packets - packets == trips


def test_a_coroutine_function(r, valkey):
    async def main():
        async with AsyncBloomFilter("done", 1000, client=valkey) as done:
            ran = []

            @once(done, key="order.id", wait=LONG)
            async def charge(order):
                ran.append(order.id)
                await asyncio.sleep(0.01)
                return "charged"

            assert inspect.iscoroutinefunction(charge)
            orders = [Order(number % 5) for number in range(20)]
            answers = await asyncio.gather(*map(charge, orders))
            assert sorted(answers, key=str) == [None] * 15 + ["charged"] * 5
            assert sorted(ran) == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_a_call_that_is_cancelled(r, valkey):
    async def main():
        async with AsyncBloomFilter("done", 1000, client=valkey) as done:
            begun, left = asyncio.Event(), ["sleep"]

            @once(done, key="order", on_duplicate="raise")
            async def charge(order):
                begun.set()
                while left:
                    left.pop()
                    await asyncio.sleep(LONG)
                return "charged"

            task = asyncio.create_task(charge("a"))
            await begun.wait()
            with pytest.raises(InProgress):
                await charge("a")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await charge("a") == "charged"
            with pytest.raises(Duplicate):
                await charge("a")

    asyncio.run(main())


def of_the_module(order: str, *, note: str = "") -> int:
    """Do the work."""
    return 3


def test_a_decorated_function_is_as_before(done):
    decorated = once(done, key="order")(of_the_module)
    assert inspect.signature(decorated) == inspect.signature(of_the_module)
    assert (decorated.__name__, decorated.__doc__) == ("of_the_module", "Do the work.")
    assert decorated.__qualname__ == "of_the_module", "pickle finds it by its name"


def generator(order):
    yield order


async def async_generator(order):
    yield order


async def coroutine(order):
    pass


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (of_the_module, {"key": "nothing.id"}, "key 'nothing.id' must begin with a parameter of"),
        (of_the_module, {"key": "order..id"}, "key must be a path such as"),
        (of_the_module, {"key": ""}, "key must be a path such as"),
        (of_the_module, {"key": ()}, "key must be a path such as"),
        (of_the_module, {"key": 3}, 'key must be a path such as "order.id", several of them, or'),
        (of_the_module, {"key": [3]}, "key must be a path such as"),
        (of_the_module, {"fingerprint": "nothing"}, "fingerprint 'nothing' must begin with a para"),
        (
            of_the_module,
            {"on_duplicate": "ignore"},
            'on_duplicate must be "return" or "raise"',
        ),
        (of_the_module, {"on_busy": None}, 'on_busy must be "return" or "raise", not None'),
        (of_the_module, {"scope": 3}, "scope must be a str or None, not 3"),
        (of_the_module, {"ttl": 0}, "ttl must be a number of seconds"),
        (of_the_module, {"wait": -1}, "wait must be a number of seconds"),
        (of_the_module, {"max_attempts": 0}, "max_attempts must be a whole number"),
        (of_the_module, {"renew": 3}, "renew must be True or False"),
        (generator, {}, r"@once decorates no generator: generator\(\) returns before its work"),
        (async_generator, {}, "@once decorates no generator"),
        (coroutine, {}, "coroutine function, must be of the class AsyncBloomFilter, or a func"),
        (staticmethod(of_the_module), {}, "@once must stand below @staticmethod"),
        (classmethod(of_the_module), {}, "@once must stand below @classmethod"),
        (Order, {}, "@once decorates a function, not"),
        (dict, {}, "@once decorates a function, not"),
        (dict.fromkeys, {}, "key 'order' must begin with a parameter of dict.fromkeys"),
        ("".maketrans, {}, "key cannot be found: "),
        ("charge", {}, "@once decorates a function, not 'charge'"),
    ],
)
def test_what_is_refused_at_decoration(done, r, function, options, message):
    with pytest.raises(ConfigurationError, match=message):
        once(done, **{"key": "order"} | options)(function)
    assert not r.exists(KEYS.open)


def test_filters_that_are_refused_at_decoration(done, valkey):
    with BloomFilter("plain", 1000, client=valkey, strategy="pipeline") as plain:
        other = AsyncBloomFilter("done", 1000, client=valkey)
        for given, message in (
            (plain, "for claims, not 'pipeline'"),
            (
                other,
                r"for of_the_module\(\), a function, must be of the class BloomFilter",
            ),
            (MemoryBloomFilter(10), "must be of the class BloomFilter, or a function that"),
            ("done", "must be of the class BloomFilter, or a function that"),
            (None, "must be of the class BloomFilter, or a function that"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                once(given, key="order")(of_the_module)
    with pytest.raises(ConfigurationError, match="must be of the class BloomFilter"):
        once(lambda: 3, key="order")(of_the_module)("a")


def test_work_that_is_not_done_when_the_function_returns(done):
    for made in (coroutine, generator):
        hidden = once(done, key="order", scope=str(made))(lambda order, made=made: made(order))
        with pytest.raises(ConfigurationError, match="must do its work before it returns"):
            hidden("a")
    assert not done.count()
