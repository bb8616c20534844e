"""A server that is not there: one sentence, and no secret in it."""

from __future__ import annotations

import importlib.util
import socket
from contextlib import closing

import pytest
import redis
import redis.asyncio

from bloomlock import BloomFilter
from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.runtime.background import GRACE_SECONDS


def test_a_client_of_the_other_kind(valkey):
    with pytest.raises(ConfigurationError, match="use AsyncBloomFilter"):
        BloomFilter("x", 1000, client=redis.asyncio.Redis.from_url(valkey))


def is_refused(url, says):
    with pytest.raises(ServerError, match=says) as caught:
        BloomFilter("x", 1000, client=url)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, redis.ConnectionError)


def test_a_url_that_does_not_answer_is_known_soon():
    # The tests have longer ones; this is the module as it is delivered.
    spec = importlib.util.find_spec("bloomlock.runtime.clients")
    delivered = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(delivered)
    assert delivered.CONNECT_TIMEOUT <= 1
    assert GRACE_SECONDS < 1


def test_nobody_listens():
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        is_refused(f"redis://:secret@127.0.0.1:{port}/0", r"redis://\*\*\*@127\.0\.0\.1")
    is_refused("unix:///nowhere/at/all.sock", "no Redis server answers at unix:")


def test_the_environment_names_the_server(valkey, monkeypatch):
    monkeypatch.setenv("REDIS_URL", "unix:///nowhere.sock")
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    with BloomFilter("by environment", 100) as made:
        assert made.add("a")
        made.delete()
    monkeypatch.setenv("BLOOMLOCK_URL", "nonsense")
    with pytest.raises(ConfigurationError, match="BLOOMLOCK_URL must be .* not 'nonsense'"):
        BloomFilter("x", 100)
