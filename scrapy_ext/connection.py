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
from bloomlock.server import explained, find_address, hide_secret
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
    address, given = _parameters(settings)
    given |= {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    # Entries of the queue are bytes, also where scrapy-redis is told to decode them.
    given |= {"retry": Retry(NoBackoff(), 0), "decode_responses": False}
    client = _make(address, given)
    if type(client) is not redis.Redis:
        return client
    info: Any = {}
    with explained(address), suppress(redis.exceptions.NoPermissionError):
        info = client.info("server")
    # Valkey's word, and Redis's.
    mode = info.get("server_mode") or info.get("redis_mode")
    if mode == "cluster":
        client.close()
        return _make(address, {**given, "redis_cls": redis.RedisCluster})
    if mode == "sentinel":
        client.close()
        raise ServerError(
            f"{address.source}: the server at {hide_secret(address.url)} is a Sentinel; "
            'REDIS_PARAMS["redis_cls"] may be a function that makes a client of its master'
        )
    return client


def _parameters(settings: BaseSettings) -> tuple[Any, dict[str, Any]]:
    """Return the address of the server, and the parameters of the client."""
    if own := settings.get("BLOOMLOCK_URL"):
        return find_address(own, name="BLOOMLOCK_URL"), {"url": own}
    given = {name: settings.get(key) for key, name in _SHARED.items() if settings.get(key)}
    shared = {**settings.getdict("REDIS_PARAMS"), **given}
    if not shared:
        address = find_address(None)
        return address, {"url": address.url}
    source = next((key for key in _SHARED if settings.get(key)), "REDIS_PARAMS")
    path, host = shared.get("unix_socket_path"), shared.get("host", "localhost")
    place = f"unix://{path}" if path else f"redis://{host}:{shared.get('port', 6379)}"
    address = find_address(shared.get("url", place), name=source)
    return address, {name: one for name, one in shared.items() if name not in _RETRIES}


def _make(address: Any, given: dict[str, Any]) -> Any:
    options = {"redis_cls": redis.Redis, **given}
    try:
        chosen = load_object(options.pop("redis_cls"))
        if "url" not in options:
            return chosen(**options)
    except (ValueError, TypeError, ImportError, NameError) as error:
        raise ConfigurationError(f"{address.source} makes no Redis client: {error}") from error
    with explained(address):
        return chosen.from_url(**options)
