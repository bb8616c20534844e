"""One attempt, step by step: the clock and the answers are the test's."""

from __future__ import annotations

import pytest

from bloomlock.effects import FanOut, Pause
from bloomlock.errors import QuorumError
from bloomlock.keys import LockKeys
from bloomlock.locks.options import RedlockOptions
from bloomlock.locks.protocol.steps import AcquireRequest, LockSteps
from bloomlock.locks.redlock import MajorityAttempt, MajoritySteps, Vote

YES, NO, ABSTAINS = Vote.YES, Vote.NO, Vote.ABSTAINS
LEASE = 5.0
PAUSE = 0.1


@pytest.fixture(autouse=True)
def _pauses(monkeypatch):
    monkeypatch.setattr("bloomlock.locks.redlock.PAUSES", (PAUSE, PAUSE))


class Driven:
    """An attempt at a lock on three servers, begun at second 100."""

    def __init__(self, until: float | None) -> None:
        self.now = 100.0
        options = RedlockOptions(LEASE, longest_ttl=0.0)
        each = [LockSteps(LockKeys.of("job"), set()) for _ in range(3)]
        steps = MajoritySteps("job", each, options, lambda: self.now)
        asking = AcquireRequest(b"", round(LEASE * 1000))
        self.attempt = MajorityAttempt(steps, asking, until, lambda: self.now)
        self.core = self.attempt.run()
        self.step = next(self.core)

    def answer(self, *votes: Vote | Exception | None, after: float = 0.0) -> object:
        """Answer a question to all servers; returns the next step."""
        assert isinstance(self.step, FanOut)
        self.now += after
        self.step = self.core.send(list(votes))
        return self.step

    def poll(self, *votes: Vote | Exception | None, after: float = 0.0) -> object:
        """Let a poll fail and its release be answered; returns the step after that."""
        self.answer(*votes, after=after)
        return self.answer(NO, NO, NO)

    def pause(self) -> None:
        assert isinstance(self.step, Pause)
        self.now += self.step.seconds
        self.step = next(self.core)

    def result(self, *votes: Vote | Exception | None, after: float = 0.0) -> object:
        with pytest.raises(StopIteration) as stop:
            self.answer(*votes, after=after)
        return stop.value.value


def test_the_time_spent_counts_against_the_lease():
    driven = Driven(until=None)
    got = driven.result(YES, YES, None, after=3.0)
    assert got.deadline == pytest.approx(100 + LEASE * 0.99 - 0.002)


def test_a_majority_that_comes_when_the_lease_is_over_is_none():
    driven = Driven(until=100.0)
    assert isinstance(driven.answer(YES, YES, YES, after=LEASE), FanOut)
    with pytest.raises(QuorumError, match="nothing was left of the lease"):
        driven.answer(YES, YES, YES)


def test_the_lease_is_counted_from_the_last_try():
    driven = Driven(until=None)
    assert driven.poll(NO, NO, YES, after=2.0) == Pause(PAUSE)
    first = driven.attempt.request.token
    driven.pause()
    assert driven.attempt.request.token != first
    got = driven.result(None, YES, YES)
    assert got.deadline == pytest.approx(102 + PAUSE + LEASE * 0.99 - 0.002)


def test_no_pause_goes_past_the_time_limit_and_one_try_comes_after_it():
    driven = Driven(until=100.03)
    assert driven.poll(NO, NO, NO) == Pause(pytest.approx(0.03))
    driven.pause()
    driven.answer(NO, NO, YES)
    assert driven.result(NO, NO, YES) is None


def test_an_outage_ends_a_wait_without_limit_after_a_lease():
    driven = Driven(until=None)
    assert driven.poll(None, None, YES, after=LEASE / 2) == Pause(PAUSE)
    driven.pause()
    driven.poll(NO, NO, YES)
    driven.pause()
    assert driven.poll(None, OSError("down"), YES, after=LEASE / 2) == Pause(PAUSE)
    driven.pause()
    driven.answer(None, OSError("down"), YES, after=LEASE)
    with pytest.raises(QuorumError, match=r"1 of 3 .*clients\[0\]: no answer .*\[1\]: down"):
        driven.answer(NO, NO, YES)


def test_an_outage_does_not_end_a_wait_with_a_limit_before_it():
    driven = Driven(until=1000.0)
    assert driven.poll(None, None, None, after=800.0) == Pause(PAUSE)


def test_servers_that_were_restarted_are_no_outage():
    driven = Driven(until=None)
    assert driven.poll(ABSTAINS, ABSTAINS, NO, after=3 * LEASE) == Pause(PAUSE)
