"""`fingerprint=`: the same key with other arguments is refused."""

from __future__ import annotations

import asyncio

import pytest

from bloomlock import AsyncBloomFilter, once
from bloomlock.errors import FingerprintMismatchError, InProgress


def test_the_same_key_with_other_arguments(done):
    @once(done, key="order", fingerprint="amount")
    def charge(order, amount, depth=0):
        if depth:
            pytest.fail("it ran")
        with pytest.raises(InProgress):
            charge(order, amount, 1)
        with pytest.raises(FingerprintMismatchError, match="is worked on with other arguments"):
            charge(order, amount + 1, 1)
        return f"charged {amount}"

    assert charge("a", 5) == "charged 5"
    assert charge("a", 5, depth=3) is None, "that is no part of it"
    with pytest.raises(
        FingerprintMismatchError, match=r"the key 'a' of .*charge\(\) was done with"
    ):
        charge("a", 6)
    assert charge("b", 6) == "charged 6"


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
