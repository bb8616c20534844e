"""What another process sees of a crawl on the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter
from bloomlock.errors import BloomlockError
from scrapy_ext.queue import keys_of

if TYPE_CHECKING:
    import redis

MOST_HOSTS = 20


@dataclass(frozen=True, slots=True)
class CrawlLook:
    """A crawl at a moment.

    Attributes:
        state: "running", "waiting", "ended", or empty where there is none.
        waiting: Requests in the queue.
        taken: Requests that processes have.
        by_host: How many wait for a host, for some hosts.
    """

    state: str = ""
    waiting: int = 0
    taken: int = 0
    by_host: dict[str, int] = field(default_factory=dict)


def look(client: redis.Redis, name: str) -> CrawlLook:
    """Return how a crawl is. Cost: two round trips."""
    crawl, queue, hosts, _, taken = keys_of(name)[:5]
    with client.pipeline(transaction=True) as asked:
        asked.hget(crawl, "state")
        asked.zcard(queue)
        asked.hlen(taken)
        asked.zrange(hosts, 0, MOST_HOSTS - 1)
        state, num_waiting, num_taken, names = asked.execute()
    with client.pipeline(transaction=False) as asked:
        for host in names:
            asked.zlexcount(queue, b"[" + host + b"\0", b"(" + host + b"\1")
        counts = dict(zip((host.decode() for host in names), asked.execute(), strict=True))
    by_host = {host: count for host, count in counts.items() if count}
    return CrawlLook((state or b"").decode(), num_waiting, num_taken, by_host)


def fill_of(client: redis.Redis, name: str) -> float | None:
    """Return which part of the bits of the crawl's filter are set; None: it cannot be said.

    Cost: some round trips; the server reads the whole filter.
    """
    try:
        with BloomFilter.open(name, client=client, prefix=_prefix(client, name)) as shared:
            return shared.info().fill_ratio
    except BloomlockError:
        return None


def delete_crawl(client: redis.Redis, name: str) -> None:
    """Delete all that a crawl has on the server."""
    delete_filter(name, client=client, prefix=_prefix(client, name))
    client.delete(*keys_of(name))


def _prefix(client: redis.Redis, name: str) -> str:
    identity = client.hget(keys_of(name)[0], "id") or b""
    return f"bloomlock:{bytes(identity).decode()}:"
