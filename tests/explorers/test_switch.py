"""Clients that create, clear, delete, copy and rebuild one filter while others add to it.

The filter has two shards. The item lies in the second, so that its shard is placed by a script and
not by the switch itself. Requests may be late, any key may be evicted, and a client may crash.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import NamedTuple

import pytest
import redis
from explorer import (
    DONE,
    EXTRA,
    LATE,
    Cores,
    Done,
    Move,
    Operation,
    contents_of,
    core_of,
    explore_living,
    followed_by,
    is_linearizable,
    judge_once,
    put_back,
    wander,
)
from stepped import Crash, Stepped, crash

from bloomlock import BloomFilter
from bloomlock.errors import BloomlockError
from bloomlock.filters import switch
from bloomlock.filters.dump import copy_to
from bloomlock.filters.fill import FillWatch
from bloomlock.filters.options import FilterOptions
from bloomlock.filters.rebuilding import rebuild
from bloomlock.keys import FilterKeys

PARAMETERS = {"capacity": 50, "error_rate": 1e-9, "shards": 2}
SHAPE = {**PARAMETERS, "on_lost": "recreate"}
ITEM, OTHER = "item 0", "item 1"
KEYS = FilterKeys("x")
ABSENT, THERE = "absent", "there"
EVICTED = {
    "descriptor": KEYS.meta,
    "first shard": KEYS.bits(0),
    "second shard": KEYS.bits(1),
    "prepared": "*{x/1}*:prepared:*",
}
SWITCHES = ("create", "clear", "delete", "copy", "rebuild")
KINDS = (*SWITCHES, "add", "exists")


class Way(NamedTuple):
    """How a walk begins.

    Attributes:
        stage: "none", "absent", "there": whether there is a filter, and whether it has the item;
            "dead": it had, and a client died when it had cleared it half-way.
        programs: What each client does.
    """

    stage: str
    programs: tuple[tuple[str, ...], ...]


@pytest.fixture(scope="module")
def _no_waiting():
    """Clients that wait for a closed filter open it at once, and nobody looks at the fill."""

    def nothing(_watch, _view):
        yield from ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switch, "LOOKS", 1)
        patch.setattr(switch, "LOOK_SECONDS", 0)
        patch.setattr(FillWatch, "start", nothing)
        patch.setattr(FillWatch, "look_after_add", nothing)
        yield


class World:
    def __init__(self, client):
        self.client = client
        self._contents = {}
        client.flushdb()
        BloomFilter("source", client=client, **SHAPE).update([ITEM, OTHER])
        self._contents["none"] = contents_of(client)
        made = BloomFilter("x", client=client, **SHAPE)
        view = made._state.view
        assert [view.hasher.locate(one.encode())[0] for one in (OTHER, ITEM)] == [0, 1]
        self._contents["absent"] = contents_of(client)
        made.update([ITEM, OTHER])
        self._contents["there"] = contents_of(client)
        self._contents["dead"] = self._half_cleared()
        self._source = BloomFilter("source", client=client, **SHAPE)

    def _half_cleared(self):
        for number in itertools.count():
            put_back(self.client, self._contents["there"])
            kind = Stepped.before(-1, crash)
            made = kind("x", client=self.client, **SHAPE)
            kind.at, kind.done = number, 0
            try:
                made.clear()
            except Crash:
                if self.client.hget(KEYS.meta, "state") == b"placing":
                    break
        return contents_of(self.client)

    def _unattached(self):
        """Return an object that has not looked at the server yet."""
        return BloomFilter._of(
            "x", FilterOptions(shape=PARAMETERS, on_lost="recreate"), self.client
        )

    def _copied(self):
        """Put a copy of another filter in the place of this one."""
        yield from copy_to(
            self._source._state, KEYS, lambda core: core, replace=True, progress=None
        )

    def _program(self, made, kinds):
        own = made._state
        for kind in kinds:
            if kind == "create":
                yield Operation(kind, self._nothing_of(own.attach()))
            elif kind == "clear":
                yield Operation(kind, own.clear())
            elif kind == "delete":
                yield Operation(kind, self._nothing_of(own.delete()))
            elif kind == "copy":
                yield Operation(kind, self._copied())
            elif kind == "rebuild":
                yield Operation(
                    kind, rebuild(own, [ITEM, OTHER], None, None, {"shards": 2}, late=list)
                )
            else:
                yield Operation(kind, core_of(made, kind, ITEM))

    @staticmethod
    def _nothing_of(core):
        yield from core

    def start(self, way, faults=0, evicted=None):
        """Return what brings all to the start of a way.

        Args:
            way: What is done.
            faults: How many requests may be late, or never arrive.
            evicted: What may be evicted, once.
        """

        def evict():
            self.client.delete(*(self.client.keys(EVICTED[evicted]) or ["none"]))

        def start():
            made = []
            for kinds in way.programs:
                if kinds[0] == "create" or way.stage == "none":
                    made.append(self._unattached())
                    continue
                put_back(self.client, self._contents["there" if way.stage == "dead" else way.stage])
                made.append(BloomFilter("x", client=self.client, **SHAPE))
            put_back(self.client, self._contents[way.stage])
            programs = [
                self._program(one, kinds) for one, kinds in zip(made, way.programs, strict=True)
            ]
            return Cores(
                self.client,
                programs,
                faults=faults,
                fates=(LATE,),
                extra={f"evict {evicted}": (1, evict)} if evicted else {},
                answers=(BloomlockError,),
            )

        return start

    def check(self, way):
        """Return the judge: the answers are those of a set, whatever comes after this state."""
        first = THERE if way.stage in ("there", "dead") else ABSENT

        def hint(world, history):
            # When all is over, and nothing was evicted or lost, the filter is whole, or it is gone.
            is_over = all(one.end < math.inf and one.client >= 0 for one in map(known, history))
            return "raise" if is_over and not world.late else "recreate"

        def probe(on_lost):
            fresh = BloomFilter("x", client=self.client, **SHAPE | {"on_lost": on_lost})
            kinds = ("exists", "add", "add", "exists")
            answers = [(kind, getattr(fresh, kind)(ITEM)) for kind in kinds]
            assert self.client.hget(KEYS.meta, "state") == b"ready"
            lasting = [key for key in self.client.scan_iter("*{x*") if b"prepared" not in key]
            assert len(lasting) == 3, lasting
            return answers

        def judge(history, _, answers):
            assert all(one.answer != "FilterMismatchError" for one in history), history
            if way.stage == "dead":
                # Whoever looks at the descriptor finishes that clear before anything else.
                done = [one.end for one in history if one.kind in SWITCHES and one.answer == "done"]
                end = followed_by(history, [("clear", None)])[-1].end
                history.append(Done(0, min([*done, end]), "clear", None))
            history = followed_by(history, answers)
            # What an add marks in a generation that it does not know is there too, until that ends.
            history += [one._replace(kind="mark") for one in history if one.kind == "add"]
            assert is_linearizable([*map(known, history)], first, after_in_a_set), history

        return judge_once(hint, probe, judge)


def known(one):
    """Return an operation of a history without an end if nobody knows when it is over.

    What is evicted is lost at some time after that, or something has taken its place.
    """
    if one.kind.startswith("evict"):
        return one._replace(kind="clear", end=math.inf)
    return one._replace(end=math.inf, answer=None) if is_error(one.answer) else one


def is_error(answer):
    return isinstance(answer, str) and answer.endswith("Error")


def after_in_a_set(one, now):
    if one.kind in ("clear", "delete"):
        return [ABSENT]
    if one.kind == "copy":
        return [THERE]
    if one.kind == "mark":
        return [THERE, now]
    if one.kind in ("create", "rebuild"):
        return [now]
    if one.kind == "exists":
        return [now] if one.answer in (None, now == THERE) else []
    return [THERE] if one.answer in (None, now == ABSENT) else []


@pytest.fixture(scope="module")
def world(all_servers, _no_waiting):
    with redis.Redis.from_url(all_servers.url("valkey", bloom=False)) as client:
        yield World(client)


TOGETHER = [
    # A helper that has read "placing" sleeps while another client finishes it, and clears again.
    ("dead", ("create",), ("clear", "add", "exists")),
    ("dead", ("add",), ("clear", "add", "exists")),
    ("dead", ("clear",), ("create", "add", "exists")),
    ("dead", ("create", "add"), ("delete",)),
    ("dead", ("create", "add"), ("copy",)),
    # "It failed, so another client has cleared" is wrong of a rebuild.
    ("there", ("clear",), ("rebuild",)),
    ("there", ("clear",), ("clear", "add")),
    ("there", ("clear",), ("delete",)),
    ("there", ("clear",), ("copy",)),
    ("there", ("delete",), ("clear", "add", "exists")),
    ("there", ("delete",), ("copy", "exists")),
    ("absent", ("add",), ("clear", "add")),
    ("absent", ("add",), ("rebuild", "exists")),
    ("absent", ("add",), ("delete",)),
    ("there", ("exists", "add"), ("clear", "rebuild")),
    # Whoever meets a generation that is half in its place goes on with it, and loses nothing of it.
    ("there", ("exists",), ("rebuild",)),
    ("there", ("create",), ("copy",)),
    ("there", ("rebuild",), ("clear", "add")),
    ("there", ("rebuild",), ("delete", "create")),
    ("absent", ("copy",), ("add", "clear", "add")),
    ("none", ("create", "add"), ("create", "add", "exists")),
    ("none", ("create",), ("clear", "add")),
    ("none", ("copy",), ("create", "add")),
]
ALONE = ("clear", "delete", "copy", "rebuild", "create", "add")
WALKS, MANY = 60, 3000


def stride(seed, programs, is_long):
    """Return at which step to begin, and how many to leave out: copies and rebuilds have many."""
    size = 1 if is_long else 4 if {"copy", "rebuild"} & {*itertools.chain(*programs)} else 2
    return random.Random(str(seed)).randrange(size), size


def go_on(walk, client, steps=math.inf):
    """Let one client make some steps, or all it has; return how many there were left to make."""
    while steps and walk.is_going(client):
        steps -= walk.take(Move(client, DONE), steps)
    return steps


@pytest.mark.parametrize("case", TOGETHER, ids=str)
def test_a_client_that_sleeps_at_any_step(world, case, seed, is_long):
    """It wakes when the other is done; in the long version the other sleeps as well meanwhile."""
    stage, *programs = case
    way = Way(stage, tuple(programs))
    for first, second in ((0, 1), (1, 0)):
        (number, size), left = stride(f"{seed} {first}", programs, is_long), 0
        while not left:
            inner, rest = 0, 0
            while not rest:
                walk = world.start(way)()
                left = go_on(walk, first, number)
                rest = go_on(walk, second, inner if is_long else math.inf)
                go_on(walk, first)
                go_on(walk, second)
                walk.judge(world.check(way))
                for one in walk.history:
                    # What nobody else replaces, and nobody loses, is not found lost.
                    is_alone = not {*SWITCHES} & {*programs[1 - one.client]}
                    # A client that waits opens the filter again, and the rebuild says so.
                    is_opened = (one.kind, one.answer) == ("rebuild", "BloomlockError")
                    is_wrong = is_error(one.answer) and not is_opened
                    assert not (is_alone and is_wrong), walk.history
                inner += 1
            number += size
        assert number > 1


@pytest.mark.parametrize("lost", EVICTED)
@pytest.mark.parametrize("kind", ALONE)
def test_a_key_that_is_evicted_at_any_step(world, kind, lost, seed, is_long):
    """A client goes on with the filter, and another one comes when it is done."""
    for stage in ("there", "dead"):
        way = Way(stage, ((kind, "exists"), ("add", "exists")))
        (number, size), left = stride(f"{seed} {stage}", way.programs, is_long), 0
        while not left:
            walk = world.start(way, evicted=lost)()
            left = go_on(walk, 0, number)
            walk.take(Move(EXTRA, f"evict {lost}"))
            go_on(walk, 0)
            go_on(walk, 1)
            walk.judge(world.check(way))
            number += size
        assert number > 1


def test_a_helper_that_wakes_when_another_client_has_replaced_what_is_broken(world):
    """It places no shard of the broken generation over those of the next one."""
    number, left = 0, 0
    while not left:
        walk = world.start(Way("dead", (("create",),)), evicted="first shard")()
        left = go_on(walk, 0, number)
        walk.take(Move(EXTRA, "evict first shard"))
        BloomFilter("x", client=world.client, **SHAPE).add(ITEM)
        go_on(walk, 0)
        walk.close()
        assert BloomFilter.open("x", client=world.client).exists(ITEM), number
        number += 1
    assert number > 3


def test_two_and_three_clients_in_orders_by_chance(world, seed, is_long):
    """Requests are late, and keys are evicted."""
    for number in range(MANY if is_long else WALKS):
        chance = random.Random(f"{seed} {number}")
        stage = chance.choice(["none", "absent", "there", "dead"])
        programs = [
            tuple(chance.choices(KINDS, k=chance.choice([1, 2, 3])))
            for _ in range(chance.choice([2, 3]))
        ]
        way = Way(stage, tuple(programs))
        evicted = chance.choice([None, None, chance.choice([*EVICTED])])
        start = world.start(way, chance.choice([0, 1, 2]), evicted)
        wander(start, world.check(way), f"{seed} {number}")


@pytest.mark.long
@pytest.mark.parametrize("case", TOGETHER, ids=str)
def test_every_order(world, case):
    stage, *programs = case
    way = Way(stage, tuple(programs))
    assert explore_living(world.start(way), world.check(way)).states > 10
