"""Step 10: first come, first served. A dead waiter in everybody's way, a live one thrown out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import redis
from road.gate import LONG, Gate
from road.queueing import ListQueue, ScoreQueue
from servers import wait_until

from bloomlock import FairLock


def test_in_a_list_a_dead_waiter_blocks_all_behind_it(client):
    dead, other = ListQueue(client, "job"), ListQueue(client, "job")
    dead.enqueue()
    other.enqueue()
    assert client.get("job") is None  # nobody holds it, and nobody ever will
    assert [other.try_it() for _ in range(50)] == 50 * [False]
    assert client.pttl("job:queue") == -1


def served_after_a_retreat(server_url, client, *, lost):
    """Three wait, the first gives up: does the third get the lock, and is the second thrown out?"""
    client.flushall()
    with Gate(server_url) as gate, gate.client(retries=1) as r:
        waiters = [ScoreQueue(r, "job"), ScoreQueue(client, "job"), ScoreQueue(client, "job")]
        for waiter in waiters:
            waiter.enqueue()
        if lost:  # the reply, and the client sends it again by itself
            gate.deafen(0)
        waiters[0].leave()
        assert gate.lost == lost
    served = waiters[2].try_it()
    return served, waiters[1].token not in client.zrange("job:queue", 0, -1)


def test_a_retreat_that_is_repeated_throws_out_who_lives(server_url, client):
    assert served_after_a_retreat(server_url, client, lost=True) == (True, True)


def test_a_retreat_that_is_not_repeated_throws_out_nobody(server_url, client):
    assert served_after_a_retreat(server_url, client, lost=False) == (False, False)


WAITER = """
import sys
from bloomlock import FairLock
FairLock("job", client=sys.argv[1], ttl=float(sys.argv[2])).acquire()
"""
LIVENESS = 6.0


class Queue:
    """Who has stood in the queue of ours so far, also if he has left it."""

    def __init__(self, client):
        self._client = client
        self._seen = set()

    def wait_for(self, count, thread=None):
        """Wait until so many have joined, or until a thread has ended; return whether they have."""
        wait_until(lambda: self._look() >= count or (thread and not thread.is_alive()), LONG)
        return len(self._seen) >= count

    def _look(self):
        for key in self._client.keys("*queue*"):
            self._seen.update(self._client.zrange(key, 0, -1))
        return len(self._seen)


def test_ours_keeps_the_order_of_the_living_behind_one_that_died_just_now(server_url, client):
    # It may be handed the lock before it counts as dead, and then has it for its lease.
    assert served_behind_a_dead_waiter(server_url, client, ttl=1.0, pause=0.0) == [0, 1, 2, 3, 4]


def test_ours_skips_a_dead_waiter_after_its_liveness_whatever_its_lease(valkey):
    with redis.Redis.from_url(valkey) as client:
        served = served_behind_a_dead_waiter(valkey, client, ttl=3600.0, pause=LIVENESS + 1.0)
    assert served == [0, 1, 2, 3, 4]


def served_behind_a_dead_waiter(url, client, *, ttl, pause):
    client.flushall()
    queue = Queue(client)
    holder = FairLock("job", client=client)
    assert holder.acquire()
    with subprocess.Popen([sys.executable, "-c", WAITER, url, str(ttl)]) as dead:
        try:
            queue.wait_for(1)
        finally:
            os.kill(dead.pid, signal.SIGKILL)
    got = []
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=take_turn, args=(client, number, got), daemon=True))
        threads[-1].start()
        queue.wait_for(number + 2)
    time.sleep(pause)
    holder.release()
    for thread in threads:
        thread.join(LONG)
    return got


def take_turn(client, number, got):
    with FairLock("job", client=client):
        got.append(number)


def test_ours_loses_nobody_when_a_retreat_is_cut_at_any_command(server_url, client):
    number = 0
    while (lost := retreat_with_a_lost_reply(server_url, client, number)) is not False:
        # Where it was not seen to wait, on a busy machine, nothing is known: once more.
        number += lost is True
    assert number >= 2


def retreat_with_a_lost_reply(server_url, client, number):
    """One gives up waiting and loses one reply; the two behind it are served in order.

    Returns whether a reply was lost; None if its time was up before it was seen in the queue.
    """
    client.flushall()
    holder = FairLock("job", client=client)
    assert holder.acquire()
    got = []
    queue = Queue(client)
    with Gate(server_url, lambda _name, n: "after" if n == number else "pass") as gate:
        quitter = FairLock("job", client=gate.url, ttl=3600.0)
        threads = [
            threading.Thread(target=quitter.acquire, kwargs={"timeout": 0.2}, daemon=True),
            *(
                threading.Thread(target=take_turn, args=(client, place, got), daemon=True)
                for place in (1, 2)
            ),
        ]
        threads[0].start()
        was_there = queue.wait_for(1, threads[0])
        for count, thread in enumerate(threads[1:], start=1 + was_there):
            thread.start()
            queue.wait_for(count)
        threads[0].join(LONG)
        assert not threads[0].is_alive()
        lost = bool(gate.lost)
        holder.release()
        for thread in threads:
            thread.join(LONG)
    assert got == [1, 2]
    return lost if was_there else None
