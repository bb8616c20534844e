"""A core calls functions that wait, and takes back what it has begun when a step raises."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis.asyncio

from bloomlock.commands import call, encode_command
from bloomlock.effects import Call, Pause
from bloomlock.runtime._async.driver import AsyncDriver
from bloomlock.runtime._sync.driver import Driver


def run_call(function, *args):
    return (yield Call(function, args))


def set_while(step, begun=None):
    yield from call("key", encode_command("SET", "key", "begun"))
    if begun is not None:
        begun.set()
    try:
        yield step
    except BaseException:
        yield from call("key", encode_command("DEL", "key"))
        raise


@pytest.fixture
def run(r, valkey, request):
    def run_in_task(core):
        async def main():
            async with redis.asyncio.Redis.from_url(valkey) as client:
                return await AsyncDriver.of(client).run(core)

        return asyncio.run(main())

    return Driver.of(r).run if request.param == "threads" else run_in_task


both = pytest.mark.parametrize("run", ["threads", "asyncio"], indirect=True)


@both
def test_a_call_is_answered_in_the_core_by_what_the_function_returns_or_raises(run, r):
    assert run(run_call(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        run(set_while(Call(divmod, (7, 0))))
    assert not r.exists("key")
    # The loop goes on in the meantime.
    is_here = run(run_call(threading.current_thread)) is threading.main_thread()
    assert is_here is (run.__name__ != "run_in_task")


def test_a_core_takes_back_what_it_began_when_it_is_interrupted(r):
    def interrupt():
        assert r.get("key") == b"begun"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Driver.of(r).run(set_while(Call(interrupt)))
    assert not r.exists("key")


def test_a_core_takes_back_what_it_began_when_its_task_is_cancelled(valkey, r):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            begun = asyncio.Event()
            task = asyncio.create_task(AsyncDriver.of(client).run(set_while(Pause(600), begun)))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert not r.exists("key")
