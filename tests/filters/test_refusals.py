"""What a server refuses was not done: it is never taken for unknown, in no place of a batch."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis
import redis.asyncio
from proxy import HANDSHAKE
from servers import wait_until
from strategies import STRATEGIES, with_hashes

from bloomlock import (
    AsyncBloomFilter,
    BatchError,
    BloomFilter,
    BloomlockError,
    OutcomeUnknownError,
)
from bloomlock.refusals import is_refusal
from bloomlock.server import PrivateServer

ITEMS = [str(number) for number in range(700)]


def full(r):
    r.config_set("maxmemory", 1)


def not_full(r):
    r.config_set("maxmemory", 0)


def replica(r):
    r.replicaof("127.0.0.1", 1)


def master(r):
    r.replicaof("NO", "ONE")


REFUSING = {
    "full": (full, not_full, "OOM|memory"),
    "replica": (replica, master, "replica|READONLY"),
}


@pytest.mark.parametrize("on_unknown", ["raise", "new"])
@pytest.mark.parametrize("why", REFUSING)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_refused_add_is_not_done_and_says_so(r, strategy, why, on_unknown):
    if strategy == "lock" and why == "replica":
        pytest.skip("a lock waits for a new master")
    refuse, accept, says = REFUSING[why]
    made = BloomFilter("x", 2000, client=r, strategy=strategy, on_unknown=on_unknown)
    made.add("warm")
    refuse(r)
    try:
        for call in (lambda: made.add("a"), lambda: made.add_many(["a", "b"]),
                     lambda: made.update(["a"])):  # fmt: skip
            with pytest.raises(redis.RedisError, match=says) as caught:
                call()
            assert not isinstance(caught.value, BloomlockError)
            assert not hasattr(caught.value, "results")
    finally:
        accept(r)
    assert made.exists_many(["a", "b"]) == [False, False]
    assert made.add_many(["a", "b"]) == [True, True]


@pytest.mark.parametrize("route", ["items", "script"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_refused_in_the_middle_of_a_batch_was_not_added(
    r, proxy, strategy, route, monkeypatch
):
    # Ten thousand commands go through the proxy at once, under one lease.
    url = f"{proxy.url}?socket_timeout=60"
    monkeypatch.setattr("bloomlock.strategies.lock.LEASE_MS", 120_000)
    if strategy in ("lock", "native") and route == "script":
        pytest.skip("it takes items")
    options = {"strategy": strategy, "on_unknown": "new", **with_hashes(strategy, 16)}
    with BloomFilter("x", 20_000, client=url, **options) as made:
        made.add_many(["warm", "up"], route=route)
        # Of the server's own filter a command takes 2000 items.
        items = [str(number) for number in range(4500)] if strategy == "native" else ITEMS
        commands = []

        def judge(name, _number):
            if name not in HANDSHAKE:
                commands.append(name)
                # Where an item is a command or less, half-way through one request is half-way.
                middle = {"pipeline": 5000, "transaction": 10_500, "lock": 11_500}
                if len(commands) == (middle.get(strategy, 2) if route == "items" else 2):
                    full(r)
            return "pass"

        proxy.judge = judge
        try:
            with pytest.raises(redis.ResponseError, match="OOM|memory") as caught:
                made.add_many(items, route=route)
        finally:
            proxy.judge = lambda _name, _number: "pass"
            not_full(r)
        results = caught.value.results
        assert isinstance(caught.value, BatchError)
        assert isinstance(caught.value.__cause__, redis.exceptions.ResponseError)
        assert not hasattr(caught.value.__cause__, "results")
        assert not getattr(caught.value.__cause__, "__notes__", ())
        results += [None] * (len(items) - len(results))
        known = results.count(True)
        assert 0 < known < len(items)
        if strategy == "pipeline" and route == "items":
            # Of one item some bits were set; with on_unknown="new" it counts as new.
            known -= 1
        assert made.exists_many(items).count(True) == known
        left = [item for item, new in zip(items, results, strict=True) if new is None]
        assert made.add_many(left) == [True] * len(left)
        assert all(made.exists_many(left))


def test_a_server_that_is_loading_adds_nothing():
    config = {"enable-debug-command": "yes", "save": ""}
    with PrivateServer(config=config) as private, redis.Redis.from_url(private.url) as r:
        made = BloomFilter("x", 2000, client=r, on_unknown="new")
        for number in range(2000):
            r.set(f"key {number}", number)
        r.config_set("key-load-delay", 5000)
        r.config_set("loading-process-events-interval-bytes", 1024)

        def reload():
            with redis.Redis.from_url(private.url, socket_timeout=120) as other:
                other.execute_command("DEBUG", "RELOAD")

        thread = threading.Thread(target=reload)
        thread.start()
        refused = 0

        def is_refused():
            nonlocal refused
            try:
                made.add(f"before {time.monotonic()}" if not refused else f"item {refused}")
            except redis.exceptions.BusyLoadingError:
                refused += 1
                if refused == 5:
                    with pytest.raises(redis.exceptions.BusyLoadingError):
                        made.add_many(["a", "b"])
                    with pytest.raises(redis.exceptions.BusyLoadingError):
                        asyncio.run(add_by_asyncio(private.url))
                if refused == 6:
                    # Enough was seen.
                    r.config_set("key-load-delay", 0)
                return False
            return refused > 0

        wait_until(is_refused, 60)
        thread.join()
        assert refused >= 6
        assert not any(made.exists_many([f"item {number}" for number in range(1, refused)]))
        assert made.add_many(["a", "b"]) == [True, True]


async def add_by_asyncio(url):
    client = redis.asyncio.Redis.from_url(url)
    try:
        made = await AsyncBloomFilter("x", 2000, client=client, on_unknown="new")
        assert not await asyncio.gather(*(made.add(f"async {number}") for number in range(20)))
    finally:
        await client.aclose()


@pytest.mark.parametrize("many", [False, True])
def test_who_is_not_logged_in_adds_nothing(r, valkey, many):
    made = BloomFilter("x", 2000, client=r, on_unknown="new")
    r.config_set("requirepass", "secret")
    try:
        # Without a handshake the answer to the add itself is the refusal.
        options = {"protocol": 2, "lib_name": None, "lib_version": None}
        with redis.Redis.from_url(valkey, **options) as stranger:
            theirs = BloomFilter.__new__(BloomFilter)
            theirs._state = made._state
            theirs._runtime = type(made._runtime)(stranger)
            theirs._run = theirs._runtime.run
            for _ in range(3):
                # Of a command with many arguments an unknown client gets another answer.
                with pytest.raises(redis.RedisError, match="uthenticat"):
                    theirs.add_many(["a", "b"]) if many else theirs.add("a")
    finally:
        r.config_set("requirepass", "")
    assert made.exists_many(["a", "b"]) == [False, False]


def test_a_server_without_room_for_clients_adds_nothing(valkey, r):
    made = BloomFilter("x", 2000, client=r, on_unknown="new")
    most = r.config_get("maxclients")["maxclients"]
    options = {"protocol": 2, "lib_name": None, "lib_version": None}
    with redis.Redis.from_url(valkey, **options) as late:
        theirs = BloomFilter.__new__(BloomFilter)
        theirs._state = made._state
        theirs._runtime = type(made._runtime)(late)
        theirs._run = theirs._runtime.run
        r.config_set("maxclients", 1)
        try:
            for _ in range(3):
                with pytest.raises(redis.ConnectionError):
                    theirs.add("a")
        finally:
            r.config_set("maxclients", most)
    assert not made.exists("a")


def test_redis_pys_errors_are_told_apart():
    parse = redis.connection.Connection()._parser.parse_error
    for answer in ("LOADING Redis is loading", "NOAUTH Authentication required.", "NOPERM no",
                   "ERR max number of clients reached", "READONLY You", "OOM command", "MISCONF a",
                   "CLUSTERDOWN Hash slot", "MASTERDOWN link", "TRYAGAIN a", "BUSY script",
                   "WRONGPASS invalid", "NOREPLICAS Not", "WRONGTYPE a", "EXECABORT a",
                   "ERR unknown command", "NOSCRIPT a"):  # fmt: skip
        assert is_refusal(parse(answer)), answer
    for lost in (redis.ConnectionError("Connection closed by server."), redis.TimeoutError("a"),
                 ConnectionResetError(), redis.exceptions.InvalidResponse("x")):  # fmt: skip
        assert not is_refusal(lost)


def test_refused_and_lost_in_one_batch(r, proxy):
    """The unknown items are said to be unknown, whatever else went wrong."""
    with BloomFilter("x", 20_000, client=proxy.url, shards=2) as made:
        made.add("warm")
        batch = ITEMS[:400]
        commands = []

        def judge(name, _number):
            if name == "BITFIELD":
                commands.append(name)
                if len(commands) == 2:
                    full(r)
                if len(commands) == 4:
                    return "after"
            return "pass"

        proxy.judge = judge
        try:
            with pytest.raises(OutcomeUnknownError) as caught:
                made.add_many(batch, route="items")
        finally:
            proxy.judge = lambda _name, _number: "pass"
            not_full(r)
        known = [item for item, new in zip(batch, caught.value.results, strict=False) if new]
        assert known
        assert sorted(known) == sorted(item for item in batch if made.exists(item))
