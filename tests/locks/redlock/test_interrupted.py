"""A KeyboardInterrupt in the middle of an acquire leaves nothing on any server."""

from __future__ import annotations

import _thread
import random
import threading
import time

import pytest
from locks.redlock.several import LONG
from servers import wait_until


@pytest.mark.parametrize("busy", [False, True])
def test_interrupted_anywhere(three, busy):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    holder, lock = three.lock(), three.lock()
    if busy:
        holder.acquire()
        wait_until(lambda: three.held(lock.key) == 3)
    interrupted = 0
    for _ in range(25):
        timer = threading.Timer(rng.uniform(0, 0.003), _thread.interrupt_main)
        try:
            timer.start()
            lock.acquire(timeout=LONG)
            lock.release()
            while timer.is_alive():
                time.sleep(0.001)
            time.sleep(0.001)
        except KeyboardInterrupt:
            interrupted += 1
        assert lock.token is None
        if busy:
            assert three.tokens(lock.key) == [holder.token] * 3
        else:
            assert three.held(lock.key) == 0
    assert interrupted
    if busy:
        holder.release()
    with lock:
        pass
