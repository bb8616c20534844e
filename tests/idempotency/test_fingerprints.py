"""The same key with other arguments: what `fingerprint=` notices, and what not."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal

import pytest

from bloomlock import AsyncBloomFilter, FingerprintMismatchError, InProgress, once


def charge(order, amount, depth=0):
    return f"charged {amount}"


@pytest.fixture
def charged(done):
    return once(done, key="order", fingerprint="amount")(charge)


def test_the_same_key_with_other_arguments(charged):
    assert charged("a", 5) == "charged 5"
    assert charged("a", 5) is None
    assert charged("a", 5, depth=3) is None, "that is no part of it"
    with pytest.raises(FingerprintMismatchError, match=r"the key 'a' of charge\(\) was done with"):
        charged("a", 6)
    assert charged("b", 6) == "charged 6"


def test_each_kind_of_value_is_its_own(done):
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    values = [1, 1.0, "1", True, None, b"1", [1], {"a": 1}, Decimal(1), moment, moment.date()]
    function = once(done, key="order", fingerprint=["amount"])(charge)
    for number, value in enumerate(values):
        assert function(number, value)
        for other in values:
            if type(other) is type(value):
                assert function(number, other) is None
            else:
                with pytest.raises(FingerprintMismatchError):
                    function(number, other)


def test_the_order_of_a_mapping_does_not_count(charged):
    assert charged("a", {"x": 1, "y": 2})
    assert charged("a", {"y": 2, "x": 1}) is None


def test_a_function_as_fingerprint(done):
    function = once(done, key="order", fingerprint=lambda *given: (given[1] % 2,))(charge)
    assert function("a", 2)
    assert function("a", 4) is None
    with pytest.raises(FingerprintMismatchError):
        function("a", 3)


def test_while_the_first_call_runs(done):
    @once(done, key="order", fingerprint="amount")
    def work(order, amount, depth=0):
        if depth:
            pytest.fail("it ran")
        with pytest.raises(InProgress):
            work(order, amount, 1)
        with pytest.raises(FingerprintMismatchError, match="is worked on with other arguments"):
            work(order, amount + 1, 1)
        return "worked"

    assert work("a", 1) == "worked"


def test_a_call_that_failed_binds_no_arguments(done):
    errors = [ValueError("why")]

    @once(done, key="order", fingerprint="amount")
    def work(order, amount):
        if errors:
            raise errors.pop()
        return amount

    with pytest.raises(ValueError, match="why"):
        work("a", 1)
    assert work("a", 2) == 2
    with pytest.raises(FingerprintMismatchError):
        work("a", 1)


def test_a_key_without_a_fingerprint(done, charged):
    """It is refused, and the message says what it may be."""
    done.add("a")
    with pytest.raises(FingerprintMismatchError, match="or added without a fingerprint"):
        charged("a", 5)


def test_another_worker_without_a_fingerprint(done, charged):
    with done.claim("a", payload="what it has"), pytest.raises(InProgress):
        charged("a", 5)


def test_a_key_is_never_seen_without_its_fingerprint(r, valkey, proxy, done):
    """The mark is there first, so a call never meets a key that is done without it."""
    seen = []

    def judge(name, _number):
        seen.append(done.exists("a"))
        return "pass"

    with type(done)("done", 1000, client=proxy.url) as made:
        function = once(made, key="order", fingerprint="amount")(charge)
        function("warm", 1)
        proxy.judge = judge
        function("a", 1)
    assert len(seen) == 3, "claim, mark, commit"
    assert not any(seen), "the commit comes last"


def test_values_without_a_form(charged):
    with pytest.raises(TypeError, match="fingerprint of charge.. has a value without a form in JS"):
        charged("a", object())
    with pytest.raises(TypeError, match="fingerprint of charge.. has a value without a form in JS"):
        charged("a", {1: 2, "a": 3})


def test_asyncio(r, valkey):
    async def main():
        async with AsyncBloomFilter("done", 1000, client=valkey) as done:

            @once(done, key="order", fingerprint="amount")
            async def work(order, amount):
                return amount

            assert [await work("a", 5), await work("a", 5)] == [5, None]
            with pytest.raises(FingerprintMismatchError):
                await work("a", 6)

    asyncio.run(main())
