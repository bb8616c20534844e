"""Every public object is picklable, or refused in one sentence; and so is every client."""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
import pickle

import pytest
import redis
import redis.asyncio
import redis.connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.credentials import UsernamePasswordCredentialProvider
from redis.retry import Retry

import bloomlock
from bloomlock import AsyncBloomFilter, AsyncLock, BloomFilter, Lock, errors
from bloomlock.errors import ConfigurationError

NUMBERS = itertools.count()
REFUSED = "^client must be a redis-py client or a URL"


@pytest.fixture
def objects(r, valkey):
    seen = BloomFilter("x", 100, client=r)
    seen.claim("failed", max_attempts=1).abandon("why")

    async def claim():
        async with AsyncBloomFilter("x", 100, client=valkey) as made:
            return await made.claim("b")

    events = []
    held = Lock("held", r, observer=events.append)
    held.acquire()
    claimed = seen.claim("a")
    made = {type(each).__name__: each for each in (*events, claimed, claimed.state, seen)}
    for each in (seen.info(), seen.count_claims(), *seen.open_claims(), *seen.failed()):
        made[type(each).__name__] = each
    made |= {
        "AsyncBloomFilter": AsyncBloomFilter("x", 100, client=valkey),
        "AsyncClaim": asyncio.run(claim()),
        "Growth": bloomlock.Growth(),
        "LockStrategy": bloomlock.LockStrategy(),
        "MemoryBloomFilter": bloomlock.MemoryBloomFilter(100),
        "NearCache": bloomlock.NearCache(9),
        "Plan": bloomlock.plan(100, 0.01),
        "Window": bloomlock.Window(60),
    }
    for name in bloomlock.__all__:
        if name.endswith(("Lock", "Redlock")):
            client = redis.asyncio.Redis.from_url(valkey) if name.startswith("Async") else r
            made[name] = getattr(bloomlock, name)("x", [client] if "Red" in name else client)
    yield made
    held.release()


def repickled(one):
    return pickle.loads(pickle.dumps(one))  # noqa: S301 - our own


def test_every_public_object_is_picklable_or_refused(objects):
    classes = [name for name in bloomlock.__all__ if inspect.isclass(getattr(bloomlock, name))]
    assert set(classes) <= set(objects)
    for name, made in objects.items():
        for move in (repickled, copy.copy, copy.deepcopy):
            if name.endswith(("Filter", "Lock", "Redlock")) or name in ("Claim", "AsyncClaim"):
                with pytest.raises(TypeError, match=f"^{name}.* cannot be pickled"):
                    move(made)
            else:
                assert type(move(made)) is type(made)


def test_every_error_is_picklable():
    for name, found in vars(errors).items():
        if inspect.isclass(found) and issubclass(found, errors.BloomlockError):
            made = repickled(found("what went wrong"))
            assert (type(made), str(made)) == (found, "what went wrong"), name


OPTIONS = [
    {},
    {"decode_responses": True},
    {"protocol": 2},
    {"protocol": 3, "decode_responses": True},
    {"health_check_interval": 1},
    {"retry": Retry(NoBackoff(), 3)},
    {"retry_on_timeout": True},
    {"retry_on_error": [redis.ConnectionError]},
    {"single_connection_client": True},
    {"max_connections": 1},
    {"encoding": "latin-1", "client_name": "me"},
]
CONNECTIONS = {
    "threads": redis.connection.UnixDomainSocketConnection,
    "asyncio": redis.asyncio.UnixDomainSocketConnection,
}
PARSERS = (redis._parsers._HiredisParser, redis._parsers._RESP2Parser)


def is_used(client):
    name = f"item {next(NUMBERS)}"
    made = BloomFilter("x", 1000, client=client)
    assert made.add_many([name, name]) == [True, False]
    assert made.exists(name)
    made.claim(f"claimed {name}").commit()
    with Lock(name, client):
        assert not Lock(name, client).acquire(timeout=0.01)


async def is_used_in_asyncio(client):
    name = f"item {next(NUMBERS)}"
    async with client:
        made = await AsyncBloomFilter("x", 1000, client=client)
        assert await asyncio.gather(made.add(name), made.exists("b")) == [True, False]
        await (await made.claim(f"claimed {name}")).commit()
        async with AsyncLock(name, client):
            assert not await AsyncLock(name, client).acquire(timeout=0.01)


def test_every_kind_of_client_is_used(r, valkey):
    for options in OPTIONS:
        with redis.Redis.from_url(valkey, **options) as client:
            is_used(client)
        more = {"retry": AsyncRetry(NoBackoff(), 3)} if "retry" in options else {}
        client = redis.asyncio.Redis.from_url(valkey, **{**options, **more})
        asyncio.run(is_used_in_asyncio(client))
    login = UsernamePasswordCredentialProvider("default", "secret")
    r.config_set("requirepass", "secret")
    try:
        is_used(redis.Redis.from_url(valkey, credential_provider=login))
        client = redis.asyncio.Redis.from_url(valkey, credential_provider=login)
        asyncio.run(is_used_in_asyncio(client))
    finally:
        r.config_set("requirepass", "")


def test_every_kind_of_connection_is_used(r):
    path = r.connection_pool.connection_kwargs["path"]
    for parser in PARSERS:
        made = {"path": path, "parser_class": parser, "protocol": 2}
        for pool in (redis.ConnectionPool, redis.BlockingConnectionPool):
            for kind in (CONNECTIONS["threads"], type("Own", (CONNECTIONS["threads"],), {})):
                is_used(redis.Redis(connection_pool=pool(connection_class=kind, **made)))
    own = type("Own", (CONNECTIONS["asyncio"],), {})
    for pool in (redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool):
        client = redis.asyncio.Redis(connection_pool=pool(connection_class=own, path=path))
        asyncio.run(is_used_in_asyncio(client))


def test_what_is_no_client_is_refused_in_one_sentence(r):
    for given in (
        r.connection_pool,
        redis.Redis,
        r.pubsub(),
        r.monitor(),
        r.lock("x"),
        redis.sentinel.Sentinel([]),
        object(),
    ):
        with pytest.raises(ConfigurationError, match=REFUSED):
            BloomFilter("x", 100, client=given)
        with pytest.raises(ConfigurationError, match=REFUSED):
            Lock("x", given)
        with pytest.raises(ConfigurationError, match=REFUSED):
            asyncio.run(AsyncBloomFilter("x", 100, client=given).add("a"))
