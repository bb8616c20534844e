"""The client of the server, from BLOOMLOCK_URL or the settings that scrapy-redis reads.

It gives up after a short time-out and never retries by itself: the crawl waits beside the reactor.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy.utils.misc import load_object

from bloomlock.errors import BloomlockError, ConfigurationError, ServerError
from bloomlock.server import explained, find_address
from scrapy_ext import engine
from scrapy_ext.settings import CrawlSettings, warn_of_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

# Setting of scrapy-redis -> parameter of the client.
_SHARED = {
    "REDIS_URL": "url",
    "REDIS_HOST": "host",
    "REDIS_PORT": "port",
    "REDIS_DB": "db",
    "REDIS_ENCODING": "encoding",
}
# What scrapy-redis passes so as to wait and try again, which a blocked reactor cannot afford.
_RETRIES = ("retry_on_timeout", "retry_on_error", "retry")


@contextmanager
def opening(crawler: Crawler, what: str) -> Iterator[tuple[CrawlSettings, Any]]:
    """Yield the settings and a client; what goes wrong ends the crawl with one sentence."""
    try:
        warn_of_unknown(crawler.settings)
        settings = CrawlSettings.read(crawler)
        yield settings, redis_client(crawler.settings, settings.timeout)
    except (BloomlockError, redis.RedisError, OSError) as error:
        refusal = error
        if not isinstance(error, BloomlockError):
            refusal = ServerError(
                f"the {what} cannot be used ({type(error).__name__}: {error}), and the crawl does "
                "not start without it"
            )
        engine.refuse(crawler, refusal)
        raise refusal.with_traceback(None) from None


def redis_client(settings: BaseSettings, timeout: float) -> Any:
    """Make the client for a crawl and ask its server what it is.

    The server is that of `BLOOMLOCK_URL`, else the one scrapy-redis would use, else the library's
    default. `REDIS_PARAMS["redis_cls"]` makes the client, where that is given; else it is one for a
    cluster if the server is part of one.
    """
    source, given = _parameters(settings)
    given |= {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    # Entries of the queue are bytes, also where scrapy-redis is told to decode them.
    given |= {"retry": Retry(NoBackoff(), 0), "decode_responses": False}
    client = _make(source, given.pop("redis_cls", None) or redis.Redis, given)
    if type(client) is not redis.Redis:
        return client
    mode: Any = ""
    try:
        with suppress(redis.exceptions.NoPermissionError):  # what is allowed will show
            info = client.info("server")
            # Valkey's word, and Redis's.
            mode = info.get("server_mode") or info.get("redis_mode")
        if mode == "cluster":
            client.close()
            client = _make(source, redis.RedisCluster, given)
    except (redis.RedisError, OSError) as error:
        client.close()
        raise ServerError(
            f"{source}: no Redis server can be used at {_place_of(client)} "
            f"({type(error).__name__}: {error}), and the crawl does not start without it"
        ) from None
    if mode == "sentinel":
        client.close()
        raise ServerError(
            f"{source}: the server at {_place_of(client)} is a Sentinel, which holds no filter; "
            'REDIS_PARAMS["redis_cls"] may be a function that makes a client of its master'
        )
    return client


def _place_of(client: redis.Redis) -> str:
    """Return where a client's server is, without its password."""
    pool = client.connection_pool
    if service := getattr(pool, "service_name", None):
        return f"the master of the Sentinels' service {service!r}"
    known = pool.connection_kwargs
    return str(known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}")


def _make(source: str, chosen: Any, given: dict[str, Any]) -> Any:
    options = dict(given)
    url = options.pop("url", None)
    try:
        chosen = load_object(chosen) if isinstance(chosen, str) else chosen
        if not url:
            return chosen(**options)
    except (ValueError, TypeError, ImportError, NameError) as error:
        raise ConfigurationError(f"{source} makes no Redis client: {error}") from error
    address = find_address(url, name=source)
    with explained(address):
        return chosen.from_url(address.url, **options)


def _parameters(settings: BaseSettings) -> tuple[str, dict[str, Any]]:
    """Return which setting names the server, and the parameters of the client."""
    if own := settings.get("BLOOMLOCK_URL"):
        return "BLOOMLOCK_URL", {"url": own}
    given = {name: settings.get(key) for key, name in _SHARED.items() if settings.get(key)}
    shared = {**settings.getdict("REDIS_PARAMS"), **given}
    if not shared:
        address = find_address(None)
        return address.source, {"url": address.url}
    source = next((key for key in _SHARED if settings.get(key)), "REDIS_PARAMS")
    return source, {name: one for name, one in shared.items() if name not in _RETRIES}
