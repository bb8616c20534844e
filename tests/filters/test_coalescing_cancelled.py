"""Whoever is cancelled, wherever it is: nobody else notices, and nothing hangs."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter

import pytest
import redis
import redis.asyncio
from lock_tools import LONG, CancelledAt, happened, in_use, other_tasks
from proxy import Proxy

from bloomlock import AsyncBloomFilter, BloomFilter
from bloomlock.errors import BloomlockError, OutcomeUnknownError
from bloomlock.runtime._async.driver import AsyncDriver
from bloomlock.runtime._async.exchange import MOST_AT_ONCE

MOST = 100


class Gate(Proxy):
    """A proxy whose connections stop at an update or a question while it is shut.

    Attributes:
        passes: How many updates and questions go through before it is shut.
        reached: Set when the first has to wait.
        opened: Lets those go on that wait.
    """

    def __init__(self, url):
        super().__init__(url, self._wait)
        self.passes = math.inf
        self.reached, self.opened = threading.Event(), threading.Event()

    def _wait(self, name, _number):
        if name in {"BITFIELD", "BITFIELD_RO"}:
            with self.lock:
                self.passes -= 1
                is_shut = self.passes < 0
            if is_shut:
                self.reached.set()
                self.opened.wait(LONG)
        return "pass"


@pytest.fixture
def gate(r, valkey):
    with Gate(valkey) as made:
        yield made
        made.opened.set()


def filter_at(client, **options):
    return AsyncBloomFilter("x", 5000, 1e-9, client=client, **options)


async def settled(client, made):
    """Nothing of any call is left: no connection, no task, nobody who waits."""
    # What a slow server has not answered goes on behind.
    await happened(lambda: not (made._calls()._busy or in_use(client) or other_tasks()))
    assert not made._calls()._waiting
    assert not made._calls()._under_way
    assert AsyncDriver.of(client)._bounds[""]._value == MOST_AT_ONCE


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("who", [0, 2])
def test_a_caller_cancelled_anywhere_harms_no_other(r, valkey, who, late):
    """Six callers; the first one's call goes alone, the others' together behind it."""
    items = ["a", "b", "c", "a", "b", "b"]

    async def one(number):
        r.flushall()
        async with redis.asyncio.Redis.from_url(valkey) as client:
            made = await filter_at(client)
            calls = [made.add(item) for item in items]
            calls[who] = stopped = CancelledAt(calls[who], number, late=late)

            async def wait(call):
                return await call

            tasks = [asyncio.create_task(wait(call)) for call in calls]
            await asyncio.wait(tasks, timeout=LONG)
            gone = tasks[who].cancelled()
            answers = [None if task.cancelled() else task.result() for task in tasks]
            assert answers.count(None) == gone
            won = Counter(item for item, new in zip(items, answers, strict=True) if new)
            for item in set(items):
                # The cancelled call may have been the one that was first.
                assert won[item] == 1 or (gone and item == items[who] and won[item] == 0)
            offered = {
                item for item, answer in zip(items, answers, strict=True) if answer is not None
            }
            assert all(await made.exists_many(sorted(offered)))
            await settled(client, made)
            return stopped.reached

    async def main():
        for number in range(MOST):
            if not await one(number):
                return number
        raise AssertionError

    assert asyncio.run(main()) >= 1


@pytest.mark.parametrize("begun", [False, True], ids=["call under way", "batch just begun"])
def test_what_was_not_sent_yet_never_is(r, gate, begun):
    async def run():
        async with redis.asyncio.Redis.from_url(gate.url) as client:
            made = await filter_at(client)

            def cancel():
                for task in waiting[::2]:
                    task.cancel()

            async def go_first():
                assert await made.add("first")
                if begun:
                    # The next batch has a task, which has not sent anything.
                    cancel()

            gate.passes = math.inf if begun else 0
            first = asyncio.create_task(go_first())
            waiting = [asyncio.create_task(made.add(str(n))) for n in range(10)]
            if not begun:
                await happened(gate.reached.is_set)
                cancel()
                await asyncio.wait(waiting[::2])
                gate.passes = math.inf
                gate.opened.set()
            assert await asyncio.gather(*waiting[1::2]) == [True] * 5
            await first
            assert all(task.cancelled() for task in waiting[::2])
            assert await made.exists_many(map(str, range(10))) == [False, True] * 5
            await settled(client, made)

    asyncio.run(run())


def test_a_batch_under_way_goes_on_for_those_who_stay(r, gate):
    async def run():
        async with redis.asyncio.Redis.from_url(gate.url) as client:
            made = await filter_at(client)
            gate.passes = 1
            first = asyncio.create_task(made.add("first"))
            calls = [asyncio.create_task(made.add(str(n // 2))) for n in range(10)]
            await first
            await happened(gate.reached.is_set)
            for task in calls[::2]:
                task.cancel()
            await asyncio.wait(calls[::2])
            later = [asyncio.create_task(made.exists(str(n))) for n in range(6)]
            gate.opened.set()
            # The cancelled ones were first.
            assert await asyncio.gather(*calls[1::2]) == [False] * 5
            assert await asyncio.gather(*later) == [True] * 5 + [False]
            await settled(client, made)

    asyncio.run(run())


def test_a_batch_nobody_waits_for_any_more_is_given_up(r, gate):
    """A server that hangs holds up the next calls only as long as anybody wants its answer."""

    async def run():
        async with redis.asyncio.Redis.from_url(gate.url) as client:
            made = await filter_at(client)
            gate.passes = 1
            first = asyncio.create_task(made.add("first"))
            calls = [asyncio.create_task(made.add(str(n))) for n in range(10)]
            await first
            await happened(gate.reached.is_set)
            gate.passes = math.inf
            later = [asyncio.create_task(made.add(str(n))) for n in range(10, 20)]
            await asyncio.sleep(0)
            for task in calls:
                task.cancel()
            assert await asyncio.wait_for(asyncio.gather(*later), LONG) == [True] * 10
            gate.opened.set()
            await settled(client, made)

    asyncio.run(run())


@pytest.mark.parametrize("owns", [True, False], ids=["by url", "given client"])
def test_closing_tells_those_who_wait(r, gate, owns):
    async def run():
        client = redis.asyncio.Redis.from_url(gate.url)
        made = await filter_at(gate.url if owns else client)
        gate.passes = 0
        first = asyncio.create_task(made.add("first"))
        await happened(gate.reached.is_set)
        waiting = [asyncio.create_task(made.add(str(n))) for n in range(10)]
        await asyncio.sleep(0)
        await made.close()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in errors} == {BloomlockError}
        assert len(set(map(id, errors))) == 10
        assert all("closed" in str(error) for error in errors)
        gate.opened.set()
        (answer,) = await asyncio.gather(first, return_exceptions=True)
        assert isinstance(answer, OutcomeUnknownError) if owns else answer is True
        assert not any(BloomFilter.open("x", client=r).exists_many(map(str, range(10))))
        # As before, a filter that was closed can be used again.
        assert await asyncio.gather(made.add("a"), made.add("a")) == [True, False]
        await made.close()
        await client.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("when", ["not begun", "asking", "adding"])
@pytest.mark.parametrize("on_unknown", ["raise", "new"])
def test_whoever_cancels_all_tasks_but_the_callers(r, gate, when, on_unknown):
    """Our own task among them: what was sent is unknown, what was not is sent by the next."""

    async def run():
        async with redis.asyncio.Redis.from_url(gate.url) as client:
            made = await filter_at(client, on_unknown=on_unknown)
            ours = {asyncio.current_task()}

            def cancel_all():
                for task in asyncio.all_tasks() - ours:
                    task.cancel()

            async def go_first():
                assert await made.add("first")
                if when == "not begun":
                    cancel_all()

            gate.passes = 1
            asked = ["first", "0", "none"] if when == "asking" else ["0"]
            first = asyncio.create_task(go_first())
            calls = [asyncio.create_task(made.add(str(n))) for n in range(5)]
            asks = [asyncio.create_task(made.exists(item)) for item in asked]
            ours |= {first, *calls, *asks}
            await happened(gate.reached.is_set)
            if when != "not begun":
                cancel_all()
            gate.opened.set()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            if when == "adding" and on_unknown == "raise":
                assert {type(answer) for answer in answers} == {OutcomeUnknownError}
                assert len(set(map(id, answers))) == 5
            else:
                assert answers == [True] * 5
            assert await asyncio.gather(*asks) == [item != "none" for item in asked]
            await first
            await settled(client, made)

    asyncio.run(run())


def test_with_locks_a_cancelled_caller_leaves_none_behind(r, valkey):
    """It would be held against everybody for the rest of its lease."""

    async def run():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            made = await filter_at(client, strategy="lock")
            for number in range(30):
                task = asyncio.create_task(made.add(str(number)))
                for _ in range(number):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                await settled(client, made)
                assert not r.keys("*:lock:[0-9]*")
                # Not before our task has begun, and to its end once it has.
                assert await made.exists(str(number)) is (number > 2)

    asyncio.run(run())
