"""The checker finds what was planted, and nothing in what a lock did that holds."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lock_chaos import locks
from lock_chaos.history import (
    FOREVER,
    Hold,
    Wipe,
    check,
    falling_fences,
    holds_of,
    overlaps,
    stale,
    waits,
)

BOUND = 1.0
MINE, OTHERS = "t", "u"
HOUR = 3_600_000_000_000


def perfect(seed, count, *, readers=0.3):
    """Return what a lock that keeps all promises did: groups of readers, single writers."""
    pick = random.Random(seed)
    holds, now, fence = [], 1_000, 0
    while len(holds) < count:
        shared = pick.random() < readers
        start = now
        for _ in range(pick.randint(1, 4) if shared else 1):
            fence += pick.randint(1, 3)
            acquired = start + pick.randint(1, 50)
            asked = acquired - pick.randint(1, 500)
            end = acquired + pick.randint(1, 300)
            hold = Hold(pick.randint(0, 5), len(holds), shared, asked, acquired, fence, f"t{fence}")
            how = pick.choice(["released", "lost", "expired", "killed"])
            hold.until = end if how in {"expired", "killed"} else end + pick.randint(0, 999)
            hold.released = end if how == "released" else None
            hold.lost = end if how == "lost" else None
            hold.killed = acquired + 1 if how == "killed" else None
            if shared:
                # Asked before any of its group was there: their order is nobody's.
                hold.asked = start - 1
            holds.append(hold)
            now = max(now, end)
        now += pick.randint(0, 20)
    return sorted(holds, key=lambda hold: hold.asked)


histories = st.builds(perfect, st.integers(0, 2**32), st.integers(2, 40))
any_hold = st.builds(
    lambda start, length, shared, fence: Hold(
        0, 0, shared, start - 1, start, fence, until=start + length
    ),
    st.integers(1, 60),
    st.integers(-2, 20),
    st.booleans(),
    st.integers(1, 60),
)


def kinds(violations):
    return {violation.kind for violation in violations}


def exclusive(*span, fence=None, **more):
    start, end = span
    given = {"fence": fence, "asked": start - 1} | more
    return Hold(0, start, acquired=start, until=end, **given)


@given(histories)
def test_nothing_is_found_where_nothing_is_wrong(holds):
    assert check(holds, bound=BOUND, ttl=1.0) == []


@given(st.lists(any_hold, max_size=12))
def test_overlaps_are_those_of_the_definition(holds):
    found = {frozenset(map(id, violation.holds)) for violation in overlaps(holds)}
    expected = {
        frozenset((id(one), id(other)))
        for one in holds
        for other in holds
        if one is not other
        and not (one.shared and other.shared)
        and max(one.start, other.start) < min(one.end, other.end)
    }
    assert found == expected


@given(st.lists(any_hold, max_size=12, unique_by=lambda hold: hold.start))
def test_fences_fall_exactly_where_the_definition_says(holds):
    def above(one, other):
        """What must hold between a grant known to be earlier and a later one."""
        if one.shared and other.shared:
            return one.start >= other.asked or one.fence <= other.fence
        return one.fence < other.fence

    valid = sorted((hold for hold in holds if hold.valid), key=lambda hold: hold.start)
    wrong = {
        id(other)
        for index, other in enumerate(valid)
        if not all(above(one, other) for one in valid[:index])
    }
    assert {id(violation.holds[1]) for violation in falling_fences(holds)} == wrong


@given(histories, st.data())
def test_a_hold_that_began_too_early_is_found(holds, data):
    late = [
        (one, other)
        for one in holds
        for other in holds
        if one.start < other.start and one.valid and not (one.shared and other.shared)
    ]
    if not late:
        return
    one, other = data.draw(st.sampled_from(late))
    other.acquired = one.start
    assert "overlap" in kinds(check(holds, bound=BOUND))


@given(histories, st.data())
def test_a_deadline_believed_in_for_too_long_is_found(holds, data):
    writers = [hold for hold in holds if not hold.shared]
    if not writers:
        return
    one = data.draw(st.sampled_from(writers))
    followed = any(other.start >= one.end for other in holds)
    one.until, one.released, one.lost = FOREVER, None, None
    assert ("overlap" in kinds(check(holds, bound=BOUND))) == (followed and one.killed is None)


@given(histories, st.data(), st.integers(0, 3))
def test_a_fence_that_does_not_rise_is_found(holds, data, below):
    writers = [hold for hold in holds if not hold.shared]
    pairs = [
        (one, other)
        for one in holds
        for other in writers
        if one is not other and one.end <= other.start
    ]
    if not pairs:
        return
    one, other = data.draw(st.sampled_from(pairs))
    other.fence = one.fence - below
    assert "fence" in kinds(check(holds, bound=BOUND))


@given(histories, st.data(), st.booleans())
def test_who_never_got_an_answer_is_found_unless_dead(holds, data, dead):
    one = data.draw(st.sampled_from(holds))
    starved = replace(one, acquired=None, killed=one.asked + 5 if dead else None)
    holds[holds.index(one)] = starved
    assert [violation.holds for violation in waits(holds, BOUND)] == ([] if dead else [(starved,)])


@given(histories, st.data())
def test_who_waited_too_long_is_found(holds, data):
    one = data.draw(st.sampled_from(holds))
    one.asked -= HOUR
    assert [violation.holds for violation in waits(holds, BOUND)] == [(one,)]
    one.acquired, one.failed_at = None, one.asked + HOUR
    assert kinds(waits(holds, BOUND)) == {"late"}


@given(histories, st.data())
def test_a_wipe_excuses_what_it_took_and_nothing_else(holds, data):
    forgotten = [hold for hold in holds if not hold.shared and hold.end > hold.start + 1]
    if not forgotten:
        return
    old = data.draw(st.sampled_from(forgotten))
    top = max(hold.fence for hold in holds)
    wipe = Wipe(old.start, old.start + 1, frozenset({old.token}))
    new = exclusive(old.start + 1, old.end, fence=old.fence)
    new.fence, new.asked = old.fence, old.start
    assert kinds(overlaps([old, new])) == {"overlap"}
    assert kinds(overlaps([old, new], [wipe])) == set()
    third = exclusive(new.start, new.end + 1, fence=top + 2)
    assert kinds(overlaps([old, new, third], [wipe])) == {"overlap"}
    other = Wipe(wipe.start, wipe.end, frozenset({"somebody else"}))
    assert kinds(overlaps([old, new], [other])) == {"overlap"}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ((10, 90), (30, 40), set()),
        ((10, 90), (15, 40), {"overlap"}),  # before anything was forgotten
        ((10, 90), (20, 40), {"overlap"}),
        ((15, 40), (10, 90), {"overlap"}),  # what was forgotten is the later one
        ((10, 20), (10, 25), {"overlap"}),  # over by itself, before the wipe
        ((30, 90), (35, 40), {"overlap"}),  # asked for when all was forgotten
        ((22, 90), (24, 40), set()),
    ],
)
def test_a_wipe_excuses_only_what_came_of_it(old, new, found):
    wipe = Wipe(20, 25, frozenset({MINE}))
    assert kinds(overlaps([exclusive(*old, token=MINE), exclusive(*new)], [wipe])) == found


def test_a_grant_may_be_forgotten_before_its_owner_hears_of_it():
    old = exclusive(30, 40, asked=1, token=MINE)
    new = exclusive(25, 50, asked=21, token=OTHERS)
    assert not list(overlaps([old, new], [Wipe(10, 11, frozenset({MINE}))]))
    for wipe in (Wipe(26, 27, frozenset({MINE})), Wipe(10, 11, frozenset({MINE, OTHERS}))):
        new.asked = 5
        assert kinds(overlaps([old, new], [wipe])) == {"overlap"}


@pytest.mark.parametrize(("until", "found"), [(1_000_000_010, set()), (1_000_000_011, {"stale"})])
def test_what_was_forgotten_may_be_believed_in_for_one_lease(until, found):
    old = exclusive(5, until, token=MINE)
    assert kinds(stale([old], [Wipe(7, 10, frozenset({MINE}))], 1.0)) == found


def test_a_fence_above_a_later_one_is_excused_if_forgotten_before_its_owner_knew():
    new = exclusive(20, 30, fence=9)
    old = exclusive(40, 50, fence=8, asked=1, token=MINE)
    assert kinds(falling_fences([new, old])) == {"fence"}
    assert kinds(falling_fences([new, old], [Wipe(5, 6, frozenset({MINE}))])) == set()
    # It knew before.
    assert kinds(falling_fences([new, old], [Wipe(45, 46, frozenset({MINE}))])) == {"fence"}


def test_a_hold_is_put_together_from_its_events():
    key = {"worker": 3, "hold": 7}
    acquired = {"kind": "acquired", "time": 20, "fence": 5, "token": MINE, "until": 90} | key
    events = [
        {"kind": "ready", "time": 1, "worker": 3, "hold": -1},
        {"kind": "asked", "time": 10, "shared": False} | key,
        acquired,
        {"kind": "valid", "time": 30, "until": 100} | key,
        {"kind": "valid", "time": 31, "until": 95} | key,
    ]
    [hold] = [hold for hold in holds_of(events) if hold.number == 7]
    assert (hold.start, hold.end, hold.fence, hold.token) == (20, 100, 5, MINE)

    def end_with(*more):
        [found] = [hold for hold in holds_of([*events, *more]) if hold.number == 7]
        return found.end, found.release_error

    assert end_with({"kind": "lost", "time": 60} | key) == (60, None)
    releasing = {"kind": "releasing", "time": 50} | key
    released = {"kind": "released", "time": 70, "error": "LockLostError"} | key
    assert end_with(releasing, released) == (50, "LockLostError")
    # A lock that is held by nobody alive is still held until its deadline, unless it has none.
    killed = {"kind": "killed", "time": 55, "worker": 3}
    assert end_with(killed) == (100, None)
    acquired["until"] = FOREVER
    assert end_with(killed) == (55, None)


def test_an_answer_that_comes_too_late_was_never_believed_in(valkey):
    adapter = locks.make("lock", valkey, 1.0, lambda: None, {})
    assert adapter.lock.remaining() == 0
    hold = Hold(0, 0, acquired=time.monotonic_ns(), until=adapter.until())
    assert not hold.valid
