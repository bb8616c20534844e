"""A child of fork holds nothing, leaves alone what its parent holds, and may lock by itself."""

from __future__ import annotations

import os
import threading
import time
import traceback

import pytest
import redis
from locks.objects.tools import LONG, is_free
from servers import wait_until

from bloomlock import FairLock, Lock, LockNotOwnedError, ReadWriteLock, ReentrantLock

MAKE = {
    "lock": Lock,
    "shared": lambda *args, **options: Lock(*args, thread_local=False, **options),
    "fair": FairLock,
    "reentrant": ReentrantLock,
    "read": lambda *args, **options: ReadWriteLock(*args, **options).read,
}
TTL = 0.5


def in_child(function):
    """Carry out a function in a child; return what it returned, a text."""
    reader, writer = os.pipe()
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


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_child_holds_nothing(any_url, make):
    with redis.Redis.from_url(any_url) as r:
        renewed = []
        lock = make("job", client=r, ttl=TTL, observer=renewed.append)
        with lock:
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
            before = len(renewed)
            wait_until(lambda: len(renewed) >= before + 3)
            assert lock.owned()
        assert is_free(r, lock)


def test_a_child_renews_nothing_of_its_parents(r):
    lock = Lock("job", client=r, ttl=TTL)
    with lock:

        def sleep():
            with Lock("other", client=r, ttl=TTL):
                r.set("ready", 1)
                time.sleep(2 * TTL)
            return threading.active_count()

        # The lock ends while the child lives: if that renewed it, it would come back.
        thread = threading.Thread(target=lambda: r.set("said", in_child(sleep)))
        thread.start()
        wait_until(lambda: r.exists("ready"))
    assert is_free(r, lock)
    thread.join(LONG)
    assert is_free(r, lock)
    assert r.get("said") == b"2"


def test_a_child_locks_by_itself_with_tokens_of_its_own(r):
    lock = Lock("job", client=r, ttl=TTL)
    with lock:
        pass

    def work():
        with lock:
            first = lock.token, lock.fence
            time.sleep(2 * TTL)
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
