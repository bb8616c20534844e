"""Features two by two: each pair of choices meets in some filter, which answers as a set would.

A covering array of all pairs is walked: each row is a filter with one choice of every parameter,
and a random walk over everything it can do. Single-threaded, and without faults.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import traceback
from contextlib import ExitStack

import pytest
import redis
import redis.asyncio
import servers
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.exceptions import ResponseError
from redis.sentinel import Sentinel

from bloomlock import AsyncBloomFilter, BloomFilter, FilterLostError
from bloomlock.server import PrivateServer
from bloomlock.strategies import bitmap

STEPS = 25
CAPACITY = 2000
ERROR_RATE = 1e-9
"""So few items at this rate: a false positive would be a wonder, so equality is asked."""
SEED = 1
"""Of the array: with another one the same pairs meet in other rows."""

PARAMETERS = {
    "server": ("valkey", "redis7", "redis62", "cluster", "sentinel"),
    "rights": ("", "-eval -evalsha", "-bitop", "-client"),
    "strategy": ("atomic", "lua", "transaction", "pipeline", "lock"),
    "shape": ("classic", "blocked", "seeds"),
    "key": (None, True, "a secret of more than 16 bytes"),
    "shards": (1, 2, 7),
    "route": ("auto", "items", "script", "bitmap"),
    "parts": ("whole", "in parts"),
    "face": ("sync", "thread", "fork", "asyncio"),
    "protocol": (2, 3),
    "decode": (False, True),
    "near_cache": (0, 40),
    "on_lost": ("raise", "recreate"),
    "on_unknown": ("raise", "new"),
    "on_full": ("warn", "raise"),
    "item": ("str", "bytes", "both"),
    "given": ("list", "iterator"),
    "prefix": ("bloomlock", "p%:é"),
    "name": ("crossed", "{a}/%b é"),
}
PASSED_ON = {"name", "strategy", "shards", "near_cache", "on_lost", "on_unknown", "on_full"}
PASSED_ON |= {"prefix", "key"}
NO_MERGING = {"-eval -evalsha", "-bitop"}
"""Rights with which items are merged one by one, and the bits of a whole filter cannot be."""
SHAPES = {"classic": {}, "blocked": {"layout": "blocked"}, "seeds": {"seeds": range(30)}}


def all_pairs(parameters, seed):
    """Return rows in which every two choices of two parameters meet (greedily, so not the fewest).

    Args:
        parameters: The choices of each.
        seed: Of the rows.
    """
    rng = random.Random(seed)
    missing = {
        ((one, a), (other, b))
        for one, other in itertools.combinations(parameters, 2)
        for a in parameters[one]
        for b in parameters[other]
    }
    rows, order = [], list(parameters)
    while missing:
        row = dict(rng.choice(sorted(missing, key=repr)))
        for name in rng.sample(sorted(parameters), len(parameters)):
            if name not in row:
                gains = {
                    choice: len(missing.intersection(pairs_of(row, (name, choice), order)))
                    for choice in rng.sample(parameters[name], len(parameters[name]))
                }
                row[name] = max(gains, key=gains.__getitem__)
        missing -= set(itertools.combinations([(name, row[name]) for name in parameters], 2))
        rows.append(row)
    return rows


def pairs_of(row, new, order):
    """Return the pairs a choice would make with those of a row, in the order of the parameters."""
    for old in row.items():
        yield (old, new) if order.index(old[0]) < order.index(new[0]) else (new, old)


def possible(row):
    """Return the row without what README says does not go together."""
    if row["shape"] == "seeds":
        row = row | {"key": None}
    if row["strategy"] == "lock":
        return row | {"route": "items"}
    if row["strategy"] == "lua" and "eval" in row["rights"]:
        return row | {"rights": ""}
    return row


ROWS = all_pairs(PARAMETERS, SEED)


def test_every_pair_of_choices_meets():
    for one, other in itertools.combinations(PARAMETERS, 2):
        expected = set(itertools.product(PARAMETERS[one], PARAMETERS[other]))
        assert {(row[one], row[other]) for row in ROWS} == expected


@pytest.fixture(scope="module")
def places():
    """Servers by kind, started when they are first asked for."""
    with ExitStack() as stack:
        yield Places(stack)


class Places(dict):
    """By kind: how to connect a client to its server."""

    def __init__(self, stack):
        super().__init__()
        self._stack = stack

    def __missing__(self, kind):
        binary = servers.require_server(kind if kind.startswith("redis") else "valkey")
        config = {"cluster-enabled": "yes"} if kind == "cluster" else {}
        port = servers.low_port() if kind == "cluster" else 0
        server = self._stack.enter_context(PrivateServer(binary=binary, port=port, config=config))
        options = {"host": "127.0.0.1", "port": server.port}
        watcher = None
        if kind == "cluster":
            with redis.Redis(**options, decode_responses=True) as node:
                node.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
                servers.wait_until(lambda: node.cluster("info").get("cluster_state") == "ok")
        elif kind == "sentinel":
            watcher = self._stack.enter_context(servers.sentinel(binary, "mine", server.port))
        self[kind] = kind, options, watcher
        return self[kind]


def client_of(place, *, awaited, **more):
    """Return a client of the server of a place, as the row's user."""
    kind, options, watcher = place
    library = redis.asyncio if awaited else redis
    if kind == "cluster":
        return library.RedisCluster(**options, **more)
    if kind == "sentinel":
        made = (AsyncSentinel if awaited else Sentinel)([("127.0.0.1", watcher)])
        return made.master_for("mine", **more)
    return library.Redis(**options, **more)


class Awaited:
    """An AsyncBloomFilter with the methods of a BloomFilter."""

    def __init__(self, runner, made):
        self._runner = runner
        self._made = made

    def __getattr__(self, name):
        method = getattr(self._made, name)

        def call(*arguments, **options):
            result = self._runner.run(self._await(method, arguments, options))
            return Awaited(self._runner, result) if name == "copy" else result

        return call

    @staticmethod
    async def _await(method, arguments, options):
        return await method(*arguments, **options)


class Walk:
    """A filter and a set, to which the same is done.

    Args:
        row: One choice of each parameter.
        make: Makes the filter, or attaches to it.
        other: Attaches to it with a client of its own, and rights of all kinds.
        seed: Of what is done.
    """

    def __init__(self, row, make, other, seed):
        self.row = row
        self.make = make
        self.other = other
        self.rng = random.Random(seed)
        self.seen = set()
        self.count = 0
        self.done = []
        self.filter = make()
        self.route = row["route"]

    def fresh(self, count):
        numbers = range(self.count, self.count + count)
        self.count += count
        return [f"item é {number}" for number in numbers]

    def some(self, most):
        """Return items in the row's form: old ones, new ones, repeated ones; in any order."""
        old = sorted(self.seen)
        known = [self.rng.choice(old).decode() for _ in range(self.rng.randrange(most)) if old]
        items = known + self.fresh(self.rng.randrange(1, most))
        items += items[: self.rng.randrange(5)]
        self.rng.shuffle(items)
        return [self.formed(item) for item in items]

    def formed(self, item):
        kind = self.row["item"]
        if kind == "both":
            kind = self.rng.choice(["str", "bytes"])
        return item.encode() if kind == "bytes" else item

    def given(self, items):
        return iter(items) if self.row["given"] == "iterator" else items

    def offered(self, items):
        """Take items into the set; return what an add of each is to answer."""
        answers = []
        for item in items:
            data = item if isinstance(item, bytes) else item.encode()
            answers.append(data not in self.seen)
            self.seen.add(data)
        return answers

    def known(self, items):
        return [(i if isinstance(i, bytes) else i.encode()) in self.seen for i in items]

    def add(self):
        for item in self.some(4):
            assert [self.filter.add(item)] == self.offered([item])

    def add_many(self):
        items = self.some(60)
        got = self.filter.add_many(self.given(items), route=self.route)
        assert got == self.offered(items)

    def update(self):
        items = self.some(60)
        self.filter.update(self.given(items), route=self.route)
        self.offered(items)

    def exists(self):
        for item in self.some(4):
            assert [self.filter.exists(item)] == self.known([item])

    def exists_many(self):
        items = self.some(60)
        got = self.filter.exists_many(self.given(items), route=self.route)
        assert got == self.known(items)

    def merge(self):
        memory = self.filter.to_memory()
        items = self.some(30)
        assert memory.exists_many(items) == self.known(items)
        memory.update(items)
        if self.row["rights"] in NO_MERGING:
            with pytest.raises(ResponseError):
                self.filter.update(memory)
        else:
            self.filter.update(memory)
            self.offered(items)

    def clear(self):
        self.filter.clear()
        self.seen.clear()

    def reattach(self):
        self.filter.reattach()

    def attach_again(self):
        self.filter = self.make()

    def copy(self):
        copied = self.filter.copy("copied")
        items = self.some(30)
        assert copied.exists_many(items) == self.known(items)
        assert copied.add_many(["only there"]) == [True]
        assert self.filter.exists("only there") is False
        assert copied.delete() is True

    def info(self):
        assert self.filter.count() == pytest.approx(len(self.seen), abs=4)
        info = self.filter.info()
        assert (info.capacity, info.shards) == (CAPACITY, self.row["shards"])
        assert info.estimated_count == pytest.approx(len(self.seen), abs=4)

    def forget_scripts(self):
        self.other().script_flush()

    def cleared_by_another(self):
        """Another client clears it and adds some of the items that this one offers next."""
        items = self.fresh(20)

        def clear(opened):
            opened.clear()
            opened.update(items[::3])
            self.seen = {item.encode() for item in items[::3]}

        self.lose(clear, items)

    def deleted_by_another(self):
        def delete(opened):
            opened.delete()
            self.seen.clear()

        self.lose(delete, self.fresh(20))

    def lose(self, act, items):
        """Let another client act, and see that this one takes notice, by whatever it does."""
        options = {name: self.row[name] for name in ("name", "prefix", "key")}
        with BloomFilter.open(**options, client=self.other()) as opened:
            act(opened)
        items = [self.formed(item) for item in items]
        notice = {
            "add": lambda: [self.filter.add(items[0])],
            "add_many": lambda: self.filter.add_many(self.given(items), route=self.route),
            "exists": lambda: [self.filter.exists(items[0])],
            "exists_many": lambda: self.filter.exists_many(self.given(items), route=self.route),
            "update": lambda: self.filter.update(self.given(items), route=self.route),
            "to_memory": lambda: self.filter.to_memory().exists_many(items),
            "count": self.filter.count,
            "info": lambda: self.filter.info().estimated_count,
        }
        name = self.rng.choice(sorted(notice))
        self.done[-1] += f" noticed by {name}"
        if self.row["on_lost"] == "raise":
            with pytest.raises(FilterLostError):
                notice[name]()
            self.filter.reattach()
            if name == "update":
                # It may have been done there, and nobody is owed an answer.
                notice[name]()
                self.offered(items)
                return
            # What it added to the new generation before it took notice is reported as new.
            assert self.filter.add_many(items, route=self.route) == self.offered(items)
            return
        expected = {
            "add": lambda: self.offered(items[:1]),
            "add_many": lambda: self.offered(items),
            "exists": lambda: self.known(items[:1]),
            "exists_many": lambda: self.known(items),
            "update": lambda: self.offered(items) and None,
            "to_memory": lambda: self.known(items),
            "count": lambda: pytest.approx(len(self.seen), abs=4),
            "info": lambda: pytest.approx(len(self.seen), abs=4),
        }
        assert notice[name]() == expected[name]()

    def report(self):
        """Walk; return "" or what went wrong, as text, since it may be in another process."""
        try:
            self.run()
        except BaseException:  # noqa: BLE001 - it goes to the test
            return f"after {self.done}\n{traceback.format_exc()}"
        return ""

    def run(self):
        moves = [
            self.add, self.add_many, self.add_many, self.update, self.exists, self.exists_many,
            self.exists_many, self.merge, self.clear, self.reattach, self.attach_again, self.copy,
            self.info, self.forget_scripts, self.cleared_by_another, self.cleared_by_another,
            self.cleared_by_another, self.deleted_by_another,
        ]  # fmt: skip
        for move in [self.add_many, *self.rng.choices(moves, k=STEPS), self.info]:
            self.done.append(move.__name__)
            move()
            asked = sorted(self.seen)
            if self.row["near_cache"] and asked:
                asked += self.rng.choices(asked, k=20)
            assert all(self.filter.exists_many(asked, route=self.route)), "a false negative"


def walk(row, place, seed):
    """Make the filter of a row here, walk in the row's thread or process, and report."""
    _, options, _ = place
    with ExitStack() as stack:
        admin = stack.enter_context(redis.Redis(**options))
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", "crossing", "reset", "on", ">any", "~*", "&*",
                              "+@all", *row["rights"].split())  # fmt: skip
        user = {"username": "crossing", "password": "any"}
        user |= {"decode_responses": row["decode"], "protocol": row["protocol"]}
        wanted = {name: row[name] for name in PASSED_ON} | SHAPES[row["shape"]]
        wanted |= {"capacity": CAPACITY, "error_rate": ERROR_RATE}
        if row["face"] == "asyncio":
            runner = stack.enter_context(asyncio.Runner())

            async def connect():
                return client_of(place, awaited=True, **user)

            async def attach():
                return await AsyncBloomFilter(client=client, **wanted)

            client = runner.run(connect())
            stack.callback(lambda: runner.run(client.aclose()))

            def make():
                return Awaited(runner, runner.run(attach()))

        else:
            client = client_of(place, awaited=False, **user)
            stack.callback(client.close)

            def make():
                return BloomFilter(client=client, **wanted)

        walked = Walk(row, make, lambda: client_of(place, awaited=False), seed)
        return ROADS.get(row["face"], in_place)(walked.report)


def in_place(function):
    return function()


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def in_child(function):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, function().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


ROADS = {"thread": in_thread, "fork": in_child}


@pytest.mark.parametrize(
    "number",
    [n if n < 4 else pytest.param(n, marks=pytest.mark.thorough) for n in range(len(ROWS))],
)
def test_as_a_set(places, monkeypatch, number, seed):
    row = possible(ROWS[number])
    print(row)
    if row["parts"] == "in parts":
        monkeypatch.setattr(bitmap, "WHOLE_BYTES", 1000)
        monkeypatch.setattr(bitmap, "PART_BYTES", 640)
    place = places[row["server"]]
    if said := walk(row, place, seed):
        pytest.fail(said, pytrace=False)
