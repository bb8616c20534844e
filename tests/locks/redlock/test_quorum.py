"""The pure part: votes, majorities, ages."""

from __future__ import annotations

import itertools

import pytest

from bloomlock.locks.redlock import (
    Ballot,
    Vote,
    agreement,
    default_server_timeout,
    has_majority,
    is_decided,
    majority_of,
    seconds_without_vote,
    voters,
)

SIZES = range(1, 8)
SHOWN = range(1, 5)
"""Sizes for which all votes are gone through."""


@pytest.mark.parametrize("servers", SIZES)
def test_two_majorities_have_a_server_in_common_and_less_may_not(servers):
    majority = majority_of(servers)
    assert 2 * majority > servers
    assert 2 * (majority - 1) <= servers


def completions(votes):
    choices = [list(Vote) if vote is None else [vote] for vote in votes]
    return itertools.product(*choices)


@pytest.mark.parametrize("servers", SHOWN)
def test_what_is_decided_no_vote_can_change_and_nothing_else_is(servers):
    for votes in itertools.product([None, *Vote], repeat=servers):
        outcomes = {
            (has_majority(all_votes), voters(all_votes) >= majority_of(servers))
            for all_votes in completions(votes)
        }
        if has_majority(votes):
            assert is_decided(votes)
        else:
            assert is_decided(votes) == (len(outcomes) == 1 or None not in votes) or (
                voters(votes) < majority_of(servers)
            )
        if is_decided(votes):
            assert len(outcomes) == 1


@pytest.mark.parametrize("servers", SIZES)
def test_agreement_is_what_all_answers_would_give(servers):
    for yes in range(servers + 1):
        for silent in range(servers + 1 - yes):
            possible = {yes + more >= majority_of(servers) for more in range(silent + 1)}
            expected = possible.pop() if len(possible) == 1 else None
            assert agreement(yes, silent, servers) is expected


def test_ages():
    assert seconds_without_vote(None, 30.0) == float("inf")
    assert seconds_without_vote(0, 0.0) == 0.0
    assert seconds_without_vote(None, 0.0) == 0.0
    assert seconds_without_vote(29, 30.0) == 2.0
    assert seconds_without_vote(31, 30.0) == 0.0
    assert seconds_without_vote(10**9, 30.0) == 0.0


def test_time_outs():
    assert default_server_timeout(0.05) == 0.05
    assert default_server_timeout(30.0) == 1.0
    assert default_server_timeout(365 * 86_400.0) == 1.0


def test_the_same_run_of_a_server():
    ballot = Ballot(b"t", 4)
    assert ballot.same_run() is None
    ballot.runs = [b"a", None, b"b", None]
    assert ballot.same_run() is None
    ballot.runs[3] = b"a"
    assert ballot.same_run() == (0, 3)
