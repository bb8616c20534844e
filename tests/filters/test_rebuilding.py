"""A filter is made anew from its items while it is in use: nothing acknowledged is ever absent."""

from __future__ import annotations

import threading

import pytest
from flat_options import given
from servers import wait_until
from stepped import Crash, Interrupted, Stepped, crash, interrupt

from bloomlock import BloomFilter
from bloomlock.errors import BloomlockError, ConfigurationError, OutcomeUnknownError
from bloomlock.filters import switch

OLD = [f"old {number}" for number in range(300)]
GROWN = {"capacity": 100, "on_full": "grow"}


@pytest.fixture
def impatient(monkeypatch):
    """Clients that wait for a closed filter open it soon."""
    monkeypatch.setattr(switch, "LOOKS", 2)
    monkeypatch.setattr(switch, "LOOK_SECONDS", 0.001)


def filled(client, *, items=OLD, **shape):
    made = BloomFilter("x", **given({"capacity": 2_000, "client": client} | shape), error_rate=1e-9)
    for start in range(0, len(items), 100):
        made.update(items[start : start + 100])
    return made


def few_for(shape):
    """Return items for a filter that is filled again and again: what grows takes them one by one.

    They fill a second slice, if it grows.
    """
    return OLD[:120] if "on_full" in shape else OLD


def opened(client):
    return BloomFilter.open("x", client=client)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"capacity": 9_000}),
        ({"shards": 4}, {"error_rate": 0.01, "shards": 2}),
        ({"shards": 2}, {"shards": 5}),
        ({"key": True}, {"num_hashes": 24}),
        (GROWN, {"capacity": 3_000}),
        (GROWN | {"shards": 3, "up_to": 1_000}, {"capacity": 60, "shards": 2, "error_rate": 0.001}),
        (GROWN | {"up_to": 1_000, "growth": 2}, {"capacity": 2_000}),
    ],
    ids=str,
)
def test_a_filter_gets_other_parameters_and_keeps_its_items(r, old, new):
    made = filled(r, **old)
    made.add("late")
    attached = opened(r)
    made.rebuild(OLD, late=lambda: ["late", "never"], **new)
    for name, value in new.items():
        assert getattr(made, name) == value
    assert made.exists_many([*OLD, "late", "never"]) == [True] * 301 + [False]
    assert opened(r).exists_many([*OLD, "late"]) == [True] * 301
    growth = old.get("growth", 4) if "on_full" in old else None
    assert made.info().growth == attached.info().growth == growth
    assert made.info().key_kind == ("random" if "key" in old else None)
    assert attached.exists_many([*OLD, "late", "never"]) == [True] * 301 + [False]
    assert attached.add("a")
    assert attached.capacity == made.capacity
    assert "a" in made
    assert len(r.keys()) == made.shards + 1
    lasting = [key for key in r.scan_iter() if r.ttl(key) == -1]
    assert len(lasting) == made.shards + 1


@pytest.mark.usefixtures("impatient")
def test_what_is_acknowledged_at_any_moment_is_there_afterwards(r):
    """An object that is attached adds between any two requests of a rebuild."""
    number, closed, acted = 0, 0, True
    while acted:
        r.flushall()
        filled(r, shards=3)
        attached, journal = opened(r), []

        def act(attached=attached, journal=journal):
            for item in ("meanwhile", "meanwhile, too"):
                journal.append(item)
                attached.add(item)
                assert item in attached

        made = Stepped.before(number, act).open("x", client=r)
        try:
            made.rebuild(OLD, 5_000, late=lambda journal=journal: journal)
        except BloomlockError as error:
            # The other one waited for it to be opened, and not for long.
            assert "opened the filter again" in str(error)
            closed += 1
        for one in (opened(r), attached):
            assert all(one.exists_many([*OLD, *journal])), number
        acted, number = bool(journal), number + 1
    assert number > 10
    assert 0 < closed < number / 2


@pytest.mark.parametrize("shape", [{"shards": 3}, GROWN | {"shards": 3}], ids=str)
@pytest.mark.usefixtures("impatient")
def test_a_crash_at_any_moment_loses_nothing(r, shape):
    number, states, old = 0, set(), few_for(shape)
    while True:
        r.flushall()
        filled(r, items=old, **shape).add("late")
        kind = Stepped.before(number, crash)

        def die(kind=kind):
            kind.at = kind.done
            raise Crash

        kind.act = staticmethod(die)
        try:
            kind.open("x", client=r).rebuild(old, 5_000, late=lambda: ["late"])
        except Crash:
            states.add(r.hget("bloomlock:{x}:meta", "state"))
        else:
            break
        again = opened(r)
        assert all(again.exists_many(old)), number
        assert again.capacity in (100, 2_000, 5_000)
        if again.capacity == 5_000:
            assert "late" in again
        assert again.add("goes on")
        again.rebuild([*old, "goes on"], 7_000)
        assert all(opened(r).exists_many([*old, "goes on"]))
        left = [key for key in r.scan_iter() if r.ttl(key) == -1]
        assert len(left) == again.shards + 1
        # To fill a filter that grows takes many requests that are all alike.
        number += 5 if "on_full" in shape else 1
    assert states >= {b"ready", b"closed"}


@pytest.mark.parametrize("way", ["rebuild", "copy_to"])
@pytest.mark.usefixtures("impatient")
def test_what_is_interrupted_is_taken_back_unless_the_switch_has_begun(r, way):
    number, is_over = 0, False
    while not is_over:
        r.flushall()
        filled(r, shards=2).copy("source")
        made = Stepped.opened("x" if way == "rebuild" else "source", number, interrupt, r)
        try:
            if way == "rebuild":
                made.rebuild(OLD, 5_000)
            else:
                made.copy_to(r, "x", replace=True)
        except Interrupted:
            assert r.hget("bloomlock:{x}:meta", "state") != b"closed"
        else:
            is_over = True
        assert all(opened(r).exists_many(OLD)), number
        if way == "rebuild":
            assert not r.keys("*:prepared:????????????"), number
        number += 1
    assert number > 9


@pytest.mark.usefixtures("impatient")
def test_what_goes_wrong_leaves_the_filter_as_it_was(r):
    made = filled(r, shards=2)

    def raising():
        yield "a"
        raise ValueError("the source")

    def clearing():
        opened(r).clear()
        return []

    with pytest.raises(ValueError, match="the source"):
        made.rebuild(raising(), 5_000)
    made.reattach()
    with pytest.raises(ValueError, match="the source"):
        made.rebuild(OLD, 5_000, late=raising)
    assert r.hget("bloomlock:{x}:meta", "state") == b"ready"
    made.reattach()
    assert made.capacity == 2_000
    assert all(made.exists_many(OLD))
    for wrong in (0, "9", 1.5, True):
        with pytest.raises(ConfigurationError, match="capacity must be"):
            made.rebuild(OLD, wrong)
    with pytest.raises(TypeError):
        made.rebuild([1])
    assert all(made.exists_many(OLD))
    with pytest.raises(BloomlockError, match="cleared, replaced or lost|deleted or replaced"):
        made.rebuild(OLD, 5_000, late=clearing)
    assert opened(r).count() == 0
    assert len([key for key in r.scan_iter() if r.ttl(key) == -1]) == 3


@pytest.mark.parametrize("first", ["add", "add_many", "update", "exists", "exists_many"])
@pytest.mark.parametrize(
    ("old", "new"),
    [({}, {"shards": 2}), ({"shards": 4}, {"error_rate": 0.01}), (GROWN, {"capacity": 9_000})],
    ids=str,
)
def test_the_first_request_after_it_goes_to_other_bits(r, old, new, first):
    """It carries the places of the filter from before; the new one may be smaller."""
    made = filled(r, **old)
    attached = opened(r)
    made.rebuild(OLD, **new)
    items = [OLD[1], "a", "b"]
    if first in ("add", "exists"):
        answers = [getattr(attached, first)(item) for item in items]
    else:
        answers = getattr(attached, first)(items)
    there = [True, False, False]
    new_ones = None if first == "update" else [False, True, True]
    assert answers == (there if first[0] == "e" else new_ones)
    assert attached.add_many(items) == [False] + [first[0] == "e"] * 2
    for one in (attached, made, opened(r)):
        assert one.exists_many([*OLD, *items]) == [True] * 303
    assert len(r.keys()) == made.shards + 1


@pytest.mark.parametrize("new", [{}, {"capacity": 5_000}, {"shards": 2}], ids=str)
def test_an_add_to_the_closed_filter_that_is_taken_over_is_of_unknown_outcome(r, new):
    """With other parameters too: nobody got "new" for the item, and "seen" would lose it."""
    made, outcomes = filled(r), []
    attached = opened(r)

    def add():
        try:
            outcomes.append(attached.add("x"))
        except OutcomeUnknownError:
            outcomes.append("unknown")

    adder = threading.Thread(target=add)

    def late():
        bits = r.bitcount("bloomlock:{x}:bits")
        adder.start()
        wait_until(lambda: r.bitcount("bloomlock:{x}:bits") > bits)
        return ["x"]

    made.rebuild(OLD, late=late, **new)
    adder.join()
    assert outcomes == ["unknown"]
    assert "x" in made


@pytest.mark.parametrize("shape", [{}, {"shards": 3}, GROWN | {"shards": 3}], ids=str)
def test_what_is_discarded_while_it_is_rebuilt_stays_discarded(r, shape):
    made = filled(r, **shape)
    made.discard_many(OLD[:2])
    made._state.items_per_chunk = 50  # so that the first items are taken over before the last

    def items(gone):
        opened(r).add(OLD[0])
        yield from OLD
        # A filter that grows takes this many at once.
        yield from map(str, range(2_000))
        assert opened(r).discard_many(gone) == [True] * len(gone)

    gone = [OLD[0], *OLD[2:9]]
    made.rebuild(items(gone), 5_000, late=lambda: OLD, shards=2)
    left = [item for item in OLD if item not in (*gone, OLD[1])]
    for one in (made, opened(r)):
        assert one.exists_many(OLD) == [item in left for item in OLD]
    assert made.info().discarded == len(gone)
    assert made.add_many(OLD[:9]) == [True] * 9
    assert made.add_many(OLD) == [False] * 300


def test_seeds_do_not_say_where_a_discarded_item_lies(r):
    made = filled(r)
    made._state.items_per_chunk = 50

    def items():
        yield from OLD
        opened(r).discard(OLD[0])

    with pytest.raises(BloomlockError, match="1 items were discarded during the rebuild"):
        made.rebuild(items(), seeds=[1, 2, 3])
    assert opened(r).exists_many(OLD) == [False] + [True] * 299
    made.rebuild(OLD, seeds=[1, 2, 3])
    assert opened(r).exists_many(OLD) == [False] + [True] * 299
