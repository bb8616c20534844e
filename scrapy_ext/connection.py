"""The client of the filter's server, from the same settings scrapy-redis reads.

A check is a blocking call in the reactor, so the client gives up after the filter's own short
time-out and never retries by itself: the circuit breaker decides when to try again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy.utils.misc import load_object

from bloomlock import ConfigurationError
from bloomlock.server import embedded_url

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

# Setting of scrapy-redis -> parameter of the client.
_SHARED = {
    "REDIS_URL": "url",
    "REDIS_HOST": "host",
    "REDIS_PORT": "port",
    "REDIS_DB": "db",
    "REDIS_ENCODING": "encoding",
    "REDIS_DECODE_RESPONSES": "decode_responses",
}
# What scrapy-redis passes for patience, which a blocked reactor cannot afford.
_PATIENCE = ("retry_on_timeout", "retry_on_error", "retry")


def redis_client(settings: BaseSettings, timeout: float) -> Any:
    """Make the client for a crawl. Nothing is sent yet, but an embedded server is started.

    The server is that of `BLOOMLOCK_URL`; else the one scrapy-redis would use, where any of its
    settings (`REDIS_URL`, `REDIS_HOST`, `REDIS_PORT`, `REDIS_PARAMS`) is there; else the
    library's default: the environment's `BLOOMLOCK_URL`, its `REDIS_URL`, the embedded server.

    Args:
        settings: The crawler's settings.
        timeout: Longest wait for a connection and for a reply, in seconds.

    Returns:
        A redis-py client (of the class in `REDIS_PARAMS["redis_cls"]`, where that is given).

    Raises:
        ConfigurationError: The settings make no client.
        ServerError: The embedded server could not be started.
    """
    parameters = _parameters(settings)
    parameters.update(socket_timeout=timeout, socket_connect_timeout=timeout)
    parameters.update(retry=Retry(NoBackoff(), 0))
    url = parameters.pop("url", None)
    try:
        client_class = parameters.pop("redis_cls", None) or redis.Redis
        if isinstance(client_class, str):
            client_class = load_object(client_class)
        return client_class.from_url(url, **parameters) if url else client_class(**parameters)
    except (ValueError, TypeError, ImportError, NameError) as error:
        source = f"the server's URL {_without_password(url)!r}" if url else "REDIS_PARAMS"
        raise ConfigurationError(f"{source} makes no Redis client: {error}") from error


def _parameters(settings: BaseSettings) -> dict[str, Any]:
    """Return the parameters of the client before the time-outs are put in."""
    own = settings.get("BLOOMLOCK_URL")
    if own:
        return {"url": own}
    shared = {**settings.getdict("REDIS_PARAMS")}
    shared.update({name: settings.get(key) for key, name in _SHARED.items() if settings.get(key)})
    if shared:
        return {name: value for name, value in shared.items() if name not in _PATIENCE}
    for variable in ("BLOOMLOCK_URL", "REDIS_URL"):
        if os.environ.get(variable):
            return {"url": os.environ[variable]}
    return {"url": embedded_url()}


def _without_password(url: object) -> str:
    """Return the URL as it may stand in a log."""
    scheme, separator, rest = str(url).partition("://")
    return scheme + separator + rest.rpartition("@")[2]
