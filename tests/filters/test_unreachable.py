"""A server that is not there, or is none: one sentence, and no secret in it."""

from __future__ import annotations

import importlib.util
import socket
import threading
from contextlib import closing

import pytest
import redis
import redis.asyncio

from bloomlock import BloomFilter
from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.runtime import clients
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


@pytest.mark.parametrize(
    "greeting", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\1\2\3", b""], ids=str
)
def test_somebody_else_listens(monkeypatch, greeting):
    is_over, was_silent = threading.Event(), []

    def serve(listener):
        with closing(listener.accept()[0]) as near:
            near.recv(1000)
            if greeting is None:
                was_silent.append(is_over.wait(60))
            elif greeting:
                near.sendall(greeting)

    if greeting is None:
        monkeypatch.setattr(clients, "CONNECT_TIMEOUT", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        is_refused(f"redis://127.0.0.1:{port}/0", "no Redis server answers at redis:")
        is_over.set()
        thread.join(60)
    if greeting is None:
        assert was_silent == [True], "the client waits no longer than its time-out"


def test_the_environment_names_the_server(valkey, monkeypatch):
    monkeypatch.setenv("REDIS_URL", "unix:///nowhere.sock")
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    with BloomFilter("by environment", 100) as made:
        assert made.add("a")
        made.delete()
    monkeypatch.setenv("BLOOMLOCK_URL", "nonsense")
    with pytest.raises(ConfigurationError, match="BLOOMLOCK_URL must be .* not 'nonsense'"):
        BloomFilter("x", 100)
