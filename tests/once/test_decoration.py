"""`@once`: what a key may be, what a decorated function still is, and what is refused."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from uuid import UUID

import pytest

from bloomlock import AsyncBloomFilter, BloomFilter, MemoryBloomFilter, once
from bloomlock.errors import ConfigurationError


@dataclass
class Order:
    id: object
    amount: int = 1


@pytest.mark.parametrize(
    ("key", "item"),
    [
        ("order.id", "7"),
        ("order", "7"),
        (["order.id"], "7"),
        (("order.id", "more.deep.0"), "1:7,4:zero,"),
        ("rest.of", "it"),
        (lambda order, **_: order.id, "7"),
        (lambda order, **_: (order.id, b"\xff"), b"1:7,1:\xff,"),
    ],
)
def test_keys(done, key, item):
    @once(done, key=key)
    def charge(order, more=None, **rest):
        return True

    order = 7 if key == "order" else Order(7)
    assert charge(order, more={"deep": {"0": "zero"}}, of="it")
    assert item in done


@pytest.mark.parametrize(
    ("value", "item"),
    [("é", "é"), (b"\xff", b"\xff"), (-3, "-3"), (UUID(int=1), str(UUID(int=1))), ("", "")],
)
def test_values_of_keys(done, value, item):
    assert once(done, key="x")(lambda x: (x, "ran"))(value) == (value, "ran")
    assert item in done


@pytest.mark.parametrize("value", [None, True, 1.5, ["a"], Order("a")])
def test_values_that_are_no_keys(done, value):
    charge = once(done, key="order.id")(lambda order: pytest.fail(f"it ran for {order}"))
    with pytest.raises(TypeError, match="key of .*lambda.* must be a str, bytes, an int or a UUID"):
        charge(Order(value))


def test_arguments_without_a_key(done):
    @once(done, key=("order.id", "rest.of"))
    def charge(order, **rest):
        pytest.fail("it ran")

    for order, message in (
        ({"number": 3}, "'order.id' of .*charge.*: there is no 'id' in order"),
        (Order(1), "there is no 'of' in rest"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            charge(order)
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

    charged = once(done, key="order")(charge)
    for given in (done, lambda: done):
        with pytest.raises(ConfigurationError, match=r"ship\(\) must have a scope= or a filter of"):
            once(given, key="order")(ship)("a")
    shipped = once(done, key="order", scope="ship")(ship)
    assert [charged("a"), shipped("a")] == ["charged", "shipped"]
    assert [charged("a"), shipped("a")] == [None, None]


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


async def coroutine(order):
    pass


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (of_the_module, {"key": "nothing.id"}, "key 'nothing.id' must begin with a parameter of"),
        (of_the_module, {"key": ()}, "key must be a path such as"),
        (of_the_module, {"key": [3]}, "key must be a path such as"),
        (of_the_module, {"on_duplicate": "ignore"}, 'on_duplicate must be "return" or "raise"'),
        (of_the_module, {"on_busy": None}, 'on_busy must be "return" or "raise", not None'),
        (of_the_module, {"scope": 3}, "scope must be a str or None, not 3"),
        (of_the_module, {"ttl": 0}, "ttl must be a number of seconds"),
        (of_the_module, {"max_attempts": 0}, "max_attempts must be a whole number"),
        (coroutine, {}, "coroutine function, must be of the class AsyncBloomFilter, or a func"),
        (staticmethod(of_the_module), {}, "decorates a function, and stands below @staticmethod"),
        (classmethod(of_the_module), {}, "decorates a function, and stands below @staticmethod"),
        (Order, {}, "@once decorates a function, .*not"),
        (dict.fromkeys, {}, "key 'order' must begin with a parameter of dict.fromkeys"),
        ("charge", {}, "@once decorates a function, .*not 'charge'"),
    ],
)
def test_what_is_refused_at_decoration(done, function, options, message):
    with pytest.raises(ConfigurationError, match=message):
        once(done, **{"key": "order"} | options)(function)


def test_filters_that_are_refused_at_decoration(done, valkey):
    with BloomFilter("plain", 1000, client=valkey, strategy="pipeline") as plain:
        for given, message in (
            (plain, "for claims, not 'pipeline'"),
            (
                AsyncBloomFilter("done", 1000, client=valkey),
                r"for of_the_module\(\), a function, must be of the class BloomFilter",
            ),
            (MemoryBloomFilter(10), "must be of the class BloomFilter, or a function that"),
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
