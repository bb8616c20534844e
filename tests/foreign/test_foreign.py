"""Filters under foreign locks: several processes, real servers, exact counts.

https://kazoo.readthedocs.io, https://etcd.io/docs/v3.4/dev-guide/api_concurrency_reference_v3/
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter

import pytest
import redis
from foreign.half_way import HalfWay
from proxy import Proxy

adders = pytest.importorskip("foreign.adders", exc_type=ImportError)
turns = pytest.importorskip("foreign.turns", exc_type=ImportError)
factories = pytest.importorskip("foreign.factories", exc_type=ImportError)

pytestmark = [pytest.mark.foreign, pytest.mark.processes]
WORKERS = 4
ITEMS = [f"https://example.org/{number}" for number in range(60)]
NO_LOCK = ("none", None)


def race(urls, lock, how, seed):
    """Let one process for each URL offer all items; count the winners of each."""
    barrier = turns.PROCESSES.Barrier(len(urls))
    results = turns.PROCESSES.Queue()
    with contextlib.ExitStack() as stack:
        for index, url in enumerate(urls):
            own_seed = None if seed is None else seed + index
            arguments = (url, lock, how, ITEMS, own_seed, barrier, results)
            stack.enter_context(turns.started(adders.offer, *arguments))
        return Counter(item for _ in urls for item in results.get(timeout=turns.PATIENCE))


@pytest.mark.parametrize("how", ["add", "add_many"])
def test_every_item_has_exactly_one_winner(system, client, server_url, how, seed):
    assert race([server_url] * WORKERS, system, how, seed) == Counter(ITEMS)


def race_half_way(valkey, lock, how, patience):
    """Two processes add the same items, the first stopped in the middle of each.

    Returns the winners of each item, and on how many the second came in meanwhile.
    """
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
    bits = adders.race_filter(valkey, lambda _name: contextlib.nullcontext()).num_hashes
    half_way = HalfWay(bits, len(ITEMS), patience)
    with Proxy(valkey, half_way.stopped) as one, Proxy(valkey, half_way.passing) as other:
        won = race([one.url, other.url], lock, how, None)
    return won, half_way.met


@pytest.mark.parametrize("how", ["add", "add in pieces"])
def test_one_stopped_half_way_keeps_the_other_out(system, valkey, how):
    assert race_half_way(valkey, system, how, 0.02) == (Counter(ITEMS), 0)


def test_without_a_lock_each_item_in_pieces_has_two_winners(valkey):
    # The control: the same race, and no item has exactly one winner.
    outcome = race_half_way(valkey, NO_LOCK, "add in pieces", turns.PATIENCE)
    assert outcome == (Counter(ITEMS + ITEMS), len(ITEMS))


def test_without_a_lock_the_transaction_alone_keeps_the_answers_exact(valkey):
    # The other control: nobody is kept out, and no harm done.
    outcome = race_half_way(valkey, NO_LOCK, "add", turns.PATIENCE)
    assert outcome == (Counter(ITEMS), len(ITEMS))


def test_a_holder_that_slept_through_its_lease_does_not_win_as_well(system, valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
    half, go_on, results = threading.Event(), threading.Event(), turns.PROCESSES.Queue()

    def judge(name, _number):
        if name == "SETBIT":
            half.set()
            go_on.wait(turns.PATIENCE)
        return "pass"

    with (
        Proxy(valkey, judge) as proxy,
        turns.started(adders.add_one, proxy.url, system, 2, results) as sleeper,
        factories.open_factory(*system) as factory,
    ):
        assert half.wait(turns.PATIENCE)
        os.kill(sleeper.pid, signal.SIGSTOP)
        assert adders.race_filter(valkey, factory).add("item") is True
        go_on.set()
        os.kill(sleeper.pid, signal.SIGCONT)
        assert results.get(timeout=turns.PATIENCE) == "OutcomeUnknownError"
