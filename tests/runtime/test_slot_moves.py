"""Filters, claims and locks on a real cluster while slots move: every answer is exact.

A slot moves in the thread that sends, just before a request, so each run has the same moves.
"""

from __future__ import annotations

import asyncio
import random
import re
from functools import partial

import pytest
import redis
import redis.asyncio
import servers
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import TryAgainError
from slot_moves import SlotMover
from strategies import STRATEGIES

from bloomlock import AsyncBloomFilter, AsyncLock, BloomFilter, ClaimState, Lock, LockStrategy
from bloomlock.keys import FilterKeys
from bloomlock.runtime import redispy
from bloomlock.runtime.cluster import slot_of

CAPACITY, RATE, SHARDS = 5000, 1e-9, 3
SHORT = 0.4
"""Seconds after which a slot that does not end its move is given up."""
MOVES = 8
"""Moves of a test; each takes a tenth of a second."""
ITEMS = [f"item {number}" for number in range(200)]


def client_of(port):
    return RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)])


def slots_of(*names):
    found = [FilterKeys(name).bits(n) for name in names for n in range(SHARDS)]
    return [slot_of(key.partition("{")[2].partition("}")[0]) for key in found]


def _view(node):
    """Return what a server believes: who has which slots, and since which epoch."""
    return frozenset(
        (each["node_id"], each["epoch"], tuple(map(tuple, each["slots"])))
        for each in node.cluster("nodes").values()
    )


class Moves:
    def __init__(self, nodes, names, chance, *, half):
        slots = {*map(slot_of, names), *slots_of(*names)}
        self.mover = SlotMover(nodes, sorted(slots), chance.randrange(2**32))
        self._nodes = nodes
        self._out = []
        self._half = half
        self._left = 0

    def begin(self, slot):
        """Move a slot's keys; with `half` its new owner is not told to all yet."""
        new = self.mover.begin(slot)
        while self.mover.move_keys(slot, new):
            pass
        self._out.append((slot, new))
        # So many requests meet a slot that is on its way: they are told ASK, or to try again.
        self._left = 4
        if not self._half:
            self.end()

    @property
    def are_enough(self):
        """Whether a slot is on its way, or none has to move any more."""
        return bool(self._out) or self.mover.moves >= MOVES

    def go_on(self):
        """Note a request; a move ends after some."""
        self._left -= 1
        if self._left <= 0:
            self.end()

    def end(self):
        while self._out:
            slot, new = self._out.pop()
            while self.mover.move_keys(slot, new):
                pass
            self.mover.finish(slot, new)
            # A move that follows before all have heard leaves servers that disagree for good.
            servers.wait_until(lambda: len(set(map(_view, self._nodes))) == 1, 300)


def make(client, **options):
    return BloomFilter("m", CAPACITY, RATE, client=client, shards=SHARDS, **options)


def is_plain(client, **options):
    made = make(client, **options)
    assert made.add("alone")
    assert made.add_many(ITEMS) == [True] * 200
    assert made.add_many([*ITEMS, "alone"]) == [False] * 201
    assert all(made.exists_many(["alone", *ITEMS]))
    if options.get("strategy") != "native":
        copied = made.copy("copied")
        assert all(copied.exists_many(ITEMS))
        assert copied.delete()
    made.clear()
    assert not any(made.exists_many(ITEMS))
    assert made.delete()


def has_claims_and_discards(client):
    made = make(client)
    assert made.add_many(ITEMS) == [True] * 200
    assert made.discard_many(ITEMS[:50]) == [True] * 50
    assert made.add_many(ITEMS[:60]) == [True] * 50 + [False] * 10
    with made.claim("claimed") as claim:
        assert claim.state is ClaimState.NEW
        claim.extend()
    assert made.claim("claimed").state is ClaimState.SEEN
    with Lock("m", client=client) as lock:
        lock.check()
        lock.extend()
    assert made.delete()


def goes_by_a_window(client):
    made = make(client, window=3600)
    assert made.add("alone")
    assert made.add_many([*ITEMS, "alone"]) == [True] * 200 + [False]
    assert all(made.exists_many(["alone", *ITEMS]))
    made.clear()
    assert not any(made.exists_many(ITEMS))
    assert made.delete()


def grows(client):
    with BloomFilter("m", 60, RATE, client=client, shards=SHARDS, on_full="grow") as made:
        for start in range(0, 200, 20):
            assert made.add_many(ITEMS[start : start + 20]) == [True] * 20
        assert made.info().slices > 1
        assert made.add_many(ITEMS) == [False] * 200
        assert made.delete()


def is_rebuilt(client):
    made = make(client)
    attached = BloomFilter.open("m", client=client)
    made.update([*ITEMS, "late"])
    made.rebuild(ITEMS, 2 * CAPACITY, shards=SHARDS + 1, late=lambda: ["late"])
    assert attached.add_many([*ITEMS, "late", "b"]) == [False] * 201 + [True]
    moved = made.copy_to(client, "copied")
    assert all(moved.exists_many([*ITEMS, "late", "b"]))
    assert moved.delete()
    assert made.delete()


USES = {
    **{strategy: partial(is_plain, strategy=strategy) for strategy in STRATEGIES},
    "claims and discards": has_claims_and_discards,
    "window": goes_by_a_window,
    "grown": grows,
    "rebuilt": is_rebuilt,
}


@pytest.mark.parametrize("half", [False, True], ids=["moved", "half moved"])
@pytest.mark.parametrize("use", USES)
def test_a_slot_moves_just_before_a_request(nodes, cluster, monkeypatch, use, half, seed):
    chance = random.Random(seed)
    moves, real = Moves(nodes, ("m", "copied"), chance, half=half), redispy.send

    def send(connection, *data):
        found = re.search(rb"\{(m|copied)(/\d+)?\}", b"".join(data))
        moves.go_on()
        if found and not moves.are_enough and chance.random() < 0.3:
            moves.begin(slot_of(found[0][1:-1].decode()))
        real(connection, *data)

    monkeypatch.setattr(redispy, "send", send)
    while moves.mover.moves < MOVES:
        USES[use](cluster)
    moves.end()
    assert sum(node.dbsize() for node in nodes) <= 1, "the last fence of a lock"


@pytest.mark.parametrize("half", [False, True], ids=["moved", "half moved"])
def test_slots_move_between_the_requests_of_asyncio(nodes, cluster, half, seed):
    moves = Moves(nodes, ("m",), random.Random(seed), half=half)

    async def run():
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=servers.port_of(nodes[1]))
        made = await AsyncBloomFilter("m", CAPACITY, RATE, client=client, shards=SHARDS)
        opened = {
            strategy: await AsyncBloomFilter.open("m", client=client, strategy=strategy)
            for strategy in ("transaction", "lock")
        }
        for number, slot in enumerate(moves.mover.slots):
            mine = [f"{number} {item}" for item in ITEMS]
            moves.begin(slot)
            answers = await asyncio.gather(*(made.add(item) for item in [*mine[:50], *mine[:50]]))
            assert answers == [True] * 50 + [False] * 50
            assert await made.add_many(mine) == [False] * 50 + [True] * 150
            assert await made.exists_many([*mine, "no"]) == [True] * 200 + [False]
            moves.end()
            for strategy, other in opened.items():
                # The first of them finds the slot at its new server.
                assert await other.add_many([f"{strategy} {item}" for item in mine]) == [True] * 200
            assert all(await made.exists_many(mine))
            async with await made.claim(f"claimed {number}") as claim:
                assert claim.state is ClaimState.NEW
            async with AsyncLock("m", client=client) as lock:
                lock.check()
        await made.clear()
        assert not any(await made.exists_many([*ITEMS, "claimed 0"]))
        assert await made.delete()
        await client.aclose()

    asyncio.run(run())
    assert moves.mover.moves == len(moves.mover.slots)
    assert cluster.dbsize() <= 1


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr("bloomlock.runtime.cluster.MOVING_SECONDS", SHORT)


def stored(nodes):
    """Return all that the servers hold, also in slots that only are on their way to them."""
    return sorted((key, dump(node, key)) for node in nodes for key in node.scan_iter())


def dump(node, key):
    with redis.Redis(port=servers.port_of(node), single_connection_client=True) as client:
        client.execute_command("ASKING")
        return client.dump(key)


def test_a_move_that_does_not_end_is_one_clear_error(nodes, cluster, short, seed):
    made = BloomFilter("stuck", CAPACITY, RATE, client=cluster, shards=SHARDS)
    assert made.add_many(["a", "b", "c"]) == [True] * 3
    locking = LockStrategy(timeout=SHORT)
    locked = BloomFilter.open("stuck", client=cluster, strategy=locking, on_lost="recreate")
    lock = Lock("stuck", client=cluster)
    mover = SlotMover(nodes, [slots_of("stuck")[0], slots_of("none")[0]], seed)
    ends = [(slot, mover.begin(slot)) for slot in mover.slots]
    mover.move_keys(*ends[0], most=1)
    before = stored(nodes)
    steps = {
        "clear": made.clear,
        "claim": lambda: made.claim_many([str(number) for number in range(30)]),
        "copy": lambda: made.copy("none").delete(),
        "create": lambda: BloomFilter("none", CAPACITY, client=cluster, shards=SHARDS),
        "add under a lock": lambda: [locked.add(str(number)) for number in range(30)],
        "lock": partial(lock.acquire, timeout=0),
    }
    for what in ("clear", "copy", "create", "lock"):
        with pytest.raises(TryAgainError, match="the cluster moves the slot of key .*try again"):
            steps[what]()
        assert stored(nodes) == before, f"nothing is half done by {what}"
    for what in ("claim", "add under a lock"):
        with pytest.raises(TryAgainError, match="the cluster moves the slot of key .*try again"):
            steps[what]()
    # What one command does goes on.
    assert made.exists_many(["a", "b", "c"]) == [True] * 3
    for slot, new in ends:
        while mover.move_keys(slot, new):
            pass
        mover.finish(slot, new)
    for step in steps.values():
        step()
    lock.release()


def test_a_server_that_is_down_is_named_and_nothing_is_half_done():
    with servers.cluster(60_000, {"cluster-require-full-coverage": "no"}) as nodes:
        first, _, last = nodes
        with client_of(servers.port_of(first)) as cluster:
            # Its first shard, where everything begins, is on the first server.
            name = next(name for name in "abcdefgh" if slot_of(name) < servers.SLOTS // 3)
            made = BloomFilter(name, CAPACITY, RATE, client=cluster, shards=SHARDS)
            items = [str(number) for number in range(100)]
            assert all(made.add_many(items))
            address = f"127.0.0.1:{servers.port_of(last)}"
            last.shutdown(nosave=True)
            before = stored(nodes[:2])
            others = {
                "create": lambda: BloomFilter("other", CAPACITY, client=cluster, shards=SHARDS),
                "clear": made.clear,
                "copy": lambda: made.copy("other"),
            }
            for what, step in others.items():
                with pytest.raises(redis.ConnectionError, match=address):
                    step()
                assert stored(nodes[:2]) == before, f"nothing is half done by {what}"
            with pytest.raises(redis.ConnectionError, match=address) as raised:
                made.exists_many(items)
            known = raised.value.results
            assert set(known) == {True, None}, "the answers of the others are known"
            # One that stops half-way can be repeated.
            for _ in range(2):
                with pytest.raises(redis.ConnectionError, match=address):
                    made.delete()
