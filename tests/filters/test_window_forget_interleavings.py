"""Clients that forget, add and ask while a shard turns, in every order of their commands.

See window_forget_explorer.py.
"""

from __future__ import annotations

import random

import pytest
from forget_explorer import STARTS, TURN, Done, walk_all
from window_forget_explorer import LASTING, OLD, Way, World, is_right, move_clocks

PAIRS = [
    (["discard"], ["add"]),
    (["discard"], ["discard"]),
    (["discard"], ["exists", "exists"]),
    (["discard", "add"], ["add"]),
    (["add_many"], ["discard"]),
]
KINDS = ("add", "add_many", "exists", "discard", "discard")
EITHER = [True, False]
WALKS = 150


@pytest.fixture
def make_world(r, monkeypatch):
    move_clocks(monkeypatch)
    made = []

    def make(shards, *, refresh):
        made.append(World(r, shards, refresh=refresh))
        return made[-1]

    yield make
    for world in made:
        world.close()


def test_the_judge_knows_what_a_window_forgets():
    def judge(there, *operations, refresh=False):
        return is_right([Done(*one) for one in operations], there, refresh=refresh)

    turn = (2, 3, "turn", None)
    assert judge(OLD, turn, (4, 5, "exists", False))
    assert not judge(OLD, turn, (4, 5, "exists", True))
    assert judge(LASTING, turn, (4, 5, "exists", True))
    assert not judge(OLD, turn, (4, 5, "add", False))
    assert judge(OLD, (0, 1, "add", False), turn, (4, 5, "exists", True), refresh=True)
    assert not judge(OLD, (0, 1, "add", False), turn, (4, 5, "exists", True))
    assert judge(OLD, turn, (1, 4, "discard", True), (5, 6, "add", True))
    assert not judge(OLD, turn, (4, 5, "discard", True))


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("programs", PAIRS[:2], ids=str)
@pytest.mark.parametrize("start", STARTS)
def test_two_clients_and_a_turn_in_every_order(make_world, start, programs, refresh, seed):
    """Of both ways to have begun, and of all that they have heard, one by chance."""
    world = make_world(1, refresh=refresh)
    rng = random.Random(seed)
    way = Way(start, rng.choice(EITHER), rng.choices(EITHER, k=2), [True, True])
    print(way, walk_all(world, way, programs, turns=1), "ways")


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_two_and_three_clients_in_orders_by_chance(make_world, shards, refresh, seed):
    """Whatever they do, with up to two faults and up to two turns."""
    world = make_world(shards, refresh=refresh)
    rng = random.Random(seed)
    for _ in range(WALKS):
        clients = rng.choice([2, 2, 3])
        programs = [rng.choices(KINDS, k=rng.choice([1, 2])) for _ in range(clients)]
        heard, knows = (rng.choices(EITHER, k=clients) for _ in range(2))
        way = Way(rng.choice(STARTS), rng.random() < 0.5, heard, knows)
        faults, turns = rng.choice([0, 0, 1, 2]), rng.choice([0, 1, 1, 2])
        world.walk(way, programs, chances(rng, clients), faults, turns)


def chances(rng, clients):
    """A turn or a fault is one of many choices, or most walks would have theirs at once."""

    def choose(count):
        likely = min(clients, count)
        return rng.randrange(count) if rng.random() < 0.2 else rng.randrange(likely)

    return choose


@pytest.mark.parametrize("knows", [True, False])
def test_a_client_that_comes_late_to_a_shard_that_another_has_turned(make_world, knows):
    """It has not heard, and the usual bits of the item were forgotten by the window meanwhile."""
    world = make_world(1, refresh=True)
    way = Way("there", True, [False, True, True], [knows, True, True])
    # The second client forgets the item; the shard turns; the third adds it; then the first does.
    world.walk(way, [["add"], ["discard"], ["add"]], {4: 1, 3: 2, 2: 1, 1: 0}.get, turns=1)
    assert [(one.kind, one.answer) for one in world.history[:4]] == [
        ("discard", True),
        ("turn", None),
        ("add", True),
        # What it wrote by the usual bits was in no force, or was forgotten since.
        ("add", None if knows else False),
    ]


@pytest.mark.parametrize(
    ("start", "refresh", "steps", "answer"),
    [
        # The table, the cells, and it is too late before the clock is read.
        ("again", True, [0, 0, TURN], False),
        ("forgotten", True, [0, 0, TURN], True),
        # Without `refresh` it asks first: the table, the cells, the clock.
        ("forgotten", False, [0, 0, 0, 0, 0, TURN], True),
        # Too late twice: the clock, the script that turns the shard, the table, the cells.
        ("forgotten", True, [0, 0, TURN, 0, 0, 0, 0, TURN], True),
    ],
)
def test_an_add_that_comes_too_late_is_not_made_again_after_a_discard(
    make_world, start, refresh, steps, answer
):
    """Another client forgets the item between the try that came too late and the next."""
    world = make_world(1, refresh=refresh)
    way = Way(start, False, [True, True], [True, True])
    left = iter(steps)

    def choose(count):
        step = next(left, None)
        if step is None:
            return 1 if count == 2 else 0
        return count - 1 if step == TURN else step

    world.walk(way, [["add"], ["discard"]], choose, turns=steps.count(TURN))
    answers = [one.answer for one in world.history if one.kind == "add"]
    assert answers[0] is answer, world.history
    assert ("discard", True) in [(one.kind, one.answer) for one in world.history]


def test_bits_that_were_wiped_before_a_late_add_say_nothing_of_its_version(make_world):
    """The item is forgotten after the add has read the table; its bits are wiped before it adds."""
    world = make_world(1, refresh=True)
    # The third would set bits of the old version again if it knew that.
    way = Way("again", True, [True, True, False], [True, True, False])
    first, then = iter([0]), {4: 1, 3: 2, 2: 1, 1: 0}

    def choose(count):
        return next(first, then[count])

    world.walk(way, [["add"], ["discard"], ["add"]], choose, turns=1)
    assert [(one.kind, one.answer) for one in world.history[:4]] == [
        ("discard", True),
        ("turn", None),
        ("add", True),
        ("add", None),
    ]
