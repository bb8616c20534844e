"""Run the lock tests of redis-py and of python-redis-lock against `bloomlock.Lock`.

    python tools/peer_locks.py REDIS_PY PYTHON_REDIS_LOCK

Both are checkouts; pytest-asyncio is needed too. The tests run as they are, over small modules in
place of `redis.lock` and `redis_lock`. Those that differ by intent are named with the reason; any
other failure is status 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ENDLESS = "a lease without an end; here it is 30 s, and renewed"
POLLS = "counts the sleeps of a poller; a waiter here is told"
ADDS = "extend() adds to the lease there, and begins it again here"
CHOSEN = "a token that the caller chooses, or knows before it holds the lock"
WAITS = "a time-out beyond the lease is refused there, and taken here"
TEXTS = "a number as a text, which is an error here"
PRIVATE = "reads what its own class keeps for itself"
SIGNAL = "its list of signals; here it is a message"
LATE = "a waiter learns of a deleted key within 2 s, there at once"
DIFFERS = {
    "test_lock": ENDLESS,
    "test_extending_lock_with_no_timeout_raises_error": ENDLESS,
    "test_reacquiring_lock_with_no_timeout_raises_error": ENDLESS,
    "test_context_manager_reacquiring_lock_with_no_timeout_raises_error": ENDLESS,
    "test_lock_token": CHOSEN,
    "test_lock_token_thread_local_false": CHOSEN,
    "test_blocking": PRIVATE,
    "test_blocking_timeout": POLLS,
    "test_context_manager_blocking_timeout": POLLS,
    "test_high_sleep_small_blocking_timeout": POLLS,
    "test_extend_lock": ADDS,
    "test_extend_lock_float": ADDS,
    "test_timeout_int_conversion": TEXTS,
    "test_expire_int_conversion": TEXTS,
    "test_borken_expires": TEXTS,
    "test_expire_less_than_timeout": WAITS,
    "test_extend_lock_without_expire_fail": ENDLESS,
    "test_auto_renewal_bad_values": ENDLESS,
    "test_extend_another_instance": CHOSEN,
    "test_owner_id": CHOSEN,
    "test_get_owner_id": CHOSEN,
    "test_token": CHOSEN,
    "test_given_id": CHOSEN,
    "test_bogus_release": CHOSEN,
    "test_locked_method": CHOSEN,
    "test_no_auto_renewal": PRIVATE,
    "test_auto_renewal": PRIVATE,
    "test_auto_renewal_stops_after_gc": PRIVATE,
    "test_upgrade": PRIVATE,
    "test_release_from_nonblocking_leaving_garbage": SIGNAL,
    "test_signal_expiration": SIGNAL,
    "test_reset_signalizes": LATE,
    "test_reset_all_signalizes": LATE,
}
CLIENT = """
import redis
import redis.asyncio

def _mapped(words):
    return [f"bloomlock:{{{word}}}:lock" if word == "foo" else word for word in words]

class Client(redis.Redis):
    def execute_command(self, *words, **options):
        return super().execute_command(*_mapped(words), **options)

class AsyncClient(redis.asyncio.Redis):
    async def execute_command(self, *words, **options):
        return await super().execute_command(*_mapped(words), **options)
"""
REDIS_PY = """
import pytest
from bloomlock import AsyncLock, Lock
from bloomlock.server import PrivateServer
from peer_client import AsyncClient, Client
from types import SimpleNamespace

class Local:
    @property
    def local(self):
        token = self.token
        return SimpleNamespace(token=token and token.encode())

class PeerLock(Local, Lock): ...
class AsyncPeerLock(Local, AsyncLock): ...

@pytest.fixture(scope="session")
def url():
    with PrivateServer() as server:
        yield server.url

def _get_client(cls, request, **options):
    return Client.from_url(request.getfixturevalue("url"), **options)

@pytest.fixture
def r(url):
    with Client.from_url(url) as client:
        client.flushall()
        yield client

@pytest.fixture
def create_redis(url):
    return lambda **options: AsyncClient.from_url(url, **options)
"""
ASYNC_R = """
import pytest_asyncio

@pytest_asyncio.fixture
async def r(url):
    async with AsyncClient.from_url(url) as client:
        await client.flushall()
        yield client
"""
REDIS_LOCK = """
import bloomlock
from bloomlock.errors import ConfigurationError, LockError, LockNotOwnedError

class AlreadyAcquired(RuntimeError): ...
class NotAcquired(RuntimeError): ...
class NotExpirable(RuntimeError): ...
class InvalidTimeout(ValueError): ...
class TimeoutNotUsable(ValueError): ...
class TimeoutTooLarge(ValueError): ...

class Lock:
    def __init__(self, client, name, expire=None, id=None, auto_renewal=False, strict=True,
                 signal_expire=1000, blocking=True):
        if id is not None:
            raise NotImplementedError("a token that the caller chooses")
        renew = auto_renewal or expire is None
        self._lock = bloomlock.Lock(name, client, expire, renew=renew, blocking=blocking)
        self._client = client
        self._name = self._lock.key

    id = property(lambda self: self._lock.token)

    def acquire(self, blocking=None, timeout=None):
        if timeout is not None and timeout != "foobar" and int(timeout) < 0:
            raise InvalidTimeout
        if blocking is False and timeout is not None:
            raise TimeoutNotUsable
        try:
            return self._lock.acquire(blocking, timeout)
        except LockError as error:
            raise AlreadyAcquired from error
        except ConfigurationError as error:
            raise ValueError("invalid literal for int() with base 10: 'foobar'") from error

    def release(self):
        try:
            self._lock.release()
        except LockNotOwnedError as error:
            raise NotAcquired from error

    def extend(self, expire=None):
        try:
            return self._lock.extend(expire)
        except LockNotOwnedError as error:
            raise NotAcquired from error

    def __enter__(self):
        if not self.acquire():
            raise NotAcquired
        return self

    def __exit__(self, *error):
        self.release()

    def locked(self):
        return self._lock.locked()

    def get_owner_id(self):
        return self._client.get(self._name)

    def reset(self):
        self._client.delete(self._name)

def reset_all(client):
    for key in client.scan_iter("bloomlock:*:lock"):
        client.delete(key)

reset_all_script = None
"""
LOCK_CONFTEST = """
import pytest
from bloomlock.server import PrivateServer

@pytest.fixture(scope="session")
def redis_server():
    with PrivateServer() as server:
        yield server

@pytest.fixture
def redis_socket(redis_server):
    return redis_server.url.removeprefix("unix://").partition("?")[0]
"""
PROCESS_TESTS = """
import pytest

def _refuse(*_, **__):
    pytest.skip("reads the log lines of its own library in another process")

TestProcess = dump_on_error = wait_for_strings = _refuse
"""


def write(folder: Path, **files: str) -> None:
    """Write Python files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def lay_out(folder: Path, redis_py: Path, redis_lock: Path) -> None:
    """Write the tests of both, and what stands in place of their libraries."""
    adapted = (redis_py / "tests/test_lock.py").read_text()
    adapted = adapted.replace(
        "from redis.lock import Lock", "from conftest import PeerLock as Lock"
    )
    adapted = adapted.replace("from .conftest import", "from conftest import")
    write(folder / "sync", peer_client=CLIENT, conftest=REDIS_PY, test_lock=adapted)
    adapted = (redis_py / "tests/test_asyncio/test_lock.py").read_text()
    adapted = re.sub(
        r"from redis.asyncio.lock import Lock",
        "from conftest import AsyncPeerLock as Lock",
        adapted,
    )
    write(folder / "asyncio", peer_client=CLIENT, conftest=REDIS_PY + ASYNC_R, test_lock=adapted)
    tests = (redis_lock / "tests/test_redis_lock.py").read_text()
    tests = tests.replace("'lock:' + name", "f'bloomlock:{{{name}}}:lock'")
    write(
        folder / "redis_lock",
        redis_lock=REDIS_LOCK,
        conftest=LOCK_CONFTEST,
        process_tests=PROCESS_TESTS,
        config="HELPER = ''\nTIMEOUT = 10\n",
        test_redis_lock=tests,
    )


def main() -> int:
    """Run them all, and say of each failure whether it is meant."""
    redis_py, redis_lock = map(Path, sys.argv[1:])
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        lay_out(Path(name), redis_py, redis_lock)
        for suite in ("sync", "asyncio", "redis_lock"):
            command = [sys.executable, "-m", "pytest", "-q", "-rfEs", "--tb=no", "--timeout=60"]
            command += ["-p", "no:cacheprovider", "--rootdir=.", "-k", "not valkey and not True-de"]
            command += ["-o", "asyncio_mode=auto"] * (suite == "asyncio")
            done = subprocess.run(  # noqa: S603 - pytest, over tests laid out above
                command, cwd=Path(name) / suite, capture_output=True, text=True, check=False
            )
            found = re.findall(
                r"^(?:FAILED|ERROR) [^:\n]*(?:::\w+)*::(\w+)", done.stdout, re.MULTILINE
            )
            [said] = re.findall(r"^.* in [\d.]+s.*$", done.stdout, re.MULTILINE)[-1:] or [
                done.stderr
            ]
            print(f"{suite}: {said}")
            for test, count in sorted(Counter(found).items()):
                bad += test not in DIFFERS
                print(f"  {test} ({count}): {DIFFERS.get(test, 'NOT MEANT')}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
