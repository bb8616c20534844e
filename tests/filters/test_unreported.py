"""What an add marked in a generation that the object did not know is new when it is asked again."""

from __future__ import annotations

import contextlib

import pytest
from proxy import HANDSHAKE

from bloomlock import (
    BloomFilter,
    FilterLostError,
    OutcomeUnknownError,
)

ITEMS = [str(number) for number in range(1000)]


def at_command(number, do):
    commands = []

    def judge(name, _number):
        if name not in HANDSHAKE:
            commands.append(name)
            if len(commands) == number:
                return do() or "pass"
        return "pass"

    return judge


def test_a_loss_and_a_clear_in_one_batch(r, proxy):
    """One shard is found in the next generation, the reply of another is lost."""
    items = ITEMS[:200]
    with BloomFilter("x", 20_000, client=proxy.url, shards=4, on_lost="recreate") as made:
        other = BloomFilter.open("x", client=r)
        for lost in range(1, 12):
            other.clear()
            proxy.judge = at_command(lost, lambda: "after")
            told = []
            with contextlib.suppress(OutcomeUnknownError):
                try:
                    told = made.add_many(items, route="items")
                except OutcomeUnknownError as error:
                    told = error.results
                    raise
            proxy.judge = lambda _name, _number: "pass"
            assert False not in told
            left = items[len(told) :]
            assert made.add_many(left) == [True] * len(left)


def test_an_update_takes_none_away(r):
    made = BloomFilter("x", 2000, client=r)
    BloomFilter.open("x", client=r).clear()
    with pytest.raises(FilterLostError):
        made.add("a")
    made.reattach()
    made.update(["a"])
    assert made.add("a") is True
    assert made.add("a") is False


def test_an_add_that_raised_is_new_when_it_is_repeated(r):
    made = BloomFilter("x", 5000, client=r)
    for items in (["a"], [str(number) for number in range(2000)]):
        BloomFilter.open("x", client=r).clear()
        with pytest.raises(FilterLostError):
            made.add_many(items)
        made.reattach()
        assert made.add_many(items) == [True] * len(items)
        assert made.add_many(items) == [False] * len(items)
