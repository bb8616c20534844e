"""`@once`: which calls run, and what the others get."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading

import pytest
from claim_tools import let_expire, script_calls
from servers import wait_until

from bloomlock import AsyncBloomFilter, BloomFilter, once
from bloomlock.errors import ClaimLostError, Duplicate, FailedTooOften, InProgress, OnceError

LONG = 600.0


def test_the_body_runs_once_for_each_key(done, valkey):
    ran = []

    def charge(order, note="none"):
        ran.append((order, note))
        return f"charged {order}"

    first = once(done, key="order")(charge)
    with BloomFilter("done", 1000, client=valkey) as other:
        second = once(lambda: other, key="order", on_duplicate="raise")(charge)
        assert first("a") == "charged a"
        assert first("a") is None
        with pytest.raises(Duplicate, match=r"charge\(\) with the key 'a' was done before"):
            second(order="a", note="later")
        assert second("b", note="later") == "charged b"
    assert ran == [("a", "none"), ("b", "later")]
    assert "a" in done, "a single key is the item"
    assert issubclass(Duplicate, OnceError)


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
    errors = [ValueError("why")] * 2

    @once(done, key="order", max_attempts=2)
    def charge(order):
        if errors:
            raise errors.pop()
        return "charged"

    for _ in range(2):
        with pytest.raises(ValueError, match="why"):
            charge("a")
    with pytest.raises(FailedTooOften, match="with the key 'a' failed 2 times") as found:
        charge("a")
    assert found.value.attempts == 2
    done.retry_failed(["a"])
    assert [charge("a"), charge("a")] == ["charged", None]


def test_who_comes_second_while_it_runs(done):
    left = []

    @once(done, key="order", ttl=LONG)
    def charge(order, depth=0):
        assert not depth, "it ran"
        with pytest.raises(InProgress, match="runs now; its lease ends in") as found:
            charge(order, 1)
        left.append(found.value.remaining)
        return "charged"

    assert charge("a") == "charged"
    assert 0 < left[0] <= LONG

    @once(done, key="order", scope="returns", on_busy="return")
    def returns(order, depth=0):
        assert not depth, "it ran"
        return ("charged", returns(order, 1))

    assert returns("a") == ("charged", None)


def test_who_waits_runs_if_the_first_call_fails(done, r):
    begun, go, got = threading.Event(), threading.Event(), []

    @once(done, key="order", wait=LONG)
    def charge(order, is_first=False):
        if is_first:
            begun.set()
            assert go.wait(LONG)
            raise ValueError("why")
        got.append("charged")

    def first():
        with pytest.raises(ValueError, match="why"):
            charge("a", is_first=True)
        got.append("failed")

    threads = [threading.Thread(target=first), threading.Thread(target=charge, args=["a"])]
    threads[0].start()
    assert begun.wait(LONG)
    threads[1].start()
    before = script_calls(r)
    wait_until(lambda: script_calls(r) > before + 1)
    go.set()
    for thread in threads:
        thread.join()
    assert sorted(got) == ["charged", "failed"]


def test_the_lease_is_renewed_while_it_runs(clock):
    with BloomFilter("done", 1000, client=clock.url) as done:

        @once(done, key="order", ttl=30)
        def charge(order, depth=0):
            assert not depth, "it ran"
            for _ in range(3):
                # The worker may know of a renewal a moment later, but before its lease is over.
                clock.go_on(11)
                wait_until(lambda: done.open_claims()[0].remaining > 29)
            with pytest.raises(InProgress):
                charge(order, 1)
            return "charged"

        assert charge("a") == "charged"


def test_a_process_that_dies_holds_a_key_one_lease(clock):
    def charge_of(done):
        @once(done, key="order", ttl=30)
        def charge(order, die=False):
            if die:
                os.kill(os.getpid(), signal.SIGKILL)
            return "charged"

        return charge

    if not (child := os.fork()):
        charge_of(BloomFilter("done", 1000, client=clock.url))("a", die=True)
    os.waitpid(child, 0)
    with BloomFilter("done", 1000, client=clock.url) as done:
        charge = charge_of(done)
        with pytest.raises(InProgress):
            charge("a")
        clock.go_on(31)
        assert [charge("a"), charge("a")] == ["charged", None]


def test_a_commit_that_is_refused_is_no_success(done, r, valkey):
    with BloomFilter("done", 1000, client=valkey) as other:

        @once(done, key="order", ttl=LONG)
        def charge(order):
            let_expire(r)
            assert other.claim(order)
            return "charged"

        with pytest.raises(ClaimLostError, match="another worker claimed"):
            charge("a")


def test_a_coroutine_function(r, valkey):
    """Twenty calls of five keys: the second to fourth of each wait for the first."""

    async def main():
        async with AsyncBloomFilter("done", 1000, client=valkey) as done:
            ran = []

            @once(done, key="order", wait=LONG)
            async def charge(order):
                ran.append(order)
                await asyncio.sleep(0)
                return "charged"

            assert inspect.iscoroutinefunction(charge)
            answers = await asyncio.gather(*(charge(number % 5) for number in range(20)))
            assert sorted(answers, key=str) == [None] * 15 + ["charged"] * 5
            assert sorted(ran) == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_a_call_that_is_cancelled(r, valkey):
    async def main():
        async with AsyncBloomFilter("done", 1000, client=valkey) as done:
            begun, left = asyncio.Event(), ["stay"]

            @once(done, key="order", on_duplicate="raise")
            async def charge(order):
                begun.set()
                while left:
                    left.pop()
                    await asyncio.Event().wait()
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
