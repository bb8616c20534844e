"""No hold is overwritten: each that was granted is released, still held, or reported lost."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future

import pytest
import redis
import redis.asyncio
from lock_tools import LONG, is_free
from servers import wait_until

import bloomlock
from bloomlock import (
    AsyncReadWriteLock,
    Lock,
    LockError,
    LockLostError,
    LockNotOwnedError,
    ReadWriteLock,
)
from bloomlock.effects import Request

WORKERS, STEPS = 3, 60
TTL = 60.0
FOREVER = {"timeout": LONG}
KINDS = ("Lock", "FairLock", "ReentrantLock", "owner", "ReadWriteLock", "Redlock")


class Worker:
    """A thread that carries out what it is given, one thing after the other."""

    def __init__(self):
        self._given = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, function):
        future = Future()
        self._given.put((function, future))
        return future

    def end(self):
        self._given.put(None)
        self._thread.join(LONG)

    def _run(self):
        while (given := self._given.get()) is not None:
            function, future = given
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - the test's to judge
                future.set_exception(error)


class TaskWorker:
    """The same as a task of a loop."""

    def __init__(self, loop):
        self._loop = loop
        self._given = asyncio.Queue()
        self._task = asyncio.run_coroutine_threadsafe(self._run(), loop)

    def start(self, function):
        future = Future()
        self._loop.call_soon_threadsafe(self._given.put_nowait, (function, future))
        return future

    def end(self):
        self._loop.call_soon_threadsafe(self._given.put_nowait, None)
        self._task.result(LONG)

    async def _run(self):
        while (given := await self._given.get()) is not None:
            function, future = given
            try:
                answer = function()
                future.set_result(await answer if inspect.isawaitable(answer) else answer)
            except Exception as error:  # noqa: BLE001 - the test's to judge
                future.set_exception(error)


class Crowd:
    """Several threads or tasks with one lock object; after each step the books are checked."""

    def __init__(self, sides, events, workers, servers, rng):
        self.sides = sides
        self.events = events
        self.workers = dict(enumerate(workers))
        self.servers = servers
        self.rng = rng
        self.pending = {}
        self.gone = set()

    def step(self):
        idle = [number for number in self.workers if number not in self.pending]
        if self.rng.random() < 0.06:
            # What a poll of several servers meets half-way stays on one of them for a lease.
            if not self.pending or len(self.servers) == 1:
                self.lose()
        else:
            number, lock = self.rng.choice(idle), self.rng.choice(self.sides)
            if self.rng.random() < 0.45:
                self.release(number, lock)
            else:
                self.acquire(number, lock)
        self.look()

    def acquire(self, number, lock):
        limits = self.rng.choice(
            [{"blocking": False}, {"timeout": 0.0}, {"timeout": 0.02}, FOREVER]
        )
        if len(self.pending) == WORKERS - 1:
            # One is left who can give back what those who wait have.
            limits = {"blocking": False}
        future = self.workers[number].start(lambda: lock.acquire(**limits))
        self.pending[number] = future
        if limits is not FOREVER:
            self.finish(number)
        else:
            with contextlib.suppress(TimeoutError):
                future.exception(0.02)

    def ask(self):
        return self.sides[0].acquire(blocking=False)

    def release(self, number, lock):
        """Return whether there was something to give back."""
        self.pending[number] = self.workers[number].start(lock.release)
        return self.finish(number) is not LockNotOwnedError

    def finish(self, number):
        error = self.pending[number].exception(LONG)
        del self.pending[number]
        assert error is None or isinstance(error, LockError), repr(error)
        return type(error)

    def lose(self):
        """Delete the lock, and with it the queue if nobody stands there."""
        keys = [self.sides[0].key, f"{self.sides[0].key}:holders"]
        for server in self.servers:
            with server.pipeline() as all_at_once:
                all_at_once.get(keys[0]).zrange(keys[1], 0, -1)
                if self.pending:
                    all_at_once.delete(*keys)
                else:
                    all_at_once.flushall()
                value, shared, _ = all_at_once.execute()
            self.gone |= {value, *shared}

    def look(self):
        for number in [number for number, future in self.pending.items() if future.done()]:
            self.finish(number)
        # What is pending may be granted at any moment, and be in the books a little later.
        wait_until(self.is_consistent, LONG)

    def believed(self):
        return {hold.token for lock in self.sides for hold in live(lock)}

    def is_consistent(self):
        there, believed = self.there(), self.believed()
        counted = Counter(event.kind for event in list(self.events))
        ended = counted["released"] + counted["lost"]
        return believed - self.gone <= there <= believed and counted["acquired"] - ended == len(
            believed
        )

    def there(self):
        """The tokens of those who hold the lock, as most servers have it."""
        key, found = self.sides[0].key, Counter()
        for server in self.servers:
            value = server.get(key)
            shared = server.zrange(f"{key}:holders", 0, -1)
            found.update(shared if value and value.startswith(b"=") else [value] if value else [])
        return {token for token, count in found.items() if 2 * count > len(self.servers)}

    def end(self):
        """Let everybody give back what it has; then nothing is left anywhere."""
        deadline = time.monotonic() + LONG
        while self.pending or self.believed():
            assert time.monotonic() < deadline, (self.pending, self.believed())
            for number in set(self.workers) - set(self.pending):
                # Whoever asks hands on a lock that was deleted.
                self.pending[number] = self.workers[number].start(self.ask)
                self.finish(number)
                for lock in self.sides:
                    while self.release(number, lock):
                        pass
            self.look()
        # A Redlock is given back to the last server in the background.
        wait_until(lambda: all(is_free(server, self.sides[0]) for server in self.servers), LONG)


def live(lock):
    return [hold for hold in list(lock._session.holdings._owners) if not hold.lost]


def sides_of(kind, clients, **options):
    """The lock objects under test."""
    options |= {"ttl": TTL}
    prefix = "Async" if isinstance(clients[0], redis.asyncio.Redis) else ""
    if kind == "Redlock":
        return [getattr(bloomlock, f"{prefix}Redlock")("job", clients, longest_ttl=0, **options)]
    if kind == "owner":
        kind, options["owner"] = "ReentrantLock", "o"
    made = getattr(bloomlock, prefix + kind)("job", clients[0], **options)
    return [made.read, made.write] if kind == "ReadWriteLock" else [made]


@pytest.fixture
def three(urls):
    """Clients of three servers."""
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(redis.Redis.from_url(urls[kind]))
            for kind in ("valkey", "redis7", "redis62")
        ]
        for client in made:
            client.flushall()
        yield made


@pytest.fixture
def loop():
    """A loop that runs in a thread of its own."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(LONG)
    made.close()


@pytest.mark.parametrize("thread_local", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_each_grant_is_released_or_held_or_reported_lost(three, kind, thread_local, seed):
    workers = [Worker() for _ in range(WORKERS)]
    run(kind, three, three, workers, seed, thread_local)


@pytest.mark.parametrize("thread_local", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_in_asyncio(three, loop, kind, thread_local, seed):
    clients = [
        redis.asyncio.Redis(unix_socket_path=client.get_connection_kwargs()["path"])
        for client in three
    ]
    workers = [TaskWorker(loop) for _ in range(WORKERS)]
    run(kind, clients, three, workers, seed, thread_local)
    for client in clients:
        asyncio.run_coroutine_threadsafe(client.aclose(), loop).result(LONG)


def run(kind, clients, servers, workers, seed, thread_local):
    events = []
    sides = sides_of(kind, clients, thread_local=thread_local, observer=events.append)
    crowd = Crowd(
        sides,
        events,
        workers,
        servers[: len(servers) if kind == "Redlock" else 1],
        random.Random(seed),
    )
    for _ in range(STEPS):
        crowd.step()
    crowd.end()
    for worker in workers:
        worker.end()


def in_thread(function):
    worker = Worker()
    future = worker.start(function)
    worker.end()
    return future.result()


def test_two_threads_read_with_one_object_that_is_not_thread_local(r):
    lock = ReadWriteLock("job", r, TTL, thread_local=False)
    lock.read.acquire()
    assert in_thread(lock.read.acquire) is True
    lock.read.release()
    lock.read.check()
    assert ReadWriteLock("job", r).write.acquire(blocking=False) is False
    lock.read.release()
    assert is_free(r, lock.read)
    with pytest.raises(LockNotOwnedError):
        lock.read.release()


def test_a_thread_does_not_read_twice(r):
    lock = ReadWriteLock("job", r, TTL).read
    assert lock.acquire(blocking=False) is True
    assert lock.acquire(blocking=False) is False
    with pytest.raises(LockError, match="would wait for itself"):
        lock.acquire()
    lock.release()
    assert is_free(r, lock)


def test_a_task_does_not_read_twice(valkey, r):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncReadWriteLock("job", client, TTL).read
            assert await lock.acquire(blocking=False) is True
            assert await lock.acquire(blocking=False) is False
            await lock.release()
            assert is_free(r, lock)
            await lock.close()

    asyncio.run(main())


@pytest.mark.parametrize("renew", [True, False])
def test_who_takes_a_lock_whose_key_was_lost_ends_the_hold_before(r, renew):
    told = []
    lock = Lock("job", r, TTL, renew=renew, thread_local=False, on_lost=told.append)
    lock.acquire()
    lost = lock.lost
    r.delete(lock.key)
    assert in_thread(lambda: (lock.acquire(timeout=LONG), lock.lost.is_set())) == (True, False)
    assert lost.is_set()
    wait_until(lambda: told == [lock])
    with pytest.raises(LockLostError, match="granted anew"):
        lock.release()
    lock.check()
    lock.release()
    assert is_free(r, lock)


def test_a_hold_that_is_put_in_late_is_the_one_that_is_lost(r):
    """A thread that sleeps between its grant and its books finds a later grant there."""
    lock = Lock("job", r, TTL, thread_local=False)
    core, owner = lock._session, threading.current_thread()
    core.attach(lock._runtime, core._watcher)
    attempt = core.begin(owner, 0.0, None)
    slow = core.acquire(attempt, owner)
    step, replies = next(slow), None
    while not replies or isinstance(replies[0], Exception):  # a script the server has not yet
        if replies is not None or not isinstance(step, Request):
            step = slow.send(replies)
        replies = lock._runtime.run(_one(step)) if isinstance(step, Request) else None
    r.delete(lock.key)
    assert in_thread(lock.acquire) is True
    with pytest.raises(StopIteration):
        slow.send(replies)
    with pytest.raises(LockLostError, match="granted anew"):
        lock.check()
    assert in_thread(lock.check) is None
    assert in_thread(lock.release) is None


def _one(request):
    return (yield request)
