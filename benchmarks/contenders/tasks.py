"""A filter and commands for asyncio, with one client for all tasks of a process."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import redis.asyncio

from benchmarks.place import parse_url
from bloomlock import AsyncBloomFilter

from .filters import reserve

if TYPE_CHECKING:
    from benchmarks.place import Place

CONNECTIONS = 50
"""The default pool raises an error when 1,000 tasks ask it at once; 50 is as fast as any number."""


def shared(place: Place, **options: Any) -> Any:
    """Return one filter for all tasks: those that wait at the same time share round trips."""
    return AsyncBloomFilter(**place.of_a_filter(), client=place.url, **options)


def commands(place: Place) -> Any:
    """Return SADD for each item by redis.asyncio; tasks wait for one of 50 connections."""
    return SimpleNamespace(add=partial(_pooled(place).sadd, place.name))


def single(place: Place) -> Any:
    """Return the same by one connection that all tasks share."""
    client = redis.asyncio.Redis(**parse_url(place.url), single_connection_client=True)
    return SimpleNamespace(add=partial(client.sadd, place.name))


def bloom(place: Place) -> Any:
    reserve(place)
    return SimpleNamespace(add=partial(_pooled(place).bf().add, place.name))


def _pooled(place: Place) -> Any:
    pool = redis.asyncio.BlockingConnectionPool
    return redis.asyncio.Redis.from_pool(
        pool.from_url(place.url, max_connections=CONNECTIONS, timeout=None)
    )
