"""What a type checker is told about Redlock; checked by mypy, never run."""

from __future__ import annotations

from typing import assert_type

import redis
import redis.asyncio  # noqa: TC002 - as a user would write it

from bloomlock import AsyncRedlock, Lock, Redlock


def threads(client: redis.Redis, cluster: redis.RedisCluster) -> None:
    lock = Redlock("job", [client, cluster, "redis://c"], 10, server_timeout=0.1, longest_ttl=60)
    as_lock: Lock = lock
    as_lock.release()
    assert_type(lock.acquire(blocking=False), bool)
    assert_type(lock.owned(), bool)
    assert_type(lock.remaining(), float)
    assert_type(lock.token, str | None)
    with lock as same:
        assert_type(same, Redlock)
    # Each of these must be an error; mypy reports an ignore that is not needed.
    Redlock("job")  # type: ignore[call-arg]
    Redlock("job", client)  # type: ignore[arg-type]
    Redlock("job", [client], replicas=1)  # type: ignore[call-arg]


async def tasks(client: redis.asyncio.Redis, wrong: redis.Redis) -> None:
    lock = AsyncRedlock("job", [client, "redis://b"], longest_ttl=0)
    assert_type(await lock.acquire(timeout=1), bool)
    await lock.extend(20)
    async with lock as same:
        assert_type(same, AsyncRedlock)
    AsyncRedlock("job", [wrong])  # type: ignore[list-item]
