"""Bad input gets one sentence with parameter, value and what is allowed; nothing is sent."""

from __future__ import annotations

import asyncio
import math

import pytest
import redis
import redis.asyncio
from proxy import Proxy

from bloomlock import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncReentrantLock,
    ConfigurationError,
    FairLock,
    Lock,
    ReadWriteLock,
    ReentrantLock,
)

SECONDS = [-1, 0, math.nan, math.inf, "5", True, [1]]
CONSTRUCTOR = [
    *(("name", value) for value in (None, "", 5, b"job", "a" * 2000, "\ud800")),
    *(("client", value) for value in (5, "localhost", "http://localhost", object())),
    *(("ttl", value) for value in [*SECONDS, 0.04, 10**9]),
    *(("timeout", value) for value in [*SECONDS, 0.04]),
    *(("max_hold", value) for value in [-1, 0, 0.01, math.nan, "5", False]),
    *(("blocking_timeout", value) for value in [-1, -0.1, math.nan, "5", True]),
    *(("sleep", value) for value in [-1, math.nan, "5"]),
    *(("replicas", value) for value in [-1, 0.5, "1", None, True]),
    *(("prefix", value) for value in [None, "{", "a}b", b"x"]),
    *(
        (flag, value)
        for flag in ("renew", "blocking", "thread_local", "raise_on_release_error")
        for value in ("yes", 2, 0.5, [])
    ),
    *((function, 5) for function in ("on_lost", "observer")),
]
ACQUIRE = [
    ({"blocking": "no"}, "blocking must be True or False, not 'no'"),
    ({"blocking": 0.1}, "blocking must be True or False, not 0.1"),
    ({"blocking": False, "timeout": 1}, "timeout must be -1 if blocking is False, not 1"),
    ({"blocking": False, "timeout": -2}, "timeout .* not -2"),
    ({"timeout": -2}, "timeout .* not -2"),
    ({"timeout": math.nan}, "timeout .* not nan"),
    ({"timeout": "5"}, "timeout .* not '5'"),
    ({"timeout": 1, "blocking_timeout": 2}, "timeout and blocking_timeout mean the same"),
    ({"blocking_timeout": -1}, "blocking_timeout .* not -1"),
    ({"sleep": -1}, "sleep .* not -1"),
    ({"token": ""}, "token must be .* not ''"),
    ({"token": "a b"}, "token must be .* not 'a b'"),
    ({"token": 5}, "token must be .* not 5"),
    ({"token": "=read"}, "token must not start with '='"),
    ({"token": "\ud800"}, "token must be"),
]


@pytest.mark.parametrize("make", [Lock, FairLock, ReentrantLock, ReadWriteLock])
@pytest.mark.parametrize(("parameter", "value"), CONSTRUCTOR)
def test_constructor(make, parameter, value):
    # Nothing listens there: whoever asked first would raise something else.
    options = {"name": "job", "client": redis.Redis(port=1)} | {parameter: value}
    with pytest.raises(ConfigurationError) as caught:
        make(**options)
    sentence = str(caught.value)
    assert sentence.startswith(parameter)
    assert "\n" not in sentence
    assert " not " in sentence
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("make", [AsyncLock, AsyncReentrantLock, AsyncReadWriteLock])
@pytest.mark.parametrize(
    # The client is looked at when the lock is first used; see below.
    ("parameter", "value"),
    [case for case in CONSTRUCTOR if case[0] != "client"],
)
def test_constructor_for_asyncio(make, parameter, value):
    with pytest.raises(ConfigurationError, match=f"^{parameter}"):
        make(**{"name": "job", "client": redis.asyncio.Redis(port=1)} | {parameter: value})


@pytest.mark.parametrize(("arguments", "sentence"), ACQUIRE)
def test_acquire(arguments, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        Lock("job", client=redis.Redis(port=1)).acquire(**arguments)

    async def main():
        with pytest.raises(ConfigurationError, match=sentence):
            await AsyncLock("job", client=redis.asyncio.Redis(port=1)).acquire(**arguments)

    asyncio.run(main())


@pytest.mark.parametrize("value", [0, -1, math.nan, "5", True, 10**9])
def test_extend(r, valkey, value):
    with (
        Proxy(valkey) as proxy,
        redis.Redis.from_url(proxy.url) as client,
        Lock("job", client=client) as lock,
    ):
        before = len(proxy.seen)
        with pytest.raises(ConfigurationError, match="^ttl must be a number of seconds"):
            lock.extend(value)
        assert len(proxy.seen) == before
        assert lock.owned()


@pytest.mark.parametrize("owner", ["", 5, b"x"])
def test_owner(owner):
    for make in (ReentrantLock, AsyncReentrantLock):
        with pytest.raises(ConfigurationError, match="^owner must be a text"):
            make("job", client="redis://localhost", owner=owner)


def test_ttl_and_timeout_contradict_each_other():
    with pytest.raises(ConfigurationError, match="^ttl and timeout mean the same"):
        Lock("job", client=redis.Redis(port=1), ttl=5, timeout=5)


def test_a_client_of_the_other_kind():
    with pytest.raises(ConfigurationError, match="^client must be .* not an asyncio client"):
        Lock("job", client=redis.asyncio.Redis(port=1))

    async def main():
        for client in (redis.Redis(port=1), 5, "localhost"):
            with pytest.raises(ConfigurationError, match="^client must be"):
                await AsyncLock("job", client=client).acquire()

    asyncio.run(main())
