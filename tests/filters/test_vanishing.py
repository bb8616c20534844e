"""A server that evicts, is full or restarts without its data, and a process that forks."""

from __future__ import annotations

import multiprocessing

import pytest
import redis
import servers
from private import PrivateServer

from bloomlock import BloomFilter
from bloomlock.errors import FilterLostError, OutcomeUnknownError

pytestmark = pytest.mark.processes


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


@pytest.mark.parametrize("strategy", ["atomic", "lock"])
def test_a_forked_child_does_not_share_the_connection(r, valkey, strategy):
    made = BloomFilter("x", 10_000, 1e-9, client=valkey, strategy=strategy)
    made.add("before")
    context = multiprocessing.get_context("fork")
    asked, answers = context.Queue(), context.Queue()

    def child():
        for item in iter(asked.get, None):
            answers.put((made.add(item), made.exists(item), made.exists("before")))

    process = context.Process(target=child)
    process.start()
    for number in range(30):
        # In turn: the child, and then its parent.
        asked.put(f"child {number}")
        assert answers.get() == (True, True, True)
        assert made.add(f"child {number}") is False
        assert made.add(f"parent {number}") is True
    asked.put(None)
    process.join()
    assert process.exitcode == 0
