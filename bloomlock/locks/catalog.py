"""Which locks are held on a server, and how many wait for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bloomlock.keys import DEFAULT_PREFIX, LockKeys, check_prefix, unescape
from bloomlock.runtime.clients import sync_client

if TYPE_CHECKING:
    import redis

KEYS_PER_SCAN = 1000
_KEY = re.compile(r"\{(?P<name>[^{}/]+)\}:lock(:queue)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock that is held, or waited for.

    Attributes:
        name: Its name.
        holders: How many hold it: one, or several if it is shared.
        waiting: How many wait for it.
        remaining: Seconds until its lease ends, if it is not extended.
    """

    name: str
    holders: int
    waiting: int
    remaining: float


def list_locks(
    *,
    client: redis.Redis | redis.RedisCluster | str | None = None,
    prefix: str = DEFAULT_PREFIX,
) -> list[LockInfo]:
    """Return the locks that are held or waited for, by name.

    Args:
        client: As for Lock.
        prefix: Start of the keys of the locks.

    Raises:
        ConfigurationError: If a parameter is not usable.
        ServerError: If the URL does not answer as a Redis server.

    Cost: the server looks at all its keys, 1000 in one round trip, and one more round trip.

    >>> from bloomlock import Lock
    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server, Lock("report", server.url):
    ...     [(lock.name, lock.holders, lock.waiting) for lock in list_locks(client=server.url)]
    [('report', 1, 0)]
    """
    literal = re.sub(r"([\\*?\[\]])", r"\\\1", check_prefix(prefix))
    connected, owned = sync_client(client)
    try:
        names = set()
        for key in connected.scan_iter(f"{literal}{{*}}:lock*", count=KEYS_PER_SCAN):
            text = key.decode(errors="replace") if isinstance(key, bytes) else key
            match = _KEY.fullmatch(text.removeprefix(prefix))
            if match is not None:
                names.add(unescape(match["name"]))
        found = []
        with connected.pipeline(transaction=False) as pipeline:
            for name in sorted(names):
                keys = LockKeys.of(name, prefix)
                pipeline.strlen(keys.lock)
                pipeline.pttl(keys.lock)
                pipeline.zcard(keys.holders)
                pipeline.zcard(keys.queue)
            # A key of another type is no lock.
            replies = pipeline.execute(raise_on_error=False) if names else []
        for name, *numbers in zip(sorted(names), *(replies[n::4] for n in range(4)), strict=True):
            if all(isinstance(number, int) for number in numbers):
                length, ttl_ms, shared, waiting = numbers
                holders = max(shared, 1) if length else 0
                if holders or waiting:
                    found.append(LockInfo(name, holders, waiting, max(0, ttl_ms) / 1000))
        return found
    finally:
        if owned:
            connected.close()
