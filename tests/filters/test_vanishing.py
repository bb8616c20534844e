"""Clear, delete, eviction, FLUSHALL and restarts under load: never a silent no."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time

import pytest
import redis
import servers
from strategies import STRATEGIES, maker_of

from bloomlock import (
    BloomFilter,
    BloomlockError,
    ConfigurationError,
    FilterLostError,
    OutcomeUnknownError,
)
from bloomlock.server import PrivateServer

pytestmark = pytest.mark.processes
WRITERS = 3
SECONDS = 0.4
ENOUGH = 20


def work(url, strategy, stop, counts):
    """Add, and look at once; what was answered must still hold, or an error must say why not."""
    denied, lost, asked = counts
    made = attach(url, strategy)
    me = random.randrange(10**9)
    while not stop.is_set():
        batch = [f"{me} {asked.value} {n}" for n in range(20)]
        asked.value += 1
        try:
            made.add(batch[0])
            made.add_many(batch)
            denied.value += not all(made.exists_many(batch))
            denied.value += not made.exists(batch[0])
        except FilterLostError:
            lost.value += 1
            # Somebody may have left half a filter, or be about to make one.
            with contextlib.suppress(BloomlockError, redis.RedisError):
                made.reattach()
        except redis.RedisError:
            lost.value += 1


def attach(url, strategy):
    while True:
        with contextlib.suppress(FilterLostError):
            return BloomFilter("x", 50_000, 1e-9, client=url, strategy=strategy, on_unknown="new")


def clear(url, how):
    BloomFilter("x", 50_000, 1e-9, client=url, on_lost="recreate", strategy=how).clear()


def delete(url, how):
    made = BloomFilter("x", 50_000, 1e-9, client=url, on_lost="recreate", strategy=how)
    made.delete()
    time.sleep(0.005)
    made.reattach()


def flush(url, _how):
    redis.Redis.from_url(url).flushall()


def evict_bitmap(url, how):
    """What eviction does, made certain: one of the keys goes, the others stay."""
    with redis.Redis.from_url(url) as client:
        own = client.keys("bloomlock:{x}:bits:native:*")
        client.delete(random.choice(["bloomlock:{x}:bits", "bloomlock:{x}:meta", *own]))
    with contextlib.suppress(BloomlockError):
        BloomFilter("x", 50_000, 1e-9, client=url, on_lost="recreate", strategy=how)


@pytest.mark.parametrize("chaos", [clear, delete, flush, evict_bitmap])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_never_a_silent_no(valkey, strategy, chaos):
    redis.Redis.from_url(valkey).flushall()
    how = maker_of(strategy)
    BloomFilter("x", 50_000, 1e-9, client=valkey, strategy=how)
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    # One writer for each, so that none needs a lock.
    counts = [[context.Value("i", 0, lock=False) for _ in range(3)] for _ in range(WRITERS)]
    workers = [context.Process(target=work, args=(valkey, strategy, stop, some)) for some in counts]
    for worker in workers:
        worker.start()

    def is_enough():
        _, lost, asked = (
            sum(number.value for number in same) for same in zip(*counts, strict=True)
        )
        return lost and asked > ENOUGH

    ends, gives_up = time.monotonic() + SECONDS, time.monotonic() + 300
    while time.monotonic() < ends or (not is_enough() and time.monotonic() < gives_up):
        time.sleep(random.uniform(0, 0.02))
        with contextlib.suppress(redis.RedisError, BloomlockError):
            chaos(valkey, how)
    # Half a filter would keep those waiting who are about to attach.
    BloomFilter("x", 50_000, 1e-9, client=valkey, on_lost="recreate", strategy=how)
    stop.set()
    for worker in workers:
        worker.join(300)
        assert worker.exitcode == 0
    assert is_enough()
    assert sum(denied.value for denied, _, _ in counts) == 0


def add_until(url, stop, shards):
    made = BloomFilter("x", 200_000, client=url, on_lost="recreate", shards=shards)
    number = 0
    while not stop.is_set():
        try:
            made.add_many(f"{number} {n}" for n in range(50))
        except FilterLostError as error:
            # A writer that gets less of the processor than the one who clears meets each clear.
            assert "vanished 10 times during one operation" in str(error)
        number += 1


@pytest.mark.parametrize("shards", [1, 3])
def test_clear_works_while_others_add_all_the_time(valkey, shards):
    redis.Redis.from_url(valkey).flushall()
    made = BloomFilter("x", 200_000, client=valkey, shards=shards)
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    workers = [
        context.Process(target=add_until, args=(valkey, stop, shards)) for _ in range(WRITERS)
    ]
    for worker in workers:
        worker.start()
    try:
        generations = set()
        for _ in range(50):
            made.clear()
            generations.add(made.generation)
        assert len(generations) == 50
    finally:
        stop.set()
        for worker in workers:
            worker.join(300)
    assert [worker.exitcode for worker in workers] == [0] * WRITERS


def test_real_eviction_is_noticed():
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        client = redis.Redis.from_url(server.url)
        made = BloomFilter("x", 100_000, client=client)
        made.add("a")
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 300_000)
        number = 0
        while client.exists("bloomlock:{x}:bits"):
            client.set(f"other {number}", "x" * 20_000)
            number += 1
        with pytest.raises(FilterLostError, match="missing"):
            made.exists("a")


def test_a_server_out_of_memory_loses_no_answer():
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        client = redis.Redis.from_url(server.url)
        made = BloomFilter("x", 100_000, client=client)
        made.add_many(["a", "b"])
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            made.add("c")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            made.add_many(["c", "d"])
        assert made.exists_many(["a", "b", "c"]) == [True, True, False]
        before = client.dbsize()
        with pytest.raises(ConfigurationError, match="has 0 B free"):
            BloomFilter("y", 100_000, client=client)
        assert client.dbsize() == before
        client.config_set("maxmemory", 0)
        assert made.add_many(["c", "d"]) == [True, True]


def test_a_restarted_server_without_its_data_is_noticed():
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        made = BloomFilter("x", 1000, client=server.url)
        made.add("a")
        server.kill()
        with pytest.raises(redis.ConnectionError):
            made.exists("a")
        server.start()
        with pytest.raises((FilterLostError, OutcomeUnknownError)):
            made.add("a")
        with pytest.raises(FilterLostError):
            made.exists("a")
        made.reattach()
        assert made.add("a")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_dead_server_is_told_in_the_clients_own_words(strategy):
    config = servers.with_bloom() if strategy == "native" else {}
    with PrivateServer(binary=servers.require_server("valkey"), config=config) as server:
        made = BloomFilter("x", 1000, client=server.url, strategy=strategy)
        made.add("a")
        server.kill()
        for operation in (
            lambda: made.add("a"),
            lambda: made.exists("a"),
            lambda: made.add_many(["a", "b"]),
            lambda: made.exists_many(["a", "b"]),
            made.count,
            made.info,
            made.clear,
            made.delete,
            made.reattach,
            lambda: made.copy("y"),
        ):
            with pytest.raises((redis.ConnectionError, OutcomeUnknownError)):
                operation()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_forked_child_does_not_share_the_connection(valkey, strategy):
    redis.Redis.from_url(valkey).flushall()
    made = BloomFilter("x", 10_000, 1e-9, client=valkey, strategy=strategy)
    made.add("before")
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def child(mine):
        results.put(sum(made.add(f"{mine} {n}") + made.exists("before") for n in range(300)))

    children = [context.Process(target=child, args=(mine,)) for mine in range(3)]
    for process in children:
        process.start()
    own = sum(made.add(f"parent {n}") + made.exists("before") for n in range(300))
    assert own == 600
    assert [results.get(timeout=300) for _ in children] == [600] * 3
    for process in children:
        process.join(300)
        assert process.exitcode == 0
