"""What votes mean for an attempt and a hold; the clock and the votes are the test's."""

from __future__ import annotations

import itertools

import pytest

from bloomlock.effects import ConnectionLost, FanOut, Pause
from bloomlock.errors import QuorumError
from bloomlock.locks.hold import Hold
from bloomlock.locks.options import RedlockOptions
from bloomlock.locks.protocol.steps import LockRequest
from bloomlock.locks.redlock import (
    MajorityAttempt,
    MajoritySteps,
    Vote,
    agreement,
    is_answered,
    is_decided,
)

YES, NO, ABSTAINS = Vote.YES, Vote.NO, Vote.ABSTAINS
DOWN = OSError("down")
LEASE, PAUSE = 5.0, 0.1
OPTIONS = RedlockOptions(LEASE, server_timeout=1.0, longest_ttl=0.0)


@pytest.fixture(autouse=True)
def _pauses(monkeypatch):
    monkeypatch.setattr("bloomlock.locks.redlock.PAUSES", (PAUSE, PAUSE))


@pytest.mark.parametrize("servers", range(1, 5))
def test_what_is_decided_no_vote_can_change_and_nothing_else_is(servers):
    for votes in itertools.product([None, *Vote], repeat=servers):
        choices = [list(Vote) if vote is None else [vote] for vote in votes]
        outcomes = {(agreement(v), is_answered(v)) for v in itertools.product(*choices)}
        possible = {agreed for agreed, _ in outcomes}
        assert agreement(votes) is (possible.pop() if len(possible) == 1 else None)
        assert (agreement(votes) is True) == (votes.count(YES) > servers / 2)
        if agreement(votes):
            assert is_decided(votes)
        elif is_answered(votes):
            assert is_decided(votes) == (len(outcomes) == 1)
        if is_decided(votes):
            assert len(outcomes) == 1


@pytest.mark.parametrize(
    ("votes", "renewed", "released"),
    [
        ([YES, YES, NO], True, True),
        ([YES, YES, None], True, True),
        ([YES, YES, DOWN], True, True),
        ([YES, NO, NO], False, False),
        ([NO, NO, None], False, False),
        ([NO, DOWN, NO], False, False),
        # A server that begins to count with its age may yet make it a majority.
        ([NO, NO, ABSTAINS], False, False),
        ([YES, NO, ABSTAINS], None, False),
        ([YES, NO, None], None, None),
        ([YES, DOWN, None], None, None),
    ],
)
def test_renewal_and_release(votes, renewed, released):
    steps = MajoritySteps("job", 3, OPTIONS, lambda: 100.0)
    hold = Hold(b"t", 5000, None, 0.0, 5.0, ballot=steps.new_ballot(b"t"))
    for core, expected in ((steps.renew(hold, 5000), renewed), (steps.give_back(hold), released)):
        next(core)
        with pytest.raises((StopIteration, ConnectionLost)) as stopped:
            core.send(votes)
        if expected is None:
            error = getattr(stopped.value, "value", None) or stopped.value.cause
            assert isinstance(error, QuorumError)
        else:
            assert stopped.value.value is expected
    assert hold.ballot.closed


def test_no_server_is_asked_for_what_is_being_given_back_or_too_late():
    """As by a thread that gets its turn too late."""
    for given_back, late in ((True, 0.0), (False, 2.0)):
        now = 100.0
        steps = MajoritySteps("job", 3, OPTIONS, lambda: now)  # noqa: B023 - of this round
        ballot = steps.new_ballot(b"t")
        fan_out = next(steps.ask_for(ballot, LockRequest(b"t", 5000)))
        if given_back:
            next(steps.release_all(ballot))
        now += late
        for core in fan_out.cores:
            with pytest.raises(StopIteration):
                next(core)
        assert not any(seat.there for seat in ballot.seats)


class Driven:
    """An attempt at a lock on three servers, begun at second 100."""

    def __init__(self, until: float | None = None) -> None:
        self.now = 100.0
        steps = MajoritySteps("job", 3, OPTIONS, lambda: self.now)
        asking = LockRequest(b"", round(LEASE * 1000))
        self.attempt = MajorityAttempt(steps, asking, until, lambda: self.now)
        self.core = self.attempt.run()
        self.step = next(self.core)

    def answer(self, *votes: Vote | Exception | None, after: float = 0.0) -> object:
        """Answer a question to all servers; returns the next step, or at the end the result."""
        assert isinstance(self.step, FanOut)
        self.now += after
        try:
            self.step = self.core.send(list(votes))
        except StopIteration as stop:
            return stop.value
        return self.step

    def poll(self, *votes: Vote | Exception | None, after: float = 0.0) -> None:
        """Let a poll fail and its release be answered, and the pause go by."""
        self.answer(*votes, after=after)
        assert self.answer(NO, NO, NO) == Pause(PAUSE)
        self.now += PAUSE
        before = self.attempt.request.token
        self.step = next(self.core)
        assert self.attempt.request.token != before


def test_the_lease_is_counted_from_when_the_last_try_began():
    driven = Driven()
    driven.poll(NO, NO, YES, after=2.0)
    got = driven.answer(YES, YES, None, after=3.0)
    assert got[1] == pytest.approx(102 + PAUSE + LEASE * 0.99 - 0.002)


def test_a_majority_that_comes_when_the_lease_is_over_is_none():
    driven = Driven(until=100.0)
    assert isinstance(driven.answer(YES, YES, YES, after=LEASE), FanOut)
    with pytest.raises(QuorumError, match="nothing was left of the lease"):
        driven.answer(YES, YES, YES)


def test_no_pause_goes_past_the_time_limit_and_one_try_comes_after_it():
    driven = Driven(until=100.03)
    driven.answer(NO, NO, NO)
    assert driven.answer(NO, NO, NO) == Pause(pytest.approx(0.03))
    driven.now, driven.step = 100.03, next(driven.core)
    driven.answer(NO, NO, YES)
    assert driven.answer(NO, NO, YES) is None


def test_an_outage_ends_a_wait_without_limit_after_a_lease():
    driven = Driven()
    for votes in ([None, None, YES], [NO, NO, YES], [None, DOWN, YES]):
        driven.poll(*votes, after=LEASE / 2)
    driven.answer(None, DOWN, YES, after=LEASE)
    with pytest.raises(QuorumError, match=r"1 of 3 .*clients\[0\]: no answer .*\[1\]: down"):
        driven.answer(NO, NO, YES)


def test_what_is_no_outage_ends_no_wait():
    """Servers that were restarted answer; and a time limit is a limit of its own."""
    Driven().poll(ABSTAINS, ABSTAINS, NO, after=3 * LEASE)
    Driven(until=1000.0).poll(None, None, None, after=800.0)
