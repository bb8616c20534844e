"""What a process still holds when it ends: given back where the end lets it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from lock_tools import LONG, is_free

from bloomlock import Lock
from bloomlock.server import PrivateServer

START = """
import asyncio, os, signal, sys, threading, time
import redis, redis.asyncio
from bloomlock import AsyncLock, AsyncRedlock, Lock, ReadWriteLock, Redlock
url = sys.argv[1]
def hold(lock):
    assert lock.acquire()
    return lock
"""
RELEASED = {
    "end of the script": "lock = hold(Lock('job', url))",
    "sys.exit": "lock = hold(Lock('job', url)); sys.exit(3)",
    "exception": "lock = hold(Lock('job', url)); raise ValueError",
    "a lock object that is no more": "hold(Lock('job', url))",
    "readers": "lock = hold(ReadWriteLock('job', url).read)",
    "not renewed": "lock = hold(Lock('job', url, renew=False))",
    "a thread that has ended": """
lock = Lock('job', url)
thread = threading.Thread(target=lock.acquire)
thread.start(); thread.join()""",
    "Redlock": "lock = hold(Redlock('job', [url], longest_ttl=0))",
    "SIGTERM with a handler": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
lock = hold(Lock('job', url)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)""",
    "asyncio": """
lock = AsyncLock('job', url)
asyncio.run(lock.acquire())""",
    "asyncio: an exception": """
async def main():
    lock = AsyncLock('job', url)
    await lock.acquire()
    raise ValueError
asyncio.run(main())""",
    "asyncio: Redlock": """
lock = AsyncRedlock('job', [url], longest_ttl=0)
asyncio.run(lock.acquire())""",
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
    return subprocess.run(command, timeout=LONG, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("body", RELEASED.values(), ids=RELEASED)
def test_released(r, valkey, body):
    done = run(body, valkey)
    assert is_free(r, Lock("job", r)), done.stderr
    assert "left to expire" not in done.stderr


GONE = {
    "threads": """
locks = [hold(Lock(str(number), url)) for number in range(3)]
redis.Redis.from_url(url).shutdown(nosave=True)""",
    "asyncio": """
async def main():
    global locks
    locks = [AsyncLock(str(number), url) for number in range(3)]
    for lock in locks:
        await lock.acquire()
    redis.Redis.from_url(url).shutdown(nosave=True)
asyncio.run(main())""",
}


@pytest.mark.parametrize("body", GONE.values(), ids=GONE)
def test_a_server_that_is_gone_is_reported_once(body):
    with PrivateServer() as server:
        done = run(body, server.url)
    assert done.stderr.count("left to expire") == 1, done.stderr
    assert "3 locks were not released at the end" in done.stderr


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_left_to_expire(r, valkey, body):
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


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_server_that_is_stopped_holds_up_the_end_a_second(kind):
    body = """
from bloomlock.server import PrivateServer
server = PrivateServer(); server.__enter__()
pid = redis.Redis.from_url(server.url).info("server")["process_id"]
end = f"{server.url}&socket_timeout=50"
if sys.argv[1] == "threads":
    lock = hold(Lock('job', end))
    os.kill(pid, signal.SIGSTOP)
else:
    async def main():
        lock = AsyncLock('job', end)
        await lock.acquire()
        os.kill(pid, signal.SIGSTOP)
    asyncio.run(main())
print(pid, flush=True)
"""
    command = [sys.executable, "-c", START + body, kind]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        pid = int(process.stdout.readline())
        try:
            # The client would wait for 50 s.
            _, errors = process.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "is left to expire" in errors
    assert "destroyed" not in errors
