"""The pure part: votes, majorities, ages."""

from __future__ import annotations

import itertools

import pytest

from bloomlock.keys import LockKeys
from bloomlock.locks.options import RedlockOptions
from bloomlock.locks.protocol.steps import LockSteps
from bloomlock.locks.redlock import (
    Ballot,
    Seat,
    Vote,
    agreement,
    is_answered,
    is_decided,
    majority_of,
)

SHOWN = range(1, 5)
"""Sizes for which all votes are gone through."""


@pytest.mark.parametrize("servers", range(1, 8))
def test_two_majorities_have_a_server_in_common_and_less_may_not(servers):
    majority = majority_of([None] * servers)
    assert 2 * majority > servers
    assert 2 * (majority - 1) <= servers


def completions(votes):
    choices = [list(Vote) if vote is None else [vote] for vote in votes]
    return itertools.product(*choices)


@pytest.mark.parametrize("servers", SHOWN)
def test_what_is_decided_no_vote_can_change_and_nothing_else_is(servers):
    for votes in itertools.product([None, *Vote], repeat=servers):
        outcomes = {(agreement(last), is_answered(last)) for last in completions(votes)}
        possible = {agreed for agreed, _ in outcomes}
        assert agreement(votes) is (possible.pop() if len(possible) == 1 else None)
        if agreement(votes):
            assert is_decided(votes)
        else:
            assert is_decided(votes) == (len(outcomes) == 1 or None not in votes) or (
                not is_answered(votes)
            )
        if is_decided(votes):
            assert len(outcomes) == 1


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(0.05, 0.05), (0.1, 0.05), (5.0, 0.5), (30.0, 1.0), (86_400.0, 1.0)]
)
def test_time_outs(ttl, seconds):
    assert RedlockOptions(ttl).server_timeout == seconds


def test_the_same_run_of_a_server():
    ballot = Ballot(b"t", [Seat(LockSteps(LockKeys.of("job"), set())) for _ in range(4)])
    assert ballot.same_server() is None
    ballot.seats[0].run, ballot.seats[2].run = b"a", b"b"
    assert ballot.same_server() is None
    ballot.seats[3].run = b"a"
    assert ballot.same_server() == (0, 3)
