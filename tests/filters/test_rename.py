"""Another name for a filter: under one of the names at any moment, with all it holds."""

from __future__ import annotations

import pytest
from stepped import Crash, Stepped, crash

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter, list_filters, rename_filter
from bloomlock.errors import (
    BloomlockError,
    ClaimLostError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
)

ITEMS = [str(number) for number in range(300)]
HOUR = 3600.0
KINDS = {
    "plain": {"shards": 3},
    "window": {"window": 600, "shards": 2},
    "grown": {"capacity": 100, "on_full": "grow", "shards": 2},
    "discards": {"shards": 2},
    "native": {"strategy": "native", "shards": 2},
}


def filled(client, kind="plain"):
    made = BloomFilter("x", **{"capacity": 3000, "client": client} | KINDS[kind])
    for start in range(0, 300, 50):
        made.update(ITEMS[start : start + 50])
    return made


def keys_of(client, name):
    return [key for key in client.scan_iter(f"*{{{name}*") if not key.endswith(b"fence")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_has_all_it_had_under_its_new_name(r, kind):
    made = filled(r, kind)
    gone = ITEMS[:30] if kind == "discards" else []
    assert made.discard_many(gone) == [True] * len(gone) if gone else True
    held = made.claim("held", renew=False) if kind != "native" else None
    made.expire(HOUR)
    follows = BloomFilter("x", **{"capacity": 3000, "client": r} | KINDS[kind], on_lost="recreate")
    renamed = made.rename("y")
    assert renamed.name == "y"
    assert renamed.exists_many(ITEMS) == [item not in gone for item in ITEMS]
    assert renamed.add_many(["new", ITEMS[-1]]) == [True, False]
    if held:
        assert [one.item for one in renamed.open_claims()] == ["held"]
        with pytest.raises(ClaimLostError):
            held.commit()
    assert HOUR - 600 < renamed.ttl() <= HOUR
    assert list_filters(client=r) == ["y"]
    assert keys_of(r, "x") == []
    with pytest.raises(FilterLostError, match="is missing"):
        made.exists("1")
    with pytest.raises(FilterNotFoundError):
        BloomFilter.open("x", client=r)
    # One that may recreate begins anew under the old name; the other is untouched.
    assert follows.add("1") is True
    assert renamed.exists_many(ITEMS[30:]) == [True] * 270
    assert renamed.delete()
    assert follows.delete()
    assert keys_of(r, "") == []


def test_a_name_that_is_taken_is_refused(r):
    made = filled(r)
    BloomFilter("y", 1000, client=r).add("a")
    r.rpush("bloomlock:{z}:meta", "a foreign key")
    for name, error, says in (
        ("y", ConfigurationError, "name 'y' is taken"),
        ("x", ConfigurationError, "the new name must not be 'x', the one that it has"),
        ("z", FilterMismatchError, "something that is no filter"),
        ("", ConfigurationError, "name must be a text"),
    ):
        with pytest.raises(error, match=says):
            made.rename(name)
        with pytest.raises(error, match=says):
            rename_filter("x", name, client=r)
    assert made.exists_many(ITEMS) == [True] * 300
    with pytest.raises(FilterNotFoundError, match="no filter named 'none'"):
        rename_filter("none", "other", client=r)
    BloomFilter.open("x", client=r).clear()
    with pytest.raises(FilterLostError):
        made.rename("other")


def take(client):
    with BloomFilter("y", 1000, client=client) as other:
        other.add("another")


EVENTS = {
    "the name is taken": take,
    "it is renamed by another": lambda client: rename_filter("x", "z", client=client),
    "it is deleted": lambda client: delete_filter("x", client=client),
    "it is cleared": lambda client: BloomFilter.open("x", client=client).clear(),
    "the client dies": lambda _client: crash(),
}


@pytest.mark.parametrize("event", EVENTS)
def test_whatever_happens_at_any_step_one_name_has_all(r, event):
    number, done = 0, False
    while not done:
        r.flushall()
        filled(r)
        refused: list[BloomlockError] = []

        def act(refused=refused):
            try:
                EVENTS[event](r)
            except BloomlockError as error:
                refused.append(error)

        kind = Stepped.before(-1, act)
        made = kind.open("x", client=r)
        kind.done, kind.at = 0, number
        try:
            made.rename("y")
        except (BloomlockError, Crash) as error:
            is_renamed = False
            assert isinstance(error, Crash) is (event == "the client dies")
        else:
            is_renamed, done = True, kind.done <= number
        names = list_filters(client=r)
        whole = []
        for name in names:
            there = BloomFilter.open(name, client=r).exists_many(ITEMS)
            assert there.count(True) in (0, 300), (number, name)
            whole += [name] * all(there)
        if event not in ("it is deleted", "it is cleared"):
            assert len(whole) == 1, (number, names)
        if event == "the name is taken" and not done and not refused:
            assert BloomFilter.open("y", client=r).exists("another"), number
            assert not is_renamed
        elif is_renamed:
            assert "y" in names
        number += 1
    assert number > 2


def test_what_is_left_at_the_new_name_is_no_part_of_it(r):
    """A string without a header, and shards of a filter whose descriptor is gone."""
    gone = BloomFilter("y", 3000, client=r, shards=3)
    gone.update(f"old {item}" for item in ITEMS)
    r.delete("bloomlock:{y}:meta", "bloomlock:{y}:bits")
    r.setbit("bloomlock:{y}:bits", 70000, 1)
    made = filled(r)
    before = made.to_memory()
    found = zip(made.rename("y").to_memory().images(), before.images(), strict=True)
    assert all((one == two).all() for one, two in found)


def test_scripts_may_be_forbidden(r, restricted):
    filled(r)
    made = BloomFilter.open("x", client=restricted("-@scripting"))
    with pytest.raises(ConfigurationError, match="rename needs a server that runs scripts"):
        made.rename("y")
    assert made.exists_many(ITEMS) == [True] * 300
    assert list_filters(client=r) == ["x"]
