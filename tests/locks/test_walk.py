"""A random walk of one lock: people use objects of all kinds, one step after the other.

Threads and tasks share objects of every kind of one name. They try, wait, nest, extend, give back,
are cancelled; replies are lost, scripts flushed, connections cut, keys deleted, leases renewed.
After each step the server has exactly the holders and the waiters of the model; who is granted the
lock by a step has it, and nobody else; fences rise. At the end everything is given back, and each
observer was told of each hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from contract.lock_backends import PARTS
from people import AsyncPerson, Loop, Person, is_lost
from proxy import Proxy, deliver
from servers import wait_until

import bloomlock
from bloomlock.errors import LockError, LockLostError
from bloomlock.locks._async import lock as async_lock
from bloomlock.locks.protocol import waiting

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hand_clock import HandClock

STEPS = 80
PATIENCE = 60.0
WAYS = {"attempt", "leave", "cancel", "again", "look", "flush", "kill", "wipe", "renew"}
TTL = 600.0
CLASSES = {"lock": "Lock", "fair": "FairLock", "reentrant": "ReentrantLock"}
CLASSES |= {"read": "ReadWriteLock", "write": "ReadWriteLock"}


@dataclass(eq=False)
class Shared:
    """A lock object, and what its observer was told."""

    kind: str
    lock: Any = None
    told: list[str] = field(default_factory=list)

    @property
    def is_read(self) -> bool:
        return self.kind == "read"

    @property
    def is_reentrant(self) -> bool:
        return self.kind == "reentrant"


@dataclass(eq=False)
class Hold:
    """Who has the lock, or waits for it, by which object."""

    person: Person
    shared: Shared
    future: Future[Any] | None = None
    token: str = ""
    fence: int = 0
    count: int = 1
    is_old: bool = False


class Walk:
    """The people, their objects, and what the model says of the lock.

    Args:
        url: Of a server.
        seed: Of all that is drawn.
        clock: That leases are counted by.
        loop: Of those who are tasks.
        stack: Closes everything.
    """

    def __init__(
        self, url: str, seed: str, clock: HandClock, loop: Loop, stack: contextlib.ExitStack
    ) -> None:
        self.chance, self.clock, self.done = random.Random(seed), clock, Counter[str]()
        self.server = stack.enter_context(redis.Redis.from_url(url))
        self.server.flushall()
        self.proxy = stack.enter_context(Proxy(url, handshake=False))
        self.path: list[str] = []
        self.holds: list[Hold] = []
        self.queue: list[Hold] = []
        self.lost: list[Hold] = []
        self.fence = 0
        self.grants = Counter[Shared]()
        self.objects: dict[type, list[Shared]] = {}
        client = stack.enter_context(redis.Redis.from_url(self.proxy.url))
        awaited = redis.asyncio.Redis.from_url(self.proxy.url)
        stack.callback(lambda: loop.run(awaited.aclose()))
        for kind, prefix, made in ((Person, "", client), (AsyncPerson, "Async", awaited)):
            self.objects[kind] = [self._object(name, prefix, made) for name in CLASSES]
        self.people = [Person() for _ in range(3)] + [AsyncPerson(loop.loop) for _ in range(3)]
        self.key = self.objects[Person][0].lock.key
        self._stack, self._loop = stack, loop

    def _object(self, kind: str, prefix: str, client: Any) -> Shared:
        shared = Shared(kind)
        made = getattr(bloomlock, prefix + CLASSES[kind])(
            "job", client, TTL, observer=lambda event: shared.told.append(event.kind)
        )
        shared.lock = getattr(made, kind) if kind in ("read", "write") else made
        return shared

    # -- the model -------------------------------------------------------------------------------

    def is_for(self, shared: Shared) -> bool:
        """Tell whether the lock is free, or read and wanted for reading."""
        return not self.holds or (shared.is_read and self.holds[0].shared.is_read)

    def is_available(self, shared: Shared) -> bool:
        return self.is_for(shared) and not (self.holds and self.queue)

    def promote(self) -> list[Hold]:
        """Hand the lock to those who wait, if it is for them."""
        granted: list[Hold] = []
        for hold in list(self.queue):
            if granted and not hold.shared.is_read:
                continue
            if not self.is_for(hold.shared):
                break
            self.queue.remove(hold)
            self.holds.append(hold)
            granted.append(hold)
            if not hold.shared.is_read:
                break
        return granted

    # -- steps -----------------------------------------------------------------------------------

    def step(self) -> None:
        busy = {hold.person for hold in self.holds + self.queue + self.lost}
        idle = [person for person in self.people if person not in busy]
        ways = [self.flush, self.kill]
        ways += [self.attempt] * 3 * bool(idle) + [self.leave] * 4 * bool(self.holds)
        ways += [self.look, self.again] * bool(self.holds)
        # The lease of who is granted the lock by a message counts from when it asked last. The
        # clock jumps, so a waiter has no time to ask again.
        ways += [self.renew] * bool(self.holds and not any(hold.is_old for hold in self.queue))
        ways += [self.leave_lost] * 3 * bool(self.lost)
        ways += [self.wipe] * bool(self.holds and idle and self.chance.random() < 0.3)
        cancellable = [hold for hold in self.queue if isinstance(hold.person, AsyncPerson)]
        ways += [self.cancel] * bool(cancellable)
        way = self.chance.choice(ways)
        self.path.append(way.__name__)
        self.done[way.__name__] += 1
        if way == self.attempt:
            self.attempt(self.chance.choice(idle))
        elif way == self.wipe:
            self.wipe(self.chance.choice(idle))
        elif way == self.cancel:
            self.cancel(self.chance.choice(cancellable))
        else:
            way()
        self.compare()

    def lose_a_reply(self) -> None:
        """Let one of the next two commands be lost, before or after it was carried out."""
        only, verdict = (
            len(self.proxy.seen) + self.chance.randrange(2),
            self.chance.choice(("before", "after", "pass")),
        )
        self.proxy.judge = lambda _name, number: verdict if number == only else "pass"

    def attempt(self, person: Person) -> None:
        shared = self.chance.choice(self.objects[type(person)])
        available = self.is_available(shared)
        how = self.chance.choice(({"blocking": False}, {"timeout": 0.01}, {}, {}))
        self.path.append(f"{self.people.index(person)} {shared.kind} {how} {available}")
        hold = Hold(person, shared)
        if available or how:
            self.lose_a_reply()
            got = person(shared.lock.acquire, **how)
            self.proxy.judge = deliver
            assert got is available
            if got:
                self.holds.append(hold)
                self.note(hold)
            return
        self.queue.append(hold)
        hold.future = person.start(shared.lock.acquire)
        wait_until(lambda: self.server.zcard(f"{self.key}:queue") == len(self.queue))

    def note(self, hold: Hold) -> None:
        """Note a grant that was heard of."""
        hold.token, hold.fence = hold.person(
            lambda: (hold.shared.lock.token, hold.shared.lock.fence)
        )
        assert hold.fence > self.fence
        self.grants[hold.shared] += 1

    def hear(self, granted: list[Hold]) -> None:
        for hold in granted:
            assert hold.future is not None
            assert hold.future.result(60.0) is True
            self.note(hold)

    def leave(self) -> None:
        hold = self.chance.choice(self.holds)
        self.path.append(f"{self.people.index(hold.person)} {hold.count}")
        if hold.count == 1:
            self.holds.remove(hold)
        hold.count -= 1
        granted = self.promote()
        self.lose_a_reply()
        hold.person(hold.shared.lock.release)
        self.proxy.judge = deliver
        self.hear(granted)

    def cancel(self, hold: Hold) -> None:
        assert isinstance(hold.person, AsyncPerson)
        self.queue.remove(hold)
        granted = self.promote()
        hold.person.cancel()
        assert hold.future is not None
        error = hold.future.exception(60.0)
        assert isinstance(error, asyncio.CancelledError), error
        self.hear(granted)

    def again(self) -> None:
        hold = self.chance.choice(self.holds)
        if hold.shared.is_reentrant:
            assert hold.person(hold.shared.lock.acquire) is True
            hold.count += 1
            return
        assert hold.person(hold.shared.lock.acquire, blocking=False) is False
        try:
            hold.person(hold.shared.lock.acquire)
        except LockError:
            return
        raise AssertionError("it would wait for itself")

    def look(self) -> None:
        hold = self.chance.choice(self.holds)
        self.lose_a_reply()
        assert hold.person(hold.shared.lock.extend) is True
        self.proxy.judge = deliver
        assert hold.person(hold.shared.lock.owned) is True

    def flush(self) -> None:
        self.server.script_flush()

    def kill(self) -> None:
        self.server.client_kill_filter(_type="normal", skipme=True)

    def wipe(self, person: Person) -> None:
        """Delete the key: nobody holds the lock any more, and they do not know it yet.

        A newcomer then hands it to those who wait, if they have not asked before. What is left of
        readers counts no more.
        """
        self.server.delete(*(self.key, f"{self.key}:holders")[: self.chance.randrange(1, 3)])
        self.lost += self.holds
        self.holds = []
        granted = self.promote()
        if granted:
            shared = self.chance.choice(self.objects[type(person)])
            available = self.is_available(shared)
            assert person(shared.lock.acquire, blocking=False) is available
            self.hear(granted)
            if available:
                self.holds.append(hold := Hold(person, shared))
                self.note(hold)

    def renew(self) -> None:
        self.server.pexpire(self.key, 300_000)
        self.clock.advance(0.4 * TTL)
        for hold in self.queue:
            hold.is_old = True
        wait_until(lambda: self.server.pttl(self.key) > 300_000)
        for hold in self.lost:
            wait_until(lambda hold=hold: hold.person(is_lost, hold.shared.lock))

    def leave_lost(self) -> None:
        hold = self.lost.pop()
        # Over a connection that was killed it would not be known whether a first try gave it back.
        hold.person(hold.shared.lock.locked)
        while hold.count:
            hold.count -= 1
            try:
                hold.person(hold.shared.lock.release)
            except LockLostError:
                return
        raise AssertionError("a release of a lost lock said nothing")

    # -- judging ---------------------------------------------------------------------------------

    def compare(self) -> None:
        value = self.server.get(self.key)
        if value is None or not value.startswith(b"="):
            found = [value.decode()] if value else []
        else:
            found = [token.decode() for token in self.server.zrange(f"{self.key}:holders", 0, -1)]
        assert sorted(found) == sorted(hold.token for hold in self.holds)
        queue = self.server.zrange(f"{self.key}:queue", 0, -1)
        assert len(queue) == len(self.queue)
        for hold in self.queue:
            assert hold.future is not None
            assert not hold.future.done()
        fences = [hold.fence for hold in self.holds]
        assert len(set(fences)) == len(fences)
        self.fence = max([self.fence, *fences])
        for hold in self.holds:
            hold.person(hold.shared.lock.check)

    def end(self) -> None:
        """Give everything back, and look at what is left."""
        while self.holds:
            self.leave()
            self.compare()
        while self.lost:
            self.leave_lost()
        assert not self.queue
        # Of readers whose key was deleted something is left, until their leases are over.
        assert not self.server.exists(*(self.key + part for part in PARTS if part != ":holders"))
        for shared in (each for some in self.objects.values() for each in some):
            wait_until(lambda shared=shared: self.is_told(shared), what=f"{shared}")

    def is_told(self, shared: Shared) -> bool:
        told = Counter(shared.told)
        ends = told["released"] + told["lost"]
        return told["acquired"] == self.grants[shared] == ends

    def close(self) -> None:
        self.server.flushall()
        for kind, some in self.objects.items():
            for shared in some:
                closed = shared.lock.close()
                if kind is AsyncPerson:
                    self._loop.run(closed)
        for person in self.people:
            person.end()


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    # A busy machine may take longer for a reply, one that was lost before it.
    for module, name in (
        (waiting, "GRACE_SECONDS"),
        (waiting, "CLEANUP_SECONDS"),
        (async_lock, "GRACE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, PATIENCE)


def walk(url, clock, seeds):
    """Walk once for each seed; an error names the seed and the way."""
    done = Counter()
    for seed in seeds:
        with Loop() as loop, contextlib.ExitStack() as stack:
            made = Walk(url, seed, clock, loop, stack)
            try:
                for _ in range(STEPS):
                    made.step()
                made.end()
            except BaseException as error:
                error.add_note(f"seed {seed}: {made.path}")
                raise
            finally:
                made.close()
            done += made.done
    return done


def test_the_server_has_the_holders_and_waiters_of_the_model(valkey, clock, seed):
    done = walk(valkey, clock, [f"{seed}/{number}" for number in range(6)])
    assert done.keys() >= WAYS


@pytest.mark.long
def test_the_same_in_hundreds_of_walks(valkey, clock, seed):
    walk(valkey, clock, [f"{seed}/{number}" for number in range(500)])
