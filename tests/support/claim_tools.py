"""What happens to claims that no client does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis


def let_expire(client: redis.Redis) -> None:
    """Let all leases be over, as if their time had passed."""
    for key in client.scan_iter(match="*:claims"):
        for item in client.zrange(key, 0, -1):
            client.zadd(key, {item: 1})
