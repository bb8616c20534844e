"""Bad input: one sentence, before anything is sent."""

from __future__ import annotations

import pytest
import redis
import redis.asyncio

from bloomlock import AsyncRedlock, ConfigurationError, Redlock

URLS = ["redis://a:1", "redis://b:1", "redis://c:1"]


@pytest.mark.parametrize("kind", [Redlock, AsyncRedlock])
@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([], "clients must be a list of at least one"),
        ("redis://a:1", "clients must be a list of .* not 'redis://a:1'"),
        (None, "clients must be a list of .* not None"),
        (["redis://a:1", None], r"clients\[1\] must be one of .* not None"),
        (["http://user:pw@a"], r"clients\[0\] must be one of .* not 'http://\*\*\*@a'"),
        (["redis://a:1", "redis://a:99999999x"], r"clients\[1\] must be the URL"),
        (["redis://a:1", "redis://b:1", "redis://a:1/7"], r"clients\[0\] and clients\[2\] are"),
        (["unix:///s", "unix:///s?db=3"], r"clients\[0\] and clients\[1\] are the same one"),
        (["redis://a", "redis://a:6379"], r"clients\[0\] and clients\[1\] are the same one"),
    ],
)
def test_of_servers(kind, clients, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        kind("job", clients)


def test_clients_of_the_wrong_kind():
    sync, asynchronous = redis.Redis(), redis.asyncio.Redis()
    with pytest.raises(ConfigurationError, match=r"clients\[0\] must be one of the redis-py"):
        Redlock("job", [asynchronous])
    with pytest.raises(ConfigurationError, match=r"clients\[0\] must be one of the redis.asyncio"):
        AsyncRedlock("job", [sync])
    with pytest.raises(ConfigurationError, match="are the same one"):
        Redlock("job", [sync, sync])
    with pytest.raises(ConfigurationError, match="are the same one"):
        AsyncRedlock("job", [asynchronous, "redis://localhost:6379/3"])


@pytest.mark.parametrize("kind", [Redlock, AsyncRedlock])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ttl": 0}, "ttl must be a number of seconds from 0.05 to .* not 0"),
        ({"server_timeout": 0}, "server_timeout must be a number of seconds from 0.001 to 30"),
        ({"server_timeout": 31}, "server_timeout must be .* not 31"),
        ({"server_timeout": "1"}, "server_timeout must be .* not '1'"),
        ({"longest_ttl": 29}, "longest_ttl must be 0 or at least the ttl of 30 seconds, not 29"),
        ({"longest_ttl": -1}, "longest_ttl must be .* not -1"),
        ({"pauses": 0.1}, "pauses must be two numbers of seconds, not 0.1"),
        ({"pauses": (0.2, 0.1)}, r"pauses\[1\] must be a number of seconds from 0.2 on, not 0.1"),
        ({"pauses": (0, 1)}, r"pauses\[0\] must be a number of seconds from 0.001 on, not 0"),
        ({"max_hold": 0}, "max_hold must be"),
        ({"on_lost": 1}, "on_lost must be a function"),
        ({"blocking_timeout": -1}, "blocking_timeout must be"),
        ({"prefix": "{"}, "prefix must be a text without braces"),
    ],
)
def test_of_options(kind, options, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        kind("job", URLS, **options)


def test_of_calls():
    lock = Redlock("job", URLS)
    with pytest.raises(ConfigurationError, match="token must be None for a Redlock, not 'mine'"):
        lock.acquire(token="mine")  # noqa: S106 - no password
    with pytest.raises(ConfigurationError, match="timeout must be -1 if blocking is False"):
        lock.acquire(blocking=False, timeout=1)


def test_the_name():
    with pytest.raises(ConfigurationError, match="name must be a text"):
        Redlock("", URLS)
    assert Redlock("job", URLS).key == "bloomlock:{job}:lock"
    assert repr(Redlock("job", URLS)) == "<Redlock 'job': not held here>"
