"""Items are forgotten, one by one or by a window, while replicas answer: in sync and behind."""

from __future__ import annotations

import random
import time

import pytest
import servers
from redis.cluster import ClusterNode, RedisCluster

from bloomlock import BloomFilter, BloomlockError, ClaimState, FilterLostError

ITEMS = [f"item {number}" for number in range(40)]
STALENESS = 1000.0
KINDS = {
    "bitmap": {"capacity": 3000},
    "growing": {"capacity": 20, "growth": 2, "on_full": "grow"},
    "window": {"capacity": 3000, "window": 86_400.0},
}
STEPS, MANY = 60, 60


@pytest.fixture(scope="module")
def nodes():
    with servers.replicated_cluster(20_000) as both:
        yield both


@pytest.fixture
def cluster(nodes):
    port = nodes[0][0].connection_pool.connection_kwargs["port"]
    for master in nodes[0]:
        master.flushall()
    with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)]) as made:
        in_sync(nodes)
        yield made


def in_sync(nodes):
    """Wait until each replica has all that its master has."""
    for master, replica in zip(*nodes, strict=True):
        wanted = master.info("replication")["master_repl_offset"]
        servers.wait_until(
            lambda r=replica, w=wanted: r.info("replication")["slave_repl_offset"] >= w
        )


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def reader_of(cluster, clock, **options):
    """Return an object whose tests replicas answer, and which keeps answers by a clock."""
    kept = {"near_cache": 50, "max_staleness": STALENESS} | options
    made = BloomFilter.open("x", client=cluster, read_from_replicas=True, **kept)
    if made._state.caching is not None:
        made._state.caching.clock = clock
        # Another cache takes the place of the one that has the usual clock.
        made._state.forget()
    return made


class Walk:
    """Adds, claims and discards by all objects, and tests by readers, held against a set.

    While replicas are behind, a reader that has not heard of forgotten items may say what was there
    when they were cut off. All else is exact.
    """

    def __init__(self, cluster, nodes, kind, seed):
        self.chance, self.nodes, self.clock = random.Random(seed), nodes, Clock()
        shards = self.chance.choice((1, 3))
        self.writer = BloomFilter(
            "x", error_rate=1e-9, client=cluster, shards=shards, **KINDS[kind]
        )
        renews = {"refresh": True} if kind == "window" else {}
        self.readers = [
            reader_of(cluster, self.clock),
            reader_of(cluster, self.clock, near_cache=0),
            reader_of(cluster, self.clock, **renews),
        ]
        self.there, self.at_cut = set(), None
        self.stale = 0

    def run(self, steps):
        for step in range(steps):
            if step == steps // 2:
                in_sync(self.nodes)
                servers.cut(self.nodes[1])
                self.at_cut = set(self.there)
            some = self.chance.choices(ITEMS, k=self.chance.randrange(1, 6))
            made = self.chance.choice([self.writer, *self.readers])
            # So that each half begins without forgotten items in some walks.
            acts = [self.add, self.add, self.claim, self.look, self.look, self.look]
            if step % (steps // 2) > steps // 6:
                acts.append(self.discard)
            self.chance.choice(acts)(made, some)

    def firsts(self, some, answer):
        return [answer(item) and some.index(item) == at for at, item in enumerate(some)]

    def add(self, made, some):
        assert made.add_many(some) == self.firsts(some, lambda item: item not in self.there)
        self.there |= set(some)

    def claim(self, made, some):
        claim = made.claim(some[0], renew=False)
        assert (claim.state is ClaimState.SEEN) is (some[0] in self.there)
        if claim:
            claim.commit()
        self.there.add(some[0])

    def discard(self, made, some):
        assert made.discard_many(some) == self.firsts(some, self.there.__contains__)
        self.there -= set(some)
        # What others have kept of before is too old from now on.
        self.clock.now += STALENESS + 1

    def look(self, made, some):
        if self.at_cut is None:
            in_sync(self.nodes)
        is_single = self.chance.random() < 0.5
        found = [made.exists(item) for item in some] if is_single else made.exists_many(some)
        may_be_stale = self.at_cut is not None and made._state.view.forgotten is None
        for item, answer in zip(some, found, strict=True):
            if answer is not (item in self.there):
                assert made is not self.writer
                assert may_be_stale, item
                assert answer is (item in self.at_cut), item
                self.stale += 1


def walk(nodes, cluster, kind, seed):
    for master in nodes[0]:
        master.flushall()
    one = Walk(cluster, nodes, kind, seed)
    try:
        one.run(STEPS)
    finally:
        servers.join(nodes[1])
    return one.stale


@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_is_that_of_the_masters_or_of_before(nodes, cluster, kind, seed):
    print(f"{walk(nodes, cluster, kind, seed)} answers of before")


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_of_many_walks(nodes, cluster, kind, seed):
    assert sum(walk(nodes, cluster, kind, f"{seed}/{number}") for number in range(MANY))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [False, True])
def test_an_add_and_a_claim_go_by_masters_and_not_by_what_a_replica_has_said(
    nodes, cluster, kind, batch
):
    """Else the item would be seen by them as long as the replica is behind."""
    writer = BloomFilter("x", client=cluster, **KINDS[kind])
    readers = [reader_of(cluster, Clock()) for _ in range(3)]
    writer.update(["a", "b"])
    in_sync(nodes)
    servers.cut(nodes[1])

    def exists(reader):
        return reader.exists_many(["a", "b"])[0] if batch else reader.exists("a")

    try:
        writer.discard_many(["a", "b"])
        for reader in readers:
            assert exists(reader) is True, "a replica that is behind says so"
        assert readers[0].add_many(["a"]) == [True] if batch else readers[0].add("a")
        assert readers[1].claim("b", renew=False).state is ClaimState.NEW
        writer.clear()
        with pytest.raises(FilterLostError):
            readers[2].add("a")
    finally:
        servers.join(nodes[1])


@pytest.mark.parametrize("batch", [False, True])
def test_a_replica_does_not_lengthen_the_life_of_what_is_kept(nodes, cluster, batch):
    writer, clock = BloomFilter("x", 3000, client=cluster), Clock()
    reader = reader_of(cluster, clock)
    reader.add("a")
    in_sync(nodes)
    servers.cut(nodes[1])
    try:
        assert reader.is_kept("a")
        writer.discard("a")
        clock.now += STALENESS / 2
        assert (reader.exists_many(["never"]) if batch else [reader.exists("never")]) == [False]
        assert reader.is_kept("a")
        clock.now += STALENESS / 2
        assert not reader.is_kept("a")
        assert reader.add("a")
    finally:
        servers.join(nodes[1])


def test_what_a_window_has_forgotten_no_replica_sees(nodes, cluster, seed):
    """Short slices, and real time."""
    chance = random.Random(seed)
    writer = BloomFilter("x", 3000, client=cluster, window=1.2, slices=6, shards=3)
    readers = [
        reader_of(cluster, Clock(), near_cache=0),
        BloomFilter.open("x", client=cluster, read_from_replicas=True, near_cache=50),
        BloomFilter.open("x", client=cluster, read_from_replicas=True, refresh=True, near_cache=50),
    ]
    objects = [writer, *readers]
    known, forgotten = dict.fromkeys(ITEMS, False), 0
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        item = chance.choice(ITEMS)
        if chance.random() < 0.3:
            try:
                chance.choice(objects).add(item)
            except BloomlockError:
                # On a busy machine it may come too late for its slice again and again.
                known.pop(item)
                continue
            known[item] = True
            in_sync(nodes)
            continue
        answers = [made.exists(item) for made in chance.sample(objects, 2)]
        if item in known and False in (before := [known[item], *answers]):
            assert not any(before[before.index(False) :]), f"{item} came back"
            forgotten += known[item]
            known[item] = False
    print(f"{forgotten} forgotten")
