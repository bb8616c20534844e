"""Nothing that a callback does stops the renewals: not its own lock's, not those of other locks."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
import redis.asyncio
from lock_tools import LONG, happened
from servers import wait_until

from bloomlock import AsyncLock, Lock, LockEvent
from bloomlock.locks import watchdog

TTL = LONG
ERRORS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, ValueError]
EACH_ERROR = pytest.mark.parametrize("error", ERRORS)


pytestmark = pytest.mark.usefixtures("often")


class Renewed:
    """An observer that counts renewals."""

    def __init__(self):
        self.count = 0

    def __call__(self, event):
        self.count += event.kind == "renewed"


def raiser(error, kinds=("renewed", "lost")):
    """Return a callback that raises once it is called for one of some events, or with a lock."""

    def callback(what):
        if not isinstance(what, LockEvent) or what.kind in kinds:
            raise error

    return callback


class Blocked:
    """A callback that blocks on losses and renewals until it is let go."""

    def __init__(self):
        self.called, self.over = threading.Event(), threading.Event()

    def __call__(self, what):
        if not isinstance(what, LockEvent) or what.kind in ("renewed", "lost"):
            self.called.set()
            self.over.wait(LONG)


def is_renewed_on(seen, times=3):
    """Return a condition: that there were some more renewals from now on."""
    before = seen.count
    return lambda: seen.count >= before + times


@EACH_ERROR
@pytest.mark.parametrize("which", ["observer", "on_lost"])
def test_what_a_callback_raises_stops_no_renewal(r, which, error, caplog):
    seen = Renewed()
    # The one that raises is asked for in the same request as the other one.
    bad = Lock("bad", client=r, ttl=TTL, **{which: raiser(error)})
    with Lock("good", client=r, ttl=TTL, observer=seen) as good:
        bad.acquire()
        wait_until(is_renewed_on(seen))
        bad.check()
        r.delete(bad.key)
        assert bad.lost.wait(LONG)
        wait_until(lambda: f"{which} of lock 'bad' raised" in caplog.text)
        wait_until(is_renewed_on(seen))
        good.check()
    # The watchdog lives: a hold that begins now is watched too.
    with Lock("next", client=r, ttl=TTL, observer=seen) as later:
        wait_until(is_renewed_on(seen))
        later.check()


@EACH_ERROR
def test_what_a_callback_raises_about_a_lease_that_ran_out_stops_no_renewal(r, error):
    seen, lost = Renewed(), raiser(error)
    short = Lock("bad", client=r, ttl=0.1, renew=False, observer=lost, on_lost=lost)
    with Lock("good", client=r, ttl=TTL, observer=seen) as good:
        short.acquire()
        assert short.lost.wait(LONG)
        wait_until(is_renewed_on(seen))
        good.check()


@pytest.mark.parametrize("which", ["observer", "on_lost"])
def test_a_callback_that_blocks_holds_up_no_renewal(r, which):
    seen, blocked = Renewed(), Blocked()
    bad = Lock("bad", client=r, ttl=TTL, **{which: blocked})
    try:
        with Lock("good", client=r, ttl=TTL, observer=seen) as good:
            bad.acquire()
            if which == "observer":
                assert blocked.called.wait(LONG)
                wait_until(is_renewed_on(seen))
                bad.check()
            r.delete(bad.key)
            assert bad.lost.wait(LONG)
            assert blocked.called.wait(LONG)
            wait_until(is_renewed_on(seen))
            good.check()
            threads = [t for t in threading.enumerate() if t.name == "bloomlock-callback"]
            assert len(threads) == 1
    finally:
        blocked.over.set()


def test_events_keep_their_order_while_the_observer_is_slow(r):
    kinds, may_go = [], threading.Event()

    def slow(event):
        kinds.append(event.kind)
        if event.kind == "renewed":
            may_go.wait(LONG)

    lock = Lock("job", client=r, ttl=TTL, observer=slow)
    lock.acquire()
    wait_until(lambda: "renewed" in kinds)
    lock.release()
    assert "released" not in kinds
    may_go.set()
    wait_until(lambda: kinds[-1] == "released")
    assert kinds[0] == "acquired"
    assert set(kinds[1:-1]) == {"renewed"}


def test_an_observer_that_is_busy_at_a_fork_works_in_the_child(r, valkey):
    blocked = Blocked()
    lock = Lock("job", client=r, ttl=TTL, observer=blocked)
    lock.acquire()
    assert blocked.called.wait(LONG)
    child = os.fork()
    if not child:
        status = 1
        try:
            blocked.over.set()
            blocked.called = threading.Event()
            # Another client: this is about the observer.
            with redis.Redis.from_url(valkey) as client:
                client.delete(lock.key)
                with lock:
                    status = 0 if blocked.called.wait(LONG) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    blocked.over.set()
    assert status == 0


def test_a_callback_is_called_once_there_may_be_a_thread_for_it(r, monkeypatch):
    told, start = threading.Event(), watchdog.start_thread

    def no_thread(name, *arguments):
        if name == "bloomlock-callback":
            raise RuntimeError("can't start new thread")
        start(name, *arguments)

    with Lock("job", client=r, ttl=TTL, on_lost=lambda _: told.set()) as lock:
        monkeypatch.setattr(watchdog, "start_thread", no_thread)
        lost = lock.lost
        r.delete(lock.key)
        assert lost.wait(LONG)
        assert not told.is_set()
        monkeypatch.setattr(watchdog, "start_thread", start)
        assert told.wait(LONG)
        lock.acquire(blocking=False)


def test_a_callback_of_the_holders_own_thread_may_end_the_program(r):
    lock = Lock("job", client=r, observer=raiser(SystemExit, ("acquired",)))
    with pytest.raises(SystemExit):
        lock.acquire()
    assert not r.exists(lock.key)


@EACH_ERROR
@pytest.mark.parametrize("kind", ["observer", "on_lost", "coroutine"])
def test_asyncio_what_a_callback_raises_stops_no_renewal(r, valkey, kind, error, caplog):
    async def fail(_):
        await asyncio.sleep(0)
        raise error

    callback = fail if kind == "coroutine" else raiser(error)
    which = "observer" if kind == "observer" else "on_lost"

    async def main():
        seen = Renewed()
        async with redis.asyncio.Redis.from_url(valkey) as client:
            bad = AsyncLock("bad", client, TTL, **{which: callback})
            async with AsyncLock("good", client, TTL, observer=seen) as good:
                await bad.acquire()
                await happened(is_renewed_on(seen))
                bad.check()
                r.delete(bad.key)
                async with asyncio.timeout(LONG):
                    await bad.lost.wait()
                await happened(is_renewed_on(seen))
                good.check()
        assert f"{which} of lock 'bad' raised" in caplog.text

    asyncio.run(main())


def test_asyncio_a_coroutine_that_hangs_holds_up_no_renewal(r, valkey):
    async def main():
        seen, hanging = Renewed(), asyncio.Event()

        async def hang(_):
            hanging.set()
            await asyncio.Event().wait()

        async with redis.asyncio.Redis.from_url(valkey) as client:
            bad = AsyncLock("bad", client, TTL, on_lost=hang)
            async with AsyncLock("good", client, TTL, observer=seen) as good:
                await bad.acquire()
                r.delete(bad.key)
                async with asyncio.timeout(LONG):
                    await hanging.wait()
                await happened(is_renewed_on(seen))
                good.check()

    asyncio.run(main())


def test_asyncio_a_renewal_that_is_cancelled_is_tried_again(r, valkey):
    async def main():
        seen = Renewed()
        async with (
            redis.asyncio.Redis.from_url(valkey) as client,
            AsyncLock("job", client, TTL, observer=seen) as lock,
        ):
            cancelled = 0
            while cancelled < 3:
                for task in asyncio.all_tasks():
                    if task.get_name() == "bloomlock-renewal":
                        cancelled += task.cancel()
                await asyncio.sleep(0)
            await happened(is_renewed_on(seen))
            lock.check()

    asyncio.run(main())
