"""Clients that add, ask for and discard an item at the same time are answered as by a set.

The filters are plain ones and such that grow.
"""

from __future__ import annotations

import itertools
import random

import pytest
from explorer import Done, explore_living, is_linearizable, wander
from set_world import ABSENT, LASTING, STAGES, Way, after_in_a_set

PAIRS = [
    (["discard"], ["add"]),
    (["discard"], ["discard"]),
    (["discard"], ["exists", "exists"]),
    (["discard", "add"], ["add"]),
    (["add both"], ["discard some"]),
    (["coalesced"], ["discard"]),
]
LOSSES = [(["add"], ["add"]), *PAIRS[:2]]
KINDS = ("add", "add both", "coalesced", "exists", "discard", "discard some")
GROWS = {"capacity": 1, "on_full": "grow", "up_to": 85}
FILL = ["a", "b", "c"]
"""Of the five items of which the first slice is full."""
WALKS, MANY = 50, 1000


def test_the_judge_knows_a_set_from_what_is_none():
    def judge(first, *operations):
        return is_linearizable([Done(*one) for one in operations], first, after_in_a_set)

    never = float("inf")
    assert judge(LASTING, (0, 3, "discard", True), (1, 2, "exists", True), (4, 5, "add", True))
    assert not judge(LASTING, (0, 1, "discard", True), (2, 3, "exists", True))
    assert not judge(LASTING, (0, 3, "discard", True), (1, 2, "discard", True))
    assert not judge(ABSENT, (0, 1, "add", True), (2, 3, "exists", False))
    assert not judge(ABSENT, (0, 3, "add", True), (1, 2, "add", True))
    assert judge(LASTING, (0, never, "discard", None), (2, 3, "exists", True))
    assert judge(LASTING, (0, never, "discard", None), (2, 3, "exists", False))


@pytest.mark.parametrize("programs", PAIRS, ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_two_clients_in_every_order(make_world, stage, programs, is_long):
    """Each may have been opened before anything was done with the item."""
    world = make_world({})
    both = list(itertools.product(dict.fromkeys(["absent", stage]), repeat=2))
    for since in both if is_long else both[len(both) // 4 :][:2]:
        way = Way(stage, since, programs)
        assert explore_living(world.start(way, int(is_long)), world.check(way)).states > 2


@pytest.mark.parametrize("programs", LOSSES, ids=str)
@pytest.mark.parametrize("stage", ["there", "again"])
def test_a_loss_at_every_step(make_world, stage, programs):
    world = make_world({})
    way = Way(stage, ("absent", stage), programs)
    assert explore_living(world.start(way, faults=1), world.check(way)).states > 10


@pytest.mark.parametrize(
    ("stage", "programs"),
    [
        ("there", (["discard"],)),
        ("discarded", (["add"],)),
        ("again", (["discard some"],)),
        pytest.param("there", (["add"], ["add"]), marks=pytest.mark.long),
        pytest.param("there", (["add"], ["discard"]), marks=pytest.mark.long),
        pytest.param("there", (["add both"], ["discard"]), marks=pytest.mark.long),
        pytest.param("discarded", (["add"], ["discard"]), marks=pytest.mark.long),
        pytest.param("again", (["add"], ["add"]), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_clear_at_every_step(make_world, stage, programs, is_long):
    """Another object clears the filter, and they go on with what is there then.

    Pairs take minutes; the orders by chance below have a clear as well.
    """
    world = make_world({}, on_lost="recreate")
    way = Way(stage, ("absent", stage)[: len(programs)], programs)
    start = world.start(way, faults=int(is_long), clear=1)
    assert explore_living(start, world.check(way)).states > 10


@pytest.mark.parametrize(
    ("stage", "programs"),
    [
        ("there", (["discard"], ["add"])),
        ("discarded", (["add"], ["exists"])),
        ("discarded", (["add both"], ["add"])),
        ("again", (["discard some"], ["exists"])),
    ],
    ids=str,
)
def test_an_eviction_of_the_tombstones_at_every_step(make_world, stage, programs):
    """No item is taken for seen by what a set that is gone does not say."""
    world = make_world({})
    way = Way(stage, ("there", stage), programs)
    assert explore_living(world.start(way, evict=1), world.check(way)).states > 5


@pytest.mark.parametrize("stage", STAGES)
def test_three_clients_in_every_order(make_world, stage):
    world = make_world({})
    way = Way(stage, ("absent", stage, stage), (["add"], ["discard"], ["add"]))
    assert explore_living(world.start(way), world.check(way)).states > 10


@pytest.mark.parametrize(
    ("stage", "programs", "faults"),
    [
        pytest.param("absent", (["add"], ["grow"]), 0, marks=pytest.mark.long),
        ("there", (["discard"], ["grow"]), 0),
        ("again", (["add"], ["grow"]), 0),
    ],
    ids=str,
)
def test_clients_of_a_filter_that_grows(make_world, stage, programs, faults, is_long):
    """One fills the newest slice, and adds the next one, while others go on."""
    world = make_world(GROWS, fill=FILL)
    way = Way(stage, ("absent", stage, stage)[: len(programs)], programs)
    print(explore_living(world.start(way, faults + is_long), world.check(way)))
    assert len(world.sizes) > 1, "it grew"


def test_who_grows_a_filter_too_late_changes_nothing(make_world):
    world = make_world(GROWS, fill=FILL)
    way = Way("absent", ("absent",), (["grow"],))
    assert explore_living(world.start(way, fill=1), world.check(way)).states > 10


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("grows", [False, True])
def test_two_and_three_clients_in_orders_by_chance(make_world, shards, grows, seed, is_long):
    shape = {"shards": shards, **(GROWS if grows else {})}
    world = make_world(shape, fill=FILL * grows, on_lost="recreate")
    # An object that grows its filter adds a batch in parts, and a clear may come between these.
    kinds = (*(one for one in KINDS if one != "coalesced"), "grow") if grows else KINDS
    for number in range(MANY if is_long else WALKS):
        chance = random.Random(f"{seed} {number}")
        programs = [
            chance.choices(kinds, k=chance.choice([1, 2])) for _ in range(chance.choice([2, 3]))
        ]
        place = chance.randrange(len(STAGES))
        since = chance.choices(STAGES[: place + 1], k=len(programs))
        way = Way(STAGES[place], since, programs)
        end = chance.choice(["clear", "delete"])
        start = world.start(way, chance.choice([0, 1, 2]), **{end: 1})
        wander(start, world.check(way), f"{seed} {number}")
