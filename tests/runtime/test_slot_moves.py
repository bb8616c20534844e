"""Filters, claims and locks on a real cluster whose slots move all the time: exact counts."""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections import Counter
from functools import partial

import pytest
import redis
import redis.asyncio
import servers
from processes import FORKS
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import TryAgainError
from slot_moves import mover_of, moving
from stepped import Stepped
from strategies import EXACT

from bloomlock import AsyncBloomFilter, AsyncLock, BloomFilter, ClaimState, Lock, LockStrategy
from bloomlock.keys import FilterKeys, slot_of
from bloomlock.runtime import redispy

WORKERS = 3
PATIENCE = 300
"""Seconds that the processes may take on a machine that has other work."""
CAPACITY, RATE, SHARDS = 5000, 1e-9, 3
NAMES = {"race": 400, "locked": 400, "claimed": 100, "cleared": 0}
"""Filters of the processes, and how many items each has in the end."""
COUNT, COUNTED = "{race}:count", 30
"""A number that each process raises so often, under a lock."""
SHORT = 0.4
"""Seconds after which a slot that does not end its move is given up."""


@pytest.fixture(scope="module")
def nodes():
    """Three masters that own a third of the slots each."""
    with servers.cluster(60_000, servers.with_bloom()) as clients:
        yield clients


@pytest.fixture
def cluster(nodes):
    for client in nodes:
        client.flushall()
    with client_of(port_of(nodes[0])) as made:
        yield made


def port_of(node):
    return node.connection_pool.connection_kwargs["port"]


def client_of(port):
    return RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)])


def slots_of(*names):
    found = [FilterKeys(name).spread(SHARDS).bits(n) for name in names for n in range(SHARDS)]
    return [slot_of(key.partition("{")[2].partition("}")[0]) for key in found]


@pytest.mark.parametrize("strategy", EXACT)
def test_everything_goes_on_while_slots_move(nodes, cluster, strategy, seed):
    go_on(nodes, cluster, strategy, seed, at_once=False)


def test_everything_goes_on_while_slots_move_at_once(seed):
    """Valkey 9 does so, where no module is loaded that does not allow it."""
    with servers.cluster(60_000) as nodes, client_of(port_of(nodes[0])) as cluster:
        go_on(nodes, cluster, "atomic", seed, at_once=True)


def go_on(nodes, cluster, strategy, seed, *, at_once):
    items = [f"item {number}" for number in range(300)]
    with moving(nodes, slots_of("m", "copied"), seed, at_once=at_once) as mover:
        for _ in range(100):
            made = BloomFilter(
                "m", CAPACITY, RATE, client=cluster, shards=SHARDS, strategy=strategy
            )
            assert made.add("alone")
            assert made.add_many(items) == [True] * 300
            assert all(made.exists_many(["alone", *items]))
            assert made.add_many([*items, "alone"]) == [False] * 301
            copied = made.copy("copied")
            assert all(copied.exists_many(items))
            assert copied.delete()
            if strategy != "native":
                made.update(made.to_memory())
                other = made.copy("copied")
                assert other.add("other")
                made |= other
                assert made.exists("other")
                made &= other
                assert all(made.exists_many(["other", *items]))
                assert other.delete()
            made.clear()
            assert not any(made.exists_many(items))
            if strategy not in {"lock", "native"}:
                with made.claim("claimed") as claim:
                    assert claim.state is ClaimState.NEW
                    claim.extend()
                assert made.exists("claimed")
            with Lock("m", client=cluster) as lock:
                lock.check()
                lock.extend()
            assert made.delete()
            if mover.moves > 25:
                break
    assert mover.moves
    assert sum(node.dbsize() for node in nodes) == 1, "the last fence of the lock"


ITEMS = [f"item {number}" for number in range(300)]


def goes_by_a_window(client):
    for refresh in (True, False):
        made = BloomFilter(
            "m", CAPACITY, RATE, client=client, shards=SHARDS, window=3600, refresh=refresh
        )
        assert made.add("alone")
        assert made.add_many([*ITEMS, "alone"]) == [True] * 300 + [False]
        assert not made.add("alone")
        assert all(made.exists_many(["alone", *ITEMS]))
        made.clear()
        assert not any(made.exists_many(ITEMS))
        assert made.delete()


def grows(client):
    made = BloomFilter("m", 90, RATE, client=client, shards=SHARDS, on_full="grow")
    attached = BloomFilter.open("m", client=client)
    answers = [answer for item in range(0, 300, 50) for answer in made.add_many(ITEMS[item:][:50])]
    assert answers == [True] * 300
    assert made.info().slices > 1
    assert attached.add_many([*ITEMS, "alone"]) == [False] * 300 + [True]
    assert all(made.exists_many([*ITEMS, "alone"]))
    assert made.delete()


def forgets(client):
    made = BloomFilter("m", CAPACITY, RATE, client=client, shards=SHARDS)
    attached = BloomFilter.open("m", client=client)
    made.update(ITEMS)
    assert made.discard(ITEMS[0])
    assert made.discard_many(ITEMS[:20]) == [False] + [True] * 19
    assert attached.exists_many(ITEMS) == [False] * 20 + [True] * 280
    assert attached.add_many(ITEMS) == [True] * 20 + [False] * 280
    made.clear()
    assert made.delete()


def is_made_anew(client):
    made = BloomFilter("m", CAPACITY, RATE, client=client, shards=SHARDS)
    attached = BloomFilter.open("m", client=client)
    made.update(ITEMS)
    made.rebuild(ITEMS, 2 * CAPACITY, shards=SHARDS + 1, late=lambda: ["late"])
    assert attached.add_many([*ITEMS, "late", "b"]) == [False] * 301 + [True]
    assert attached.capacity == 2 * CAPACITY
    moved = made.copy_to(client, "copied")
    assert all(moved.exists_many([*ITEMS, "late", "b"]))
    moved.expire(600)
    moved.rename("copied again")
    assert all(BloomFilter.open("copied again", client=client).exists_many(ITEMS))
    assert BloomFilter.open("copied again", client=client).delete()
    assert made.delete()


@pytest.mark.parametrize("use", [goes_by_a_window, grows, forgets, is_made_anew])
def test_each_kind_of_filter_goes_on_while_slots_move(nodes, cluster, use, seed):
    with moving(nodes, slots_of("m", "copied"), seed) as mover:
        for _ in range(100):
            use(cluster)
            if mover.moves > 40:
                break
    assert mover.moves
    assert sum(node.dbsize() for node in nodes) == 0


def is_kept_under_locks(client):
    made = BloomFilter("m", CAPACITY, RATE, client=client, shards=SHARDS, strategy="lock")
    assert made.add("alone")
    assert made.add_many(ITEMS[:20]) == [True] * 20
    made.clear()
    assert not made.exists("alone")
    copied = made.copy("copied")
    assert copied.add("alone")
    assert copied.delete()
    assert made.delete()


def is_combined(client):
    made = BloomFilter("m", CAPACITY, RATE, client=client, shards=SHARDS)
    other = BloomFilter("copied", CAPACITY, RATE, client=client, shards=SHARDS)
    made.update(ITEMS)
    other.update(ITEMS[:50])
    made &= other
    assert made.add_many(ITEMS) == [False] * 50 + [True] * 250
    assert made.delete()
    assert other.delete()


def is_a_server_s_own(client):
    made = BloomFilter("m", CAPACITY, RATE, client=client, shards=SHARDS, strategy="native")
    assert made.add_many(ITEMS[:20]) == [True] * 20
    made.clear()
    copied = made.copy("copied")
    assert copied.add("alone")
    assert copied.delete()
    assert made.delete()


@pytest.mark.long
@pytest.mark.parametrize("half", [False, True], ids=["moved", "half moved"])
@pytest.mark.parametrize("use", [is_made_anew, is_kept_under_locks, is_combined, is_a_server_s_own])
def test_a_slot_moves_just_before_a_transaction(nodes, cluster, monkeypatch, use, half, seed):
    """All begins anew with its WATCH, where the keys are by then."""
    chance = random.Random(seed)
    names = ("m", "copied", "copied again")
    slots = {*map(slot_of, names), *slots_of(*names)}
    mover = mover_of(nodes, sorted(slots), chance.randrange(2**32))
    out, guard, real = [], threading.RLock(), redispy.send

    def end_move():
        while out:
            slot, new = out.pop()
            while mover.move_keys(slot, new):
                pass
            mover.finish(slot, new)
            # Moves that follow faster leave servers that disagree about the owner for good.
            time.sleep(0.06)

    def send(connection, *data):
        found = re.search(rb"EXEC\r\n$", data[-1]) and re.search(rb"\{([^}]*)\}", b"".join(data))
        with guard:
            end_move()
            slot = slot_of(found[1].decode()) if found else None
            if slot in slots and chance.random() < 0.5:
                new = mover.begin(slot)
                while mover.move_keys(slot, new):
                    pass
                out.append((slot, new))
                if not half:
                    end_move()
        real(connection, *data)

    monkeypatch.setattr(redispy, "send", send)
    while mover.moves < 30:
        use(cluster)
    end_move()
    assert sum(node.dbsize() for node in nodes) == 0


@pytest.mark.parametrize("strategy", ["atomic", "lock"])
def test_filters_and_locks_go_on_without_scripts(nodes, cluster, strategy, seed):
    """There each step is a transaction under WATCH, which a slot that moves cuts off."""
    for node in nodes:
        rules = ("on", "nopass", "~*", "&*", "+@all", "-@scripting")
        node.execute_command("ACL", "SETUSER", "plain", *rules)
    items = [f"item {number}" for number in range(60)]
    options = {"username": "plain", "password": "any"}
    with (
        RedisCluster(host="127.0.0.1", port=port_of(nodes[0]), **options) as client,
        moving(nodes, slots_of("m"), seed) as mover,
    ):
        while mover.moves < 25:
            made = BloomFilter("m", CAPACITY, RATE, client=client, shards=SHARDS, strategy=strategy)
            assert made.add_many(items) == [True] * 60
            assert made.add_many(items) == [False] * 60
            with Lock("m", client=client) as lock:
                lock.check()
                lock.extend()
            made.clear()
            assert not any(made.exists_many(items))
            assert made.delete()
    assert sum(node.dbsize() for node in nodes) == 1, "the last fence of the lock"


def test_everything_goes_on_in_asyncio(nodes, cluster, seed):
    items = [f"item {number}" for number in range(300)]

    async def run(mover):
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port_of(nodes[1]))
        options = {"client": client, "shards": SHARDS}
        while mover.moves < 25:
            made = await AsyncBloomFilter("m", CAPACITY, RATE, **options)
            answers = await asyncio.gather(*(made.add(item) for item in [*items[:50], *items[:50]]))
            assert sum(answers) == 50
            assert await made.add_many(items) == [False] * 50 + [True] * 250
            async with await made.claim("claimed") as claim:
                assert claim.state is ClaimState.NEW
            await made.clear()
            assert not any(await made.exists_many([*items, "claimed"]))
            async with AsyncLock("m", client=client) as lock:
                lock.check()
            assert await made.delete()
        await client.aclose()

    with moving(nodes, slots_of("m"), seed) as mover:
        asyncio.run(run(mover))


class Worker:
    """Does everything at once with others that do the same; notes what was won or is wrong."""

    def __init__(self, client, seed):
        self.won = []
        self._client = client
        self._seed = seed
        self._filters = {
            name: BloomFilter(
                name,
                CAPACITY,
                RATE,
                client=client,
                shards=SHARDS,
                strategy="lock" if name == "locked" else "atomic",
                on_lost="recreate" if name == "cleared" else "raise",
            )
            for name in NAMES
        }

    def add(self, item):
        if self._filters["race"].add(item):
            self.won.append(("race", item))
        if not self._filters["race"].exists(item):
            self.won.append("denied")

    def batch(self, name, route, items):
        answers = self._filters[name].add_many(items, route=route)
        self.won += [(name, item) for item, new in zip(items, answers, strict=True) if new]
        if not all(self._filters[name].exists_many(items)):
            self.won.append("denied in a batch")

    def claim(self, item):
        state = ClaimState.BUSY
        while state is ClaimState.BUSY:
            with self._filters["claimed"].claim(item, wait=10) as claim:
                if claim:
                    self.won.append(("claimed", item))
            state = claim.state

    def count(self):
        with Lock("race", client=self._client):
            count = int(self._client.get(COUNT) or 0)
            self._client.set(COUNT, count + 1)

    def clear(self, number):
        made = self._filters["cleared"]
        if not made.add(f"{self._seed} {number}"):
            self.won.append("an item of no other was seen")
        if number % 5 == 0:
            made.clear()


def work(port, seed, barrier, results):
    rng = random.Random(seed)
    with client_of(port) as client:
        worker = Worker(client, seed)
        jobs = [partial(worker.add, f"item {n}") for n in range(200)]
        jobs += [partial(worker.claim, f"item {n}") for n in range(NAMES["claimed"])]
        jobs += [worker.count for _ in range(COUNTED)]
        jobs += [partial(worker.clear, n) for n in range(30)]
        items = [f"item {n}" for n in range(NAMES["race"])]
        for how in (("race", "items"), ("race", "bitmap"), ("locked", "auto")):
            jobs += [partial(worker.batch, *how, rng.sample(items, 50)) for _ in range(8)]
        rng.shuffle(jobs)
        barrier.wait(PATIENCE)
        for job in jobs:
            job()
        for name in ("race", "locked"):
            worker.batch(name, "auto", items)
    results.put(worker.won)


@pytest.mark.processes
def test_several_processes_while_slots_move(nodes, cluster, seed):
    barrier, results = FORKS.Barrier(WORKERS), FORKS.Queue()
    workers = [
        FORKS.Process(
            target=work, args=(port_of(nodes[n % len(nodes)]), seed + n, barrier, results)
        )
        for n in range(WORKERS)
    ]
    with moving(nodes, slots_of(*NAMES), seed) as mover:
        for worker in workers:
            worker.start()
        won = Counter(one for _ in workers for one in results.get(timeout=PATIENCE))
        for worker in workers:
            worker.join(PATIENCE)
            assert worker.exitcode == 0
    print(f"{mover.moves} moves")
    assert mover.moves > 10
    expected = {(name, f"item {n}") for name, count in NAMES.items() for n in range(count)}
    assert won == Counter(expected), "one winner for each item, and no item is denied"
    assert int(cluster.get(COUNT)) == COUNTED * WORKERS, "one holder of the lock at a time"
    for name, count in NAMES.items():
        opened = BloomFilter.open(name, client=cluster)
        assert all(opened.exists_many([f"item {n}" for n in range(count)]))


@pytest.mark.parametrize("forgets", [False, True])
def test_a_slot_that_begins_to_move_before_any_request_of_a_rename(nodes, cluster, forgets, seed):
    """Each request of it is the first that finds the slot of the new name in a move."""
    number, steps = 0, Stepped.before(-1, lambda: None)
    mover = mover_of(nodes, [slot_of("copied")], seed)
    while steps.done >= number:
        for node in nodes:
            node.flushall()
        made = BloomFilter("m", CAPACITY, RATE, client=cluster)
        made.update(ITEMS)
        assert not forgets or made.discard(ITEMS[0])
        assert made.claim("claimed")
        ends = []

        def begin(ends=ends):
            ends.append(threading.Timer(0.05, end, (mover.begin(mover.slots[0]),)))
            ends[0].start()

        def end(new):
            while mover.move_keys(mover.slots[0], new):
                pass
            mover.finish(mover.slots[0], new)

        steps = Stepped.before(-1, begin)
        made = steps.open("m", client=cluster)
        steps.done, steps.at = 0, number
        try:
            made.rename("copied")
        finally:
            for one in ends:
                one.join()
        made = BloomFilter.open("copied", client=cluster)
        assert made.exists_many(ITEMS) == [not forgets] + [True] * 299, number
        assert made.claim("claimed").state is ClaimState.BUSY, number
        assert made.add_many([*ITEMS, "new"]) == [forgets] + [False] * 299 + [True], number
        number += 1
    assert number > 15
    assert mover.moves == number - 1


@pytest.fixture
def short(monkeypatch):
    """Let a slot that moves be given up soon."""
    for module in ("bloomlock.slot_moves", "bloomlock.runtime.cluster"):
        monkeypatch.setattr(f"{module}.MOVING_SECONDS", SHORT)


def stored(nodes):
    """Return all that the servers hold, also in slots that only are on their way to them."""
    return sorted((key, dump(node, key)) for node in nodes for key in node.scan_iter())


def dump(node, key):
    with redis.Redis(port=port_of(node), single_connection_client=True) as client:
        client.execute_command("ASKING")
        return client.dump(key)


def test_a_move_that_does_not_end_is_one_clear_error(nodes, cluster, short, seed):
    made = BloomFilter("stuck", CAPACITY, RATE, client=cluster, shards=SHARDS)
    assert made.add_many(["a", "b", "c"]) == [True] * 3
    locking = LockStrategy(timeout=SHORT)
    locked = BloomFilter.open("stuck", client=cluster, strategy=locking, on_lost="recreate")
    lock = Lock("stuck", client=cluster)
    mover = mover_of(nodes, [slots_of("stuck")[0], slots_of("none")[0]], seed)
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
        with client_of(port_of(first)) as cluster:
            # Its first shard, where everything begins, is on the first server.
            name = next(name for name in "abcdefgh" if slot_of(name) < servers.SLOTS // 3)
            made = BloomFilter(name, CAPACITY, RATE, client=cluster, shards=SHARDS)
            items = [str(number) for number in range(100)]
            assert all(made.add_many(items))
            address = f"127.0.0.1:{port_of(last)}"
            last.shutdown(nosave=True)
            before = stored(nodes[:2])
            others = {
                "create": lambda: BloomFilter("other", CAPACITY, client=cluster, shards=SHARDS),
                "clear": made.clear,
                "delete": made.delete,
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
