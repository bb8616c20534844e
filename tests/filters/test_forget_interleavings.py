"""Clients that forget, add and ask at the same time, in every order: see forget_explorer.py."""

from __future__ import annotations

import itertools
import random

import pytest
from forget_explorer import STARTS, Done, Way, World, after_in_a_set, is_linearizable, walk_all

PAIRS = [
    (["discard"], ["add"]),
    (["discard"], ["discard"]),
    (["discard"], ["exists", "exists"]),
    (["discard", "add"], ["add"]),
    (["add_many"], ["discard"]),
]
KINDS = ("add", "add_many", "exists", "discard", "discard")


@pytest.fixture
def make_world(r):
    made = []

    def make(strategy, shards, **options):
        made.append(World(r, strategy, shards, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


def test_the_judge_knows_a_set_from_what_is_none():
    def judge(present, *operations):
        return is_linearizable([Done(*one) for one in operations], present, after_in_a_set)

    assert judge(True, (0, 3, "discard", True), (1, 2, "exists", True), (4, 5, "add", True))
    assert not judge(True, (0, 1, "discard", True), (2, 3, "exists", True))
    assert not judge(True, (0, 3, "discard", True), (1, 2, "discard", True))
    assert not judge(False, (0, 1, "add", True), (2, 3, "exists", False))
    assert not judge(False, (0, 3, "add", True), (1, 2, "add", True))
    assert judge(True, (0, float("inf"), "discard", None), (2, 3, "exists", True))
    assert judge(True, (0, float("inf"), "discard", None), (2, 3, "exists", False))


@pytest.mark.parametrize("programs", PAIRS, ids=str)
@pytest.mark.parametrize("start", STARTS)
def test_two_clients_in_every_order(make_world, start, programs):
    world = make_world("atomic", 1)
    walks = sum(
        walk_all(world, Way(start, heard), programs)
        for heard in itertools.product([False, True], repeat=2)
    )
    print(f"{walks} ways")
    assert walks > 4


@pytest.mark.parametrize("programs", [*PAIRS[:2], (["discard"], ["add", "discard"])], ids=str)
@pytest.mark.parametrize("start", ["there", "forgotten", "again"])
def test_a_crash_or_a_loss_at_every_step(make_world, start, programs):
    world = make_world("atomic", 1)
    print(walk_all(world, Way(start, [True, False]), programs, faults=1), "ways")


@pytest.mark.parametrize(
    "programs",
    [*PAIRS[:3], (["discard"], ["grow"]), (["grow", "add"], ["discard"])],
    ids=str,
)
@pytest.mark.parametrize("start", STARTS)
def test_two_clients_of_a_filter_that_grows(make_world, start, programs, seed):
    world = make_world("atomic", 1, grows=True)
    heard = random.Random(seed).choices([False, True], k=2)
    print(heard, walk_all(world, Way(start, heard), programs), "ways")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "growing"])
def test_two_and_three_clients_in_orders_by_chance(make_world, strategy, shards, seed):
    """Whatever they do, with up to two faults."""
    grows = strategy == "growing"
    world = make_world("atomic" if grows else strategy, shards, grows=grows)
    kinds = (*KINDS, "grow") if grows else KINDS
    rng = random.Random(seed)
    for _ in range(250):
        clients = rng.choice([2, 3])
        programs = [rng.choices(kinds, k=rng.choice([1, 2])) for _ in range(clients)]
        heard = [rng.random() < 0.5 for _ in range(clients)]
        # A fault is one of many choices, or most walks would have theirs at once.
        faults = rng.choice([0, 1, 2])
        way = Way(rng.choice(STARTS), heard)
        world.walk(way, programs, chances(rng, clients), faults)


def chances(rng, clients):
    def choose(count):
        likely = min(clients, count // 4 or count)
        return rng.randrange(count) if rng.random() < 0.15 else rng.randrange(likely)

    return choose
