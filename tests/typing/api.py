"""What a type checker is told about the public names; checked by mypy, never run.

Each mistake must be an error: mypy reports an ignore that is not needed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import assert_type

import redis
import redis.asyncio

import bloomlock
from bloomlock import (
    AsyncBloomFilter,
    AsyncClaim,
    AsyncFairLock,
    AsyncLock,
    AsyncReadWriteLock,
    AsyncRedlock,
    BloomFilter,
    Claim,
    ClaimState,
    FairLock,
    FilterInfo,
    Growth,
    Lock,
    LockEvent,
    LockStrategy,
    MemoryBloomFilter,
    NearCache,
    ReadWriteLock,
    Redlock,
    ReentrantLock,
    Window,
    once,
)
from bloomlock.errors import LockError, LockLostError, LockNotOwnedError, OutcomeUnknownError


def filters(client: redis.Redis, cluster: redis.RedisCluster) -> None:
    pages = BloomFilter("pages", capacity=1000)
    BloomFilter("pages", 1000, 0.01, client=client, strategy="lua", seeds=[1, 2], on_full="raise")
    BloomFilter("pages", 1000, client=cluster, on_lost="recreate", on_unknown="new", shards=2)
    BloomFilter("pages", 1000, strategy=LockStrategy(timeout=5), near_cache=NearCache(1000))
    BloomFilter("pages", 1000, window=Window(timedelta(days=7), slices=6), on_full=Growth(2))
    BloomFilter.open("pages", key="a secret of 16 bytes or more", refresh=True)
    assert_type(pages.add("a"), bool)
    assert_type(pages.add_many(["a", b"b"]), list[bool])
    assert_type(pages.add_each(["a"]), Iterator[tuple[str, bool]])
    assert_type(pages.exists_many(x for x in "ab"), list[bool])
    assert_type(pages.discard_many(["a", b"b"]), list[bool])
    assert_type(pages.info(), FilterInfo)
    assert_type(pages.window, timedelta | None)
    with pages as same:
        assert_type(same, BloomFilter)
    try:
        pages.add("a")
    except OutcomeUnknownError as error:
        assert_type(error.results, list[bool | None])


def mistakes_with_filters(pages: BloomFilter) -> None:
    pages.add(5)  # type: ignore[arg-type]
    pages.add_many([5])  # type: ignore[list-item]
    pages.export_file(5)  # type: ignore[arg-type]
    pages.claim_expired("all")  # type: ignore[arg-type]
    BloomFilter("pages", 1000, client=5)  # type: ignore[arg-type]
    BloomFilter("pages", 1000, optimize="size")  # type: ignore[arg-type]
    BloomFilter("pages", 1000, near_cache="all")  # type: ignore[arg-type]
    BloomFilter("pages", 1000, on_full="shrink")  # type: ignore[arg-type]
    BloomFilter("pages", 1000, window="7d")  # type: ignore[arg-type]
    BloomFilter("pages", 1000, strategy=LockStrategy(5))  # type: ignore[call-arg]
    BloomFilter.open("pages", up_to=64_000)  # type: ignore[call-arg]
    BloomFilter.import_file("pages", "file", capacity=5)  # type: ignore[call-arg]
    MemoryBloomFilter(1000, on_full="grow")  # type: ignore[arg-type]


def wholes(pages: BloomFilter, client: redis.Redis) -> None:
    assert_type(pages.union_update(pages), None)
    assert_type(pages.rename("other"), BloomFilter)
    assert_type(pages.copy_to(client, "other"), BloomFilter)
    assert_type(BloomFilter.import_file("pages", "file", client=client, replace=True), BloomFilter)
    assert_type(pages.rebuild(["a"], 5000, late=lambda: iter(["b"])), None)
    assert_type(bloomlock.plan(10**9, 1e-6, items_per_s=1e5).servers, int)
    memory = MemoryBloomFilter(1000, 0.01, shards=2, on_full="raise")
    assert_type(memory.add_many(["a", b"b"]), list[bool])
    assert_type(MemoryBloomFilter.like(pages), MemoryBloomFilter)


def claims(pages: BloomFilter) -> None:
    claim = pages.claim("a", 60, wait=1.5, payload=b"more", max_attempts=3)
    assert_type((claim.state, claim.item, claim.fence), tuple[ClaimState, str | bytes, int | None])
    assert_type(pages.claim_many(["a", b"b"], payloads=["x", None]), list[Claim])
    assert_type(pages.commit_many([claim]), list[bool])
    assert_type(pages.expired(), Iterator[Claim])
    with claim as entered:
        assert_type(entered, Claim)


async def tasks(client: redis.asyncio.Redis) -> None:
    pages = await AsyncBloomFilter("pages", 1000, client=client)
    assert_type(pages, AsyncBloomFilter)
    assert_type(await AsyncBloomFilter.open("pages"), AsyncBloomFilter)
    assert_type(await pages.add("a"), bool)
    assert_type(pages.add_each([b"a"], batch_size=10), AsyncIterator[tuple[bytes, bool]])
    assert_type(await pages.claim("a"), AsyncClaim)
    assert_type(pages.expired(), AsyncIterator[AsyncClaim])
    assert_type(await bloomlock.catalog.async_list_filters(client="redis://x"), list[str])
    async with pages as same:
        assert_type(same, AsyncBloomFilter)


def decorated(done: BloomFilter, async_done: AsyncBloomFilter) -> None:
    def charge(order: str, amount: int = 1) -> int:
        return amount

    async def charge_async(order: str) -> int:
        return 1

    assert_type(once(done, key="order")(charge)("a", amount=2), int | None)
    once(done, key="order")(charge)(1)  # type: ignore[arg-type]
    once(done, key="order", on_busy="ignore")  # type: ignore[arg-type]

    async def main() -> None:
        assert_type(await once(async_done, key="order")(charge_async)("a"), int | None)


def locks(client: redis.Redis, cluster: redis.RedisCluster) -> None:
    lock = Lock("job", client=client, timeout=10, blocking_timeout=5)
    Lock("job", cluster, 30.0, renew=False, max_hold=60, on_lost=print, replicas=1)
    Lock("job", thread_local=False, observer=note, prefix="mine:")
    assert_type(lock.acquire(True, 0.5), bool)
    assert_type(lock.lost, threading.Event)
    with FairLock("job") as fair, ReentrantLock("job", blocking=False) as mine:
        assert_type((fair, mine), tuple[FairLock, ReentrantLock])
    with ReadWriteLock("job", client=client, max_hold=5).write as writing:
        assert_type(writing, Lock)
    as_lock: Lock = Redlock("job", [client, cluster, "redis://c"], server_timeout=0.1, ttl=10)
    with as_lock, Redlock("job", clients=[client], longest_ttl=60) as most:
        assert_type(most, Redlock)


def errors(lock: Lock) -> redis.exceptions.LockNotOwnedError:
    try:
        lock.release()
    except LockLostError as error:
        return error
    except LockNotOwnedError as error:
        return error
    except LockError as error:
        other: redis.exceptions.LockError = error
        raise other from None
    raise AssertionError


def mistakes_with_locks() -> None:
    Lock(5)  # type: ignore[arg-type]
    Lock("job", ttl="30")  # type: ignore[arg-type]
    Lock("job", observer=print_number)  # type: ignore[arg-type]
    Lock("job", client=redis.asyncio.Redis())  # type: ignore[arg-type]
    AsyncLock("job", client=redis.Redis())  # type: ignore[arg-type]
    Redlock("job")  # type: ignore[call-arg]
    Redlock("job", redis.Redis())  # type: ignore[arg-type]
    AsyncRedlock("job", [redis.Redis()])  # type: ignore[list-item]
    ReadWriteLock("job", unknown=5)  # type: ignore[call-arg]


def note(event: LockEvent) -> None:
    assert_type(event.fence, int | None)
    if event.kind == "gone":  # type: ignore[comparison-overlap]
        pass


def print_number(number: int) -> None:
    """No observer."""


async def waiting(client: redis.asyncio.Redis) -> None:
    lock = AsyncLock("job", client=client, ttl=10, observer=note, on_lost=print)
    assert_type(await lock.acquire(blocking_timeout=5), bool)
    assert_type(lock.lost, asyncio.Event)
    async with AsyncFairLock("job") as fair, AsyncReadWriteLock("job").write as writing:
        assert_type((fair, writing), tuple[AsyncFairLock, AsyncLock])
    async with AsyncRedlock("job", clients=["redis://one", client]) as most:
        assert_type(most, AsyncRedlock)
