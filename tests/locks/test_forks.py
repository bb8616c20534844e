"""A child of fork holds nothing; what a process holds at its end is given back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import traceback

import pytest
from contract.lock_backends import TTL
from lock_tools import is_free, queue_of
from people import Person
from servers import wait_until

from bloomlock import FairLock, Lock, ReadWriteLock, ReentrantLock
from bloomlock.errors import LockNotOwnedError

MAKE = {
    "lock": Lock,
    "shared": lambda *args, **options: Lock(*args, thread_local=False, **options),
    "fair": FairLock,
    "reentrant": ReentrantLock,
    "read": lambda *args, **options: ReadWriteLock(*args, **options).read,
}


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
def test_a_child_holds_nothing(r, make, clock):
    events = []
    lock = make("job", client=r, ttl=TTL, observer=events.append)
    with lock:
        token, fence = lock.token, lock.fence

        def look():
            assert (lock.token, lock.fence, lock.remaining()) == (None, None, 0.0)
            assert lock.owned() is False
            assert not lock.lost.is_set()
            for refused in (lock.release, lock.check, lock.extend):
                with pytest.raises(LockNotOwnedError):
                    refused()
            assert Lock("job", client=r).acquire(blocking=False) is False
            # It renews what it holds itself, and nothing of its parent's.
            mine = []
            with Lock("other", client=r, ttl=TTL, observer=mine.append):
                r.pexpire(lock.key, 50_000)
                clock.advance(0.4 * TTL)
                wait_until(lambda: len(mine) == 2)
                assert r.pttl(lock.key) <= 50_000
            return "fine"

        assert in_child(look) == "fine"
        assert (lock.token, lock.fence) == (token, fence)
        clock.advance(0.4 * TTL)
        wait_until(lambda: any(event.kind == "renewed" for event in events))
        assert lock.owned()
    assert is_free(r, lock)


def test_a_child_locks_by_itself_with_tokens_of_its_own(r):
    lock = Lock("job", client=r, ttl=TTL)
    with lock:
        pass

    def work():
        with lock:
            return f"{lock.token} {lock.fence}"

    answers = [in_child(work).split() for _ in range(3)]
    with lock:
        answers.append([lock.token, lock.fence])
    fences = [int(fence) for _, fence in answers]
    assert len({token for token, _ in answers}) == 4
    assert fences == sorted(set(fences))
    assert is_free(r, lock)


def test_a_child_of_a_waiting_parent_waits_by_itself(r):
    holder, waiter = Lock("job", r, TTL, thread_local=False), Lock("job", r, TTL)
    first, second = Person(), Person()
    holder.acquire()
    waiting = first.start(waiter.acquire)
    wait_until(lambda: queue_of(r, waiter) == 1)

    def work():
        with waiter:
            return "fine"

    answer = second.start(in_child, work)
    wait_until(lambda: queue_of(r, waiter) == 2)
    holder.release()
    assert waiting.result(TTL) is True
    first(waiter.release)
    assert answer.result(TTL) == "fine"
    assert is_free(r, waiter)
    for person in (first, second):
        person.end()


# -- the end of a process ------------------------------------------------------------------------

START = """
import os, signal, sys, threading, time
from bloomlock import Lock, ReadWriteLock, Redlock
url = sys.argv[1]
def hold(lock):
    assert lock.acquire()
    return lock
"""
RELEASED = {
    "end of the script": "lock = hold(Lock('job', url))",
    "exception": "lock = hold(Lock('job', url)); raise ValueError",
    "a lock object that is no more": "hold(Lock('job', url, renew=False))",
    "readers": "lock = hold(ReadWriteLock('job', url).read)",
    "a thread that has ended": """
lock = Lock('job', url)
thread = threading.Thread(target=lock.acquire)
thread.start(); thread.join()""",
    "Redlock": "lock = hold(Redlock('job', [url], longest_ttl=0))",
    "SIGTERM with a handler": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
lock = hold(Lock('job', url)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)""",
}
LEFT = {
    "os._exit": "lock = hold(Lock('job', url)); os._exit(0)",
    "SIGTERM": """
lock = hold(Lock('job', url))
os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)""",
    "a daemon thread that runs": """
lock, held = Lock('job', url), threading.Event()
def work():
    lock.acquire(); held.set(); time.sleep(60)
threading.Thread(target=work, daemon=True).start()
held.wait()""",
}


def run(body, url):
    command = [sys.executable, "-c", START + body, url]
    return subprocess.run(command, timeout=600, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("body", RELEASED.values(), ids=RELEASED)
def test_what_a_process_holds_when_it_exits_is_released(r, valkey, body):
    done = run(body, valkey)
    assert is_free(r, Lock("job", r)), done.stderr
    assert "left to expire" not in done.stderr


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_work_may_go_on_under_is_left_to_expire(r, valkey, body):
    run(body, valkey)
    assert r.pttl(Lock("job", r).key) > 0


def test_the_exit_of_a_child_releases_nothing_of_its_parents(r, valkey):
    body = """
lock = hold(Lock('job', url))
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
lock.check()
assert lock.owned()
print("held")
"""
    assert run(body, valkey).stdout == "held\n"
    assert is_free(r, Lock("job", r))


def test_an_atexit_handler_can_take_a_lock_and_a_claim(valkey):
    """From Python 3.12 on no thread can be started by then."""
    body = """
import atexit
from bloomlock import BloomFilter
@atexit.register
def flush():
    with Lock('job', url), BloomFilter('pages', 1000, client=url).claim('a') as claim:
        print(claim.state.name)
"""
    done = run(body, valkey)
    assert (done.stdout, done.stderr) == ("NEW\n", "")


def test_a_server_that_is_stopped_does_not_keep_the_process_from_ending(stoppable):
    body = """
locks = [hold(Lock(name, url + '&socket_timeout=3600')) for name in ('job', 'more')]
print('held', flush=True); sys.stdin.readline()"""
    pid, pipe = stoppable.pid, subprocess.PIPE
    command = [sys.executable, "-c", START + body, stoppable.url]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        os.kill(pid, signal.SIGSTOP)
        try:
            # The client would wait for an hour.
            process.communicate("end\n", timeout=600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
