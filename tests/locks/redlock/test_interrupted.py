"""A KeyboardInterrupt in the middle of an acquire leaves nothing on any server."""

from __future__ import annotations

import signal
import threading

import pytest
from interrupting import InterruptedAt, was_in_acquire
from servers import wait_until
from several import LONG

MOST = 2000


@pytest.mark.parametrize("busy", [False, True])
def test_at_every_point_where_python_looks_for_signals(three, busy):
    holder, lock = three.lock(), three.lock()
    if busy:
        holder.acquire()
        wait_until(lambda: three.held(lock.key) == 3)
    expected = [holder.token if busy else None] * 3
    for number in range(MOST):
        point = InterruptedAt(number)
        try:
            with point:
                lock.acquire(blocking=False)
        except KeyboardInterrupt as error:
            assert (lock.token is None) == was_in_acquire(error)
        if lock.token is not None:
            lock.release()
        wait_until(lambda: three.tokens(lock.key) == expected)
        assert not lock._session.steps.ballots
        if point.left >= 0:
            break
    assert 100 < number < MOST - 1
    if busy:
        holder.release()
    with lock:
        assert lock.owned()


@pytest.mark.usefixtures("interruptible")
def test_while_it_waits(three):
    holder, waiter = three.lock(thread_local=False), three.lock()
    holder.acquire()
    wait_until(lambda: three.held(holder.key) == 3)
    main, ended = threading.get_ident(), threading.Event()

    def interrupt():
        while not ended.wait(0.2):
            signal.pthread_kill(main, signal.SIGINT)

    for _ in range(5):
        thread = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt):
            try:
                thread.start()
                waiter.acquire(timeout=LONG)
            finally:
                ended.set()
                thread.join()
        ended.clear()
        assert waiter.token is None
        assert three.tokens(holder.key) == [holder.token] * 3
    holder.release()
    with waiter:
        assert waiter.owned()
