"""Filters that expire or get another name: all of one at once, never a part taken for the whole.

No test waits for a moment: where a filter has to be gone, its keys are given a short time-out, and
it is waited for until they are.
"""

from __future__ import annotations

import pytest
from stepped import Crash, Stepped, crash
from strategies import STRATEGIES

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter, list_filters
from bloomlock.errors import (
    BloomlockError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
)

HOUR = 3600.0
META = "bloomlock:{x}:meta"
ITEMS = [str(number) for number in range(300)]
KINDS = {
    "plain": {"shards": 3},
    "one shard": {},
    "window": {"window": 600, "shards": 2},
    "grown": {"capacity": 100, "on_full": "grow", "shards": 2},
    "discards": {"shards": 2},
    **{strategy: {"strategy": strategy, "shards": 2} for strategy in STRATEGIES[1:]},
}


def filled(client, kind="plain"):
    made = BloomFilter("x", **{"capacity": 3000, "client": client} | KINDS[kind])
    for start in range(0, 300, 50):
        made.update(ITEMS[start : start + 50])
    return made


def keys_of(r, name="x"):
    """The keys of the filter; the fences of its locks expire by themselves."""
    found = r.scan_iter(f"bloomlock:{{{name}*")
    return sorted(key for key in found if not key.endswith(b":fence"))


def all_expire(r, within):
    return all(within - 600 < r.pttl(key) / 1000 <= within + 600 for key in keys_of(r))


def none_expires(r):
    return all(r.ttl(key) == -1 for key in keys_of(r))


@pytest.mark.parametrize("route", ["items", "bitmap"])
def test_no_way_to_add_takes_the_expiry_away(r, route):
    made = filled(r)
    made.expire(HOUR)
    made.add_many(map(str, range(1000)), route=route)
    made.update(map(str, range(1000, 2000)), route=route)
    made.update(BloomFilter("y", 3000, client=r, shards=3))
    made.update(made.to_memory())
    assert made.discard("1")
    assert all_expire(r, HOUR)


@pytest.mark.parametrize("way", ["clear", "recreate"])
def test_what_replaces_a_filter_that_expires_stays_without_scripts_too(r, restricted, way):
    """With all its keys, also those that outlive a generation."""
    user = restricted("-@scripting")
    made = BloomFilter("x", 3000, client=r, shards=3)
    made.claim_many(map(str, range(20)), renew=False)
    made.expire(HOUR)
    if way == "clear":
        BloomFilter.open("x", client=user).clear()
    else:
        r.delete(META)
        BloomFilter("x", 3000, client=user, shards=3, on_lost="recreate")
    assert none_expires(r)


@pytest.mark.parametrize("before", [HOUR, 3 * HOUR])
def test_a_call_that_stops_at_any_step_leaves_no_part_that_outlives_the_descriptor_alone(r, before):
    """The descriptor goes first, so nothing can be taken for a whole that is none."""
    number, done = 0, False
    while not done:
        r.flushall()
        filled(r).expire(before)
        made = Stepped.opened("x", number, crash, r)
        try:
            made.expire(2 * HOUR)
        except Crash:
            pass
        else:
            done = True
        first = r.pttl(META)
        assert all(r.pttl(key) > first - 60_000 for key in keys_of(r)), number
        number += 1
    assert number > 1
    assert all_expire(r, 2 * HOUR)


def test_a_filter_of_another_generation_is_left_alone(r):
    for act in (lambda made: made.expire(HOUR), BloomFilter.persist, BloomFilter.ttl):
        r.flushall()
        made = filled(r)
        BloomFilter.open("x", client=r).clear()
        with pytest.raises(FilterLostError):
            act(made)
        assert none_expires(r)


def test_a_descriptor_that_is_touched_and_not_changed_is_no_change(r, proxy):
    """As in a slot that moves away and back. What was prepared for a first try is not left."""
    made, touched = BloomFilter("x", 1000, client=proxy.client()), []

    def judge(name, _number):
        if name == "EXEC" and not touched:
            touched.append(r.hset(META, "state", r.hget(META, "state")))
        return "pass"

    proxy.judge = judge
    made.clear()
    assert touched
    assert not r.keys("*:prepared:*")


# -- another name --------------------------------------------------------------------------------


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
    assert made.exists_many(ITEMS) == [True] * 300
    BloomFilter.open("x", client=r).clear()
    with pytest.raises(FilterLostError):
        made.rename("other")


def take(client):
    with BloomFilter("y", 1000, client=client) as other:
        other.add("another")


EVENTS = {
    "the name is taken": take,
    "it is renamed by another": lambda client: BloomFilter.open("x", client=client).rename("z"),
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

        made = Stepped.opened("x", number, act, r)
        try:
            made.rename("y")
        except (BloomlockError, Crash) as error:
            is_renamed = False
            assert isinstance(error, Crash) is (event == "the client dies")
        else:
            is_renamed, done = True, made.done <= number
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


def test_claims_that_are_left_at_a_name_are_not_those_of_its_next_filter(r):
    left = BloomFilter("y", 1000, client=r)
    left.claim("left", renew=False)
    for key in ("bloomlock:{y}:meta", "bloomlock:{y}:bits"):
        r.delete(key)
    made = filled(r, "one shard").rename("y")
    assert made.open_claims() == []
    assert keys_of(r, "y") == [b"bloomlock:{y}:bits", b"bloomlock:{y}:meta"]


def test_it_expires_as_before_with_a_set_of_tombstones_that_is_empty_too(r):
    made = filled(r)
    made.expire(HOUR)
    made.discard("1")
    made.add("1")
    made.rename("y")
    assert all(r.ttl(key) > 0 for key in keys_of(r, "y"))


def test_scripts_may_be_forbidden(r, restricted):
    filled(r)
    made = BloomFilter.open("x", client=restricted("-@scripting"))
    with pytest.raises(ConfigurationError, match="rename needs a server that runs scripts"):
        made.rename("y")
    assert made.exists_many(ITEMS) == [True] * 300
    assert list_filters(client=r) == ["x"]
