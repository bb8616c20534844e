"""A child of fork holds nothing, leaves alone what its parent holds, and may lock by itself."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback

import pytest
import redis
from lock_tools import LONG, is_free
from servers import wait_until

from bloomlock import FairLock, Lock, LockNotOwnedError, ReadWriteLock, ReentrantLock
from bloomlock.locks import lock as lock_module

MAKE = {
    "lock": Lock,
    "shared": lambda *args, **options: Lock(*args, thread_local=False, **options),
    "fair": FairLock,
    "reentrant": ReentrantLock,
    "read": lambda *args, **options: ReadWriteLock(*args, **options).read,
}
pytestmark = pytest.mark.usefixtures("often")
# filelock, which the embedded server uses, refuses a fork while another thread forks.
_forking = threading.Lock()


def in_child(function):
    """Carry out a function in a child; return what it returned, a text."""
    reader, writer = os.pipe()
    with _forking:
        child = os.fork()
    if child == 0:
        answer = "?"
        try:
            answer = str(function())
        except BaseException:  # noqa: BLE001 - it goes to the parent as text
            answer = traceback.format_exc()
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def wait_for_renewals(events, count):
    """Wait for some more renewals of a lock whose observer keeps its events."""

    def renewals():
        return sum(event.kind == "renewed" for event in list(events))

    enough = renewals() + count
    wait_until(lambda: renewals() >= enough, LONG)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_child_holds_nothing(any_url, make):
    with redis.Redis.from_url(any_url) as r:
        events = []
        lock = make("job", client=r, ttl=LONG, observer=events.append)
        with lock:
            lock.extend()
            token, fence = lock.token, lock.fence

            def look():
                assert (lock.token, lock.fence, lock.remaining()) == (None, None, 0.0)
                assert lock.owned() is False
                assert not lock.lost.is_set()
                for refused in (lock.release, lock.check, lock.extend):
                    with pytest.raises(LockNotOwnedError):
                        refused()
                other = Lock("job", client=r)
                assert other.acquire(blocking=False) is False
                assert other.acquire(timeout=0.05) is False
                return "fine"

            assert in_child(look) == "fine"
            assert (lock.token, lock.fence) == (token, fence)
            wait_for_renewals(events, 3)
            assert lock.owned()
        assert is_free(r, lock)


def test_a_child_renews_nothing_of_its_parents(r):
    gc.collect()
    before = watched()  # what earlier tests have left
    lock = Lock("one of its parents", client=r, ttl=LONG)
    with lock:
        lock.extend()

        def hold_another():
            events = []
            with Lock("other", client=r, ttl=LONG, observer=events.append) as other:
                other.extend()
                wait_for_renewals(events, 3)
                seen = watched()
            names = [thread.name for thread in threading.enumerate()]
            return f"{seen} {names.count('bloomlock-watchdog')}"

        assert in_child(hold_another) == "['other'] 1"
        assert [name for name in watched() if name not in before] == [lock.name]
        lock.check()
    assert is_free(r, lock)


def watched():
    """The locks that the watchdog of this process watches, but for such as were dropped."""
    sessions = [each.session() for each in list(lock_module.WATCHDOG._schedule._watches.values())]
    return [session.name for session in sessions if session is not None]


def test_a_child_locks_by_itself_with_tokens_of_its_own(r):
    events = []
    lock = Lock("job", client=r, ttl=LONG, observer=events.append)
    with lock:
        pass

    def work():
        with lock:
            first = lock.token, lock.fence
            lock.extend()
            wait_for_renewals(events, 2)
            lock.check()
        return f"{first[0]} {first[1]}"

    answers = [in_child(work).split() for _ in range(3)]
    with lock:
        answers.append([lock.token, lock.fence])
    fences = [int(fence) for _, fence in answers]
    assert len({token for token, _ in answers}) == 4
    assert fences == sorted(set(fences))
    assert is_free(r, lock)


def test_parent_and_children_exclude_each_other(r):
    lock = Lock("job", client=r)

    def work():
        for _ in range(50):
            with lock:
                number = int(r.get("number") or 0)
                time.sleep(0)
                r.set("number", number + 1)
        return "fine"

    found = []
    threads = [threading.Thread(target=lambda: found.append(in_child(work))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert work() == "fine"
    for thread in threads:
        thread.join(LONG)
    assert found == ["fine"] * 3
    assert int(r.get("number")) == 200


def test_a_child_of_a_waiting_parent(r):
    holder, waiter = Lock("job", client=r, thread_local=False), Lock("job", client=r)
    holder.acquire()
    thread = threading.Thread(target=lambda: waiter.acquire() and waiter.release())
    thread.start()
    wait_until(lambda: r.zcard(f"{waiter.key}:queue") == 1)

    def work():
        r.set("child", 1)
        with waiter:
            return "fine"

    said = []
    other = threading.Thread(target=lambda: said.append(in_child(work)))
    other.start()
    wait_until(lambda: r.zcard(f"{waiter.key}:queue") == 2)
    holder.release()
    other.join(LONG)
    thread.join(LONG)
    assert said == ["fine"]
    assert is_free(r, waiter)
