"""Filters that grow, in every order in which the requests of two or three clients may come."""

from __future__ import annotations

import pytest
from growth_explorer import BEFORE, DONE, GONE, UNKNOWN, Client, explore

from bloomlock import BloomFilter
from bloomlock.descriptor import slices_of
from bloomlock.filters import answers
from bloomlock.scripts import Script

BITS = "bloomlock:{x}:bits"
ITEM = "item"


class World:
    """A filter whose newest slice is full, and clients of it.

    A filter for one item, so that few fill its slices: the first is full with 5, the second with
    11 more.
    """

    def __init__(self, r, slices=1):
        self.r = r
        for name in ("growing", "grow"):
            # Else the first schedule would have a request more than the others.
            r.script_load(Script(name).source)
        options = {"client": r, "on_full": "grow", "up_to": 85}
        self.made = [BloomFilter("x", 1, 1e-9, **options) for _ in range(3)]
        self.reader = BloomFilter("x", 1, 1e-9, **options)
        for made in (*self.made, self.reader):
            # Schedules are repeated: no look may come because one took a second.
            made._state.fill._clock = float
        self.old = []
        for number in range(5 if slices == 1 else 16):
            if number == 5:
                self.run(self.made[0], self.look(0))
            self.run(self.made[0], answers._add_now(self.made[0]._state, [b"%d" % number],
                                                    "items", answers=True))  # fmt: skip
            self.old.append(str(number))
            # The looks that follow an add of five items are left to the clients.
            self.unlooked()
        self.dump = r.dump(BITS)
        self.slices = self.count()
        assert self.slices == slices

    def unlooked(self):
        for made in (*self.made, self.reader):
            made._state.fill._until_look = 10**6
            made._state.fill.refusing = False

    def contents(self):
        return self.r.get(BITS)

    def count(self):
        return slices_of(int.from_bytes(self.r.getrange(BITS, 0, 7), "big"))

    def run(self, made, core):
        return made._runtime.run(core)

    def start(self, *cores, believe=None):
        """Bring all to the start; each client believes in so many slices."""
        self.r.restore(BITS, 0, self.dump, replace=True)
        for number, made in enumerate((*self.made, self.reader)):
            count = believe[number] if believe and number < len(believe) else 1
            made._state.view.shards[0].chain.count = count
        self.unlooked()
        return [Client(self.made[n], core(n)) for n, core in enumerate(cores)]

    def add(self, number):
        return answers.add(self.made[number]._state, ITEM)

    def add_batch(self, number):
        return answers.add_many(self.made[number]._state, [ITEM, *self.old[:2]])

    def exists(self, number):
        return answers.exists(self.made[number]._state, ITEM)

    def look(self, number):
        fill = self.made[number]._state.fill
        return fill.look(self.made[number]._state.view)

    def sees(self, items):
        """What a reader answers that has heard of no growth."""
        self.reader._state.view.shards[0].chain.count = 1
        return self.reader.exists_many(items)

    def judge_strings(self):
        header = int.from_bytes(self.r.getrange(BITS, 0, 7), "big")
        view = self.reader._state.view
        assert view.descriptor.has_header(header)
        assert self.r.strlen(BITS) == view.descriptor.string_bytes_with(header)


def won(client):
    """Whether a client was answered that the item is new."""
    if client.outcome in (None, GONE, UNKNOWN):
        return False
    (answer,) = client.outcome
    return answer[0] if isinstance(answer, list) else answer


def one_winner(world, adders):
    """Return a judge of adds of one item, and of growth beside them."""

    def judge(clients, taken):
        adding = clients[:adders]
        answered = [one for one in adding if isinstance(one.outcome, tuple)]
        winners = sum(map(won, adding))
        assert winners <= 1, taken
        if len(answered) == adders:
            assert winners == 1, taken
        # Also while a growth is on its way, and for a client that has not heard of any.
        acknowledged = [ITEM] if answered else []
        assert all(world.sees([*world.old[::5], *acknowledged])), taken
        world.judge_strings()
        if all(one.outcome is not None for one in clients):
            # Whatever was cut off, the next client goes on: it grows, and adds.
            made = world.reader
            made._runtime.run(made._state.fill.look(made._state.view))
            assert world.count() > world.slices, taken
            assert made.add("another"), taken
            if not answered:
                made.add(ITEM)
            assert made.exists(ITEM), taken

    return judge


@pytest.mark.parametrize("batch", [False, True])
def test_two_add_the_same_item_while_a_third_grows(r, batch):
    world = World(r)
    add = world.add_batch if batch else world.add
    count = explore(
        lambda: world.start(add, add, world.look),
        one_winner(world, adders=2),
        world.contents,
        faults=1,
    )
    print(count)
    assert count > 30


@pytest.mark.parametrize("believe", [(1, 2)])
def test_one_adds_while_two_grow_a_filter_that_has_grown(r, believe):
    """Their beliefs of how many slices there are differ."""
    world = World(r, slices=2)
    count = explore(
        lambda: world.start(world.add, world.look, world.look, believe=(*believe, 2)),
        one_winner(world, adders=1),
        world.contents,
        faults=1,
    )
    print(count)
    assert count > 30


def test_who_is_two_slices_behind_wins_or_loses_like_all_others(r):
    world = World(r, slices=2)
    count = explore(
        lambda: world.start(world.add, world.add, world.look, believe=(1, 2)),
        one_winner(world, adders=2),
        world.contents,
        faults=1,
    )
    print(count)
    assert count > 30


def test_a_no_is_about_a_moment_of_the_call(r):
    """A reader asks while another adds and a third grows: no is wrong once the add has ended."""
    world = World(r)

    def judge(clients, taken):
        reading = clients[2].outcome
        asked = [index for index, one in enumerate(taken) if one.client == 2]
        before = taken[: asked[0]] if asked else []
        if reading == (False,):
            assert not any(one.client == 0 and one.outcome == (True,) for one in before), taken
        if reading == (True,):
            assert any(one.client == 0 and one.fate != BEFORE for one in taken), taken
        one_winner(world, adders=1)(clients, taken)

    count = explore(
        lambda: world.start(world.add, world.look, world.exists), judge, world.contents, faults=1
    )
    print(count)
    assert count > 30


def test_one_of_two_that_find_a_slice_full_adds_the_next(r):
    world = World(r)

    def judge(clients, taken):
        world.judge_strings()
        assert all(world.sees(world.old[::5])), taken
        # Never two slices for one that was full.
        assert world.count() <= 2, taken
        if all(one.outcome is not None for one in clients) and all(
            one.fate == DONE for one in taken
        ):
            assert world.count() == 2, taken

    count = explore(lambda: world.start(world.look, world.look), judge, world.contents, faults=1)
    print(count)
    assert count > 30


def test_a_client_that_grows_too_late_changes_nothing(r):
    """It found the first slice full, and sleeps while others add two slices and fill them."""
    world = World(r)
    (late,) = world.start(world.look)
    grows = Script("grow").digest.encode()
    while grows not in bytes(late._step.commands[0]):
        late.carry_out(DONE)
    made = world.made[1]
    items = [f"later {number}" for number in range(40)]
    made._state.fill._until_look = 1
    assert sum(made.add_many(items)) >= 39
    made._runtime.run(made._state.fill.look(made._state.view))
    before = world.count(), r.get(BITS)
    assert before[0] >= 3
    late.carry_out(DONE)
    assert (world.count(), r.get(BITS)) == before
    assert all(world.sees([*world.old, *items]))
