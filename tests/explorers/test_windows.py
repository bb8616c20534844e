"""Clients add, ask for and discard an item while the slice of a window turns, in every order.

What was there at first may be remembered until the first turn, or for longer; all else is
remembered until the walk is over. So the answers are those of a set whose old item goes at a turn.
"""

from __future__ import annotations

import random

import pytest
from explorer import explore_living, wander
from set_world import STAGES, WINDOW, HandClocks, SetWorld, Way

PAIRS = [
    (["add"], ["add"]),
    (["add"], ["exists"]),
    (["discard"], ["add"]),
    (["discard"], ["discard"]),
]
KINDS = ("add", "add", "add both", "exists", "discard", "discard")
EITHER = (False, True)
WALKS, MANY = 50, 1000


@pytest.fixture
def make_world(stopped):
    client, stop_at, _ = stopped()
    clocks = HandClocks(stop_at)

    def make(*, is_old, refresh, shards=1, **options):
        shape = {**WINDOW, "shards": shards}
        options |= {"clocks": clocks, "is_old": is_old, "refresh": refresh}
        return SetWorld(client, shape, **options)

    return make


STARTS = [
    *(("there", True, pair) for pair in PAIRS[1:]),
    ("again", True, PAIRS[2]),
    ("there", True, (["add", "add"], ["exists"])),
]
LARGE = [
    *(("there", True, PAIRS[0], one) for one in EITHER),
    *(("absent", False, PAIRS[0], one) for one in EITHER),
]


@pytest.mark.parametrize(
    ("stage", "is_old", "programs", "refresh"),
    [
        *((*start, refresh) for start in STARTS for refresh in EITHER),
        *LARGE,
    ],
    ids=str,
)
def test_two_clients_and_a_turn_in_every_order(make_world, stage, is_old, programs, refresh):
    world = make_world(is_old=is_old, refresh=refresh)
    way = Way(stage, ("absent", stage), programs)
    print(explore_living(world.start(way, faults=1, turn=1), world.check(way)))


@pytest.mark.long
@pytest.mark.parametrize("refresh", EITHER)
@pytest.mark.parametrize("add", ["add", "add both"])
def test_a_clear_at_every_step(make_world, add, refresh):
    """Another object clears the filter, and the two go on with what is there then."""
    world = make_world(is_old=False, refresh=refresh, on_lost="recreate")
    way = Way("there", ("absent", "there"), ([add], ["discard"]))
    start = world.start(way, faults=1, clear=1)
    print(explore_living(start, world.check(way)))


@pytest.mark.parametrize("refresh", EITHER)
@pytest.mark.parametrize("shards", [1, 3])
def test_two_and_three_clients_in_orders_by_chance(make_world, shards, refresh, seed, is_long):
    worlds = [
        make_world(
            is_old=is_old,
            refresh=refresh,
            shards=shards,
            fill=[str(n) for n in range(20)],
            on_lost="recreate",
        )
        for is_old in EITHER
    ]
    for number in range(MANY if is_long else WALKS):
        chance = random.Random(f"{seed} {number}")
        programs = [
            chance.choices(KINDS, k=chance.choice([1, 2])) for _ in range(chance.choice([2, 2, 3]))
        ]
        place, world = chance.randrange(len(STAGES)), chance.choice(worlds)
        since = chance.choices(STAGES[: place + 1], k=len(programs))
        way = Way(STAGES[place], since, programs)
        start = world.start(
            way,
            faults=chance.choice([0, 0, 1, 2]),
            turn=chance.choice([0, 1, 1, 2]),
            clear=int(place < 2 and not any("discard" in one for one in programs)),
        )
        wander(start, world.check(way), f"{seed} {number}")
