"""Bad input gets one sentence with parameter, value and what is allowed; nothing is sent."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import redis
import redis.asyncio

from bloomlock import (
    AsyncLock,
    AsyncRedlock,
    FairLock,
    Lock,
    ReadWriteLock,
    Redlock,
    ReentrantLock,
)
from bloomlock.errors import ConfigurationError

SECONDS = [-1, 0, math.nan, math.inf, "5", True, np.True_, [1]]
SHARED = {
    "name": [None, "", 5, b"job", "a" * 2000, "\ud800"],
    "ttl": [*SECONDS, 0.04, 10**9],
    "max_hold": [-1, 0, 0.01, math.nan, "5", False],
    "blocking_timeout": [-1, -0.1, math.nan, "5", True],
    "prefix": [None, "{", "a}b", b"x"],
    **{key: ["yes", 2, 0.5, []] for key in ("renew", "blocking", "thread_local")},
    **{key: [5] for key in ("on_lost", "observer")},
}
ONE_SERVER = {
    "client": [5, "localhost", "http://localhost", object(), redis.asyncio.Redis(port=1)],
    "timeout": [*SECONDS, 0.04],
    "replicas": [-1, 0.5, "1", None, True],
}
URLS = ["redis://a:1", "redis://b:1"]
SEVERAL = {
    "clients": [[], "redis://a:1", None, 5, [*URLS, None], [*URLS, URLS[0]], [*URLS, "x"]],
    "server_timeout": [0, -1, "1", 31.0],
    "longest_ttl": [-1, 29.0, "x", math.nan],
}


def refused(make, parameter, value, **options):
    with pytest.raises(ConfigurationError, match=f"^{parameter}") as caught:
        made = make(**options | {parameter: value})
        if parameter == "client":
            asyncio.run(made.acquire())
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert " not " in sentence or " same" in sentence or " twice" in sentence
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("make", [Lock, FairLock, ReentrantLock, ReadWriteLock, AsyncLock])
@pytest.mark.parametrize("parameter", SHARED | ONE_SERVER)
def test_constructor(make, parameter):
    # Nothing listens there: whoever asked first would raise something else. In asyncio the client
    # is looked at when the lock is first used.
    client = (redis.asyncio if make is AsyncLock else redis).Redis(port=1)
    for value in (SHARED | ONE_SERVER)[parameter]:
        if not (make is AsyncLock and isinstance(value, redis.asyncio.Redis)):
            refused(make, parameter, value, name="job", client=client)


@pytest.mark.parametrize("make", [Redlock, AsyncRedlock])
@pytest.mark.parametrize("parameter", SHARED | SEVERAL)
def test_constructor_of_several_servers(make, parameter):
    for value in (SHARED | SEVERAL)[parameter]:
        refused(make, parameter, value, name="job", clients=URLS)


@pytest.mark.parametrize("make", [Redlock, AsyncRedlock])
def test_options_that_only_one_server_has(make):
    for option in ("replicas", "timeout", "nonsense"):
        with pytest.raises(TypeError, match=f"Redlock has no parameter '{option}'"):
            make("job", URLS, **{option: 1})


def test_the_list_of_servers_and_contradictions():
    sync, asynchronous = redis.Redis(), redis.asyncio.Redis()
    for kind, clients, sentence in (
        (Redlock, ["http://user:pw@a"], r"clients\[0\] must be one of .* not 'http://\*\*\*@a'"),
        (Redlock, ["redis://a:1", "redis://b:1", "redis://a:1/7"], r"\[0\] and clients\[2\] are"),
        (AsyncRedlock, ["unix:///s", "unix:///s?db=3"], "are the same one"),
        (Redlock, ["redis://a", "redis://a:6379"], "are the same one"),
        (Redlock, [sync, sync], "are the same one"),
        (AsyncRedlock, [asynchronous, "redis://localhost:6379/3"], "are the same one"),
        (Redlock, [asynchronous], r"clients\[0\] must be one of the redis-py"),
        (AsyncRedlock, [sync], r"clients\[0\] must be one of the redis.asyncio"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            kind("job", clients)
    with pytest.raises(ConfigurationError, match="^ttl and timeout mean the same"):
        Lock("job", sync, ttl=5, timeout=5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"blocking": "no"}, "blocking must be True or False, not 'no'"),
        ({"blocking": 0.1}, "blocking must be True or False, not 0.1"),
        ({"blocking": False, "timeout": 1}, "timeout must be None if blocking is False, not 1"),
        ({"timeout": -1}, "timeout .* not -1"),
        ({"timeout": math.nan}, "timeout .* not nan"),
        ({"timeout": "5"}, "timeout .* not '5'"),
        ({"timeout": 1, "blocking_timeout": 2}, "timeout and blocking_timeout mean the same"),
        ({"blocking_timeout": -1}, "blocking_timeout .* not -1"),
    ],
)
def test_acquire(arguments, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        Lock("job", client=redis.Redis(port=1)).acquire(**arguments)

    async def main():
        with pytest.raises(ConfigurationError, match=sentence):
            await AsyncLock("job", client=redis.asyncio.Redis(port=1)).acquire(**arguments)

    asyncio.run(main())


def test_extend(r):
    with Lock("job", client=r) as lock:
        before = r.info("stats")["total_commands_processed"]
        for value in (0, -1, math.nan, "5", True, 10**9):
            with pytest.raises(ConfigurationError, match="^ttl must be a number of seconds"):
                lock.extend(value)
        assert r.info("stats")["total_commands_processed"] == before + 1
        assert lock.owned()


@pytest.mark.parametrize("number", [np.int64, np.uint8, np.float32, np.float64])
def test_numbers_and_flags_of_numpy_are_taken(r, number):
    options = {"max_hold": number(40), "blocking_timeout": number(1), "replicas": np.int8(0)}
    lock = Lock("job", r, number(30), blocking=np.True_, thread_local=np.False_, **options)
    assert lock.ttl == 30.0
    assert lock.acquire(timeout=number(1))
    assert lock.extend(number(20))
    assert Lock("job", r).acquire(np.False_) is False
    lock.release()
