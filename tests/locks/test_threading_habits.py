"""What holds for threading.Lock holds here: acquire, release, with."""

from __future__ import annotations

import threading

import pytest
from lock_tools import LONG, is_free

from bloomlock import (
    FairLock,
    Lock,
    LockError,
    LockNotOwnedError,
    LockTimeoutError,
    ReadWriteLock,
    ReentrantLock,
)

KINDS = {
    "lock": Lock,
    "fair": FairLock,
    "reentrant": ReentrantLock,
    "read": lambda *args, **options: ReadWriteLock(*args, **options).read,
    "write": lambda *args, **options: ReadWriteLock(*args, **options).write,
}
EACH = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def in_thread(function):
    """Return what a function returns, or the exception it raises, in another thread."""
    found = []

    def run():
        try:
            found.append(function())
        except LockError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LONG)
    return found[0]


@EACH
def test_a_cycle(client, make):
    lock, other = make("job", client=client), Lock("job", client=client)
    assert not lock.locked()
    assert not lock.owned()
    assert lock.acquire() is True
    assert lock.locked()
    assert lock.owned()
    assert other.locked()
    assert not other.owned()
    assert other.acquire(False) is False
    assert other.acquire(blocking=False) is False
    assert other.acquire(timeout=0) is False
    assert other.acquire(True, 0.01) is False
    assert lock.release() is None
    assert is_free(client, lock)
    assert not lock.locked()
    assert other.acquire(0) is True
    other.release()


@EACH
def test_a_release_by_somebody_else_is_refused_and_changes_nothing(client, make):
    lock = make("job", client=client)
    with pytest.raises(LockNotOwnedError, match="'job' is not held by this thread or task"):
        lock.release()
    with lock:
        held = client.get(lock.key)
        assert isinstance(in_thread(lock.release), LockNotOwnedError)
        assert isinstance(in_thread(lock.check), LockNotOwnedError)
        assert isinstance(in_thread(lock.extend), LockNotOwnedError)
        assert in_thread(lambda: (lock.owned(), lock.token, lock.fence)) == (False, None, None)
        assert in_thread(lambda: (lock.remaining(), lock.lost.is_set())) == (0.0, False)
        assert client.get(lock.key) == held
    with pytest.raises(LockNotOwnedError):
        lock.release()


@EACH
def test_with(client, make):
    lock = make("job", client=client)
    with lock as same:
        assert same is lock
        assert lock.owned()
        lock.check()
    assert is_free(client, lock)
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert is_free(client, lock)


def test_with_says_when_it_was_not_obtained(client):
    with Lock("job", client=client):
        late = Lock("job", client=client, blocking_timeout=0.02)
        with pytest.raises(LockTimeoutError, match="'job' was not obtained within 0.02 s"), late:
            raise AssertionError
        never = Lock("job", client=client, blocking=False)
        with pytest.raises(LockTimeoutError, match="'job' is held by another client"), never:
            raise AssertionError
        assert never.acquire() is False
        assert late.acquire() is False
    assert is_free(client, late)
    assert late.acquire(blocking=True, timeout=LONG) is True
    late.release()


@pytest.mark.parametrize("make", [Lock, FairLock], ids=["lock", "fair"])
def test_who_would_wait_for_himself_is_told(client, make):
    lock = make("job", client=client)
    with lock:
        for wait in (lock.acquire, lambda: lock.acquire(timeout=1)):
            with pytest.raises(LockError, match="held by this very thread .* use ReentrantLock"):
                wait()
        assert lock.acquire(blocking=False) is False
        assert lock.owned()
        assert in_thread(lambda: lock.acquire(timeout=0.01)) is False
    assert is_free(client, lock)


def test_who_would_wait_for_his_own_other_side_is_told(client):
    lock = ReadWriteLock("job", client=client)
    for held, wanted in ((lock.read, lock.write), (lock.write, lock.read)):
        with held:
            with pytest.raises(LockError, match="'job' is held .* by this very thread"):
                wanted.acquire()
            assert wanted.acquire(blocking=False) is False
            assert in_thread(lambda wanted=wanted: wanted.acquire(timeout=0.01)) is False
    assert is_free(client, lock.read)


def test_a_hold_is_not_that_of_the_next_thread_with_the_same_number(r):
    lock = Lock("job", client=r, ttl=LONG)
    idents = []

    def take():
        idents.append(threading.get_ident())
        return lock.acquire()

    def look():
        idents.append(threading.get_ident())
        return lock.token, lock.acquire(blocking=False)

    assert in_thread(take) is True
    for _ in range(100):
        assert in_thread(look) == (None, False)
    assert len(set(idents)) < len(idents)


def test_without_thread_local_any_thread_may_release(r):
    lock = Lock("job", client=r, thread_local=False)
    lock.acquire()
    assert in_thread(lambda: (lock.owned(), lock.release())) == (True, None)
    assert lock.token is None
    assert is_free(r, lock)


def test_threads_exclude_each_other(any_url):
    lock = Lock("job", client=any_url)
    inside, most, rounds = [], [], 25

    def work():
        for _ in range(rounds):
            with lock:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert most == [1] * (6 * rounds)
    lock.close()


def test_repr_tells_the_state_without_asking(r):
    lock = Lock("job", client=r)
    assert repr(lock) == "<Lock 'job': not held here>"
    lock.acquire()
    r.delete(lock.key)
    assert repr(lock) == "<Lock 'job': held>"
    with pytest.raises(LockNotOwnedError):
        lock.extend()
    assert repr(lock) == "<Lock 'job': lost: its key was gone when it was extended>"
    with pytest.raises(LockNotOwnedError):
        lock.release()
