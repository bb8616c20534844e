"""Filters that grow (on_full="grow")."""

from __future__ import annotations

import pytest
from near_cache_tools import is_kept
from turns import Turns

from bloomlock import BloomFilter, Growth
from bloomlock.errors import CapacityError
from bloomlock.filters import answers
from bloomlock.slices import slices_in

BITS = "bloomlock:{x}:bits"


def grown(client, *, times=64, capacity=1000, error_rate=1e-3, shards=1, **options):
    """A filter whose capacity was a guess some times too small, full, and its items."""
    made = BloomFilter(
        "x",
        capacity,
        error_rate,
        client=client,
        on_full=Growth(options.pop("growth", 4), times * capacity),
        shards=shards,
        **options,
    )
    items = [f"item {number}" for number in range(times * capacity)]
    return made, items


def slices(client, key=BITS):
    return slices_in(client.getrange(key, 0, 23))


def test_a_capacity_that_was_guessed_right_needs_no_second_slice(r):
    for number in range(5):
        made = BloomFilter(f"x{number}", 3000, 1e-4, client=r, on_full="grow")
        made.update(f"{number} {one}" for one in range(3000))
        assert made.info().slices == 1


def test_an_object_that_has_not_heard_asks_once_more_and_then_no_more(r, valkey):
    made, items = grown(r, times=21, capacity=200)
    made.add("first")
    turns = Turns()
    late = [BloomFilter.open("x", client=turns.client(valkey)) for _ in range(3)]
    made.update(items)
    for one, ask in zip(
        late,
        (
            lambda one: one.exists(items[-1]) is True,
            lambda one: one.add(items[-1]) is False,
            lambda one: one.exists_many(items[-300:]) == [True] * 300,
        ),
        strict=True,
    ):
        assert turns.of(lambda one=one: one.exists("first")) == 2
        assert turns.of(lambda one=one, ask=ask: ask(one)) == 1
        assert ask(one)


def test_without_the_memory_for_a_slice_it_refuses_new_items_until_there_is(r):
    made, items = grown(r, times=64, capacity=20_000, error_rate=1e-6)
    made.add_many(items[:20_000])
    assert slices(r) == 1
    used = r.info("memory")["used_memory"]
    r.config_set("maxmemory", used + 200_000)
    try:
        with pytest.raises(CapacityError, match="it cannot grow now") as error:
            made.add_many(items[20_000:30_000])
        assert slices(r) == 1
        assert made.exists(items[0])
    finally:
        r.config_set("maxmemory", 0)
    left = items[20_000 + len(error.value.results) :]
    assert sum(made.add_many(left[:20_000])) == 20_000
    assert slices(r) == 2


def test_the_near_cache_keeps_its_answers_across_a_growth(r):
    made, items = grown(r, near_cache=100_000)
    made.add_many(items[:3000])
    assert slices(r) == 2
    assert all(is_kept(made, item) for item in items[:3000])


def test_clients_that_have_not_heard_of_a_clear_do_not_overfill_the_first_slice(r):
    """Each knew a large slice with much room, and adds at once with the others."""
    made, items = grown(r, times=32, growth=2)
    made.update(items[:8_000])
    clients = [BloomFilter.open("x", client=r, on_lost="recreate") for _ in range(6)]
    assert made.info().slices > 3
    made.clear()
    cores = [
        answers.add_many(one._state, [f"{number} {item}" for item in range(600)])
        for number, one in enumerate(clients)
    ]
    added = in_turns(clients, cores)
    assert sum(map(sum, added)) >= 3600 * (1 - 2e-3)
    assert made.info().slices > 1
    assert made.info().current_error_rate <= 1e-3


def in_turns(clients, cores):
    """Carry out cores together, a request of each in turn, and return their results."""
    results = [None] * len(cores)
    left = dict.fromkeys(range(len(cores)))

    def one(step):
        return (yield step)

    while left:
        for number, answer in list(left.items()):
            try:
                step = cores[number].send(answer)
                left[number] = clients[number]._run(one(step))
            except StopIteration as stop:
                results[number] = stop.value
                del left[number]
    return results
