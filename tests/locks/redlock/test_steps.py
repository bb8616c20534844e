"""What a majority's answers mean for a hold: each step is given its answers by the test."""

from __future__ import annotations

import pytest

from bloomlock.effects import ConnectionLost
from bloomlock.errors import QuorumError
from bloomlock.keys import LockKeys
from bloomlock.locks.hold import Hold
from bloomlock.locks.options import RedlockOptions
from bloomlock.locks.protocol.steps import AcquireRequest, LockSteps
from bloomlock.locks.redlock import MajoritySteps, Vote

YES, NO, ABSTAINS = Vote.YES, Vote.NO, Vote.ABSTAINS
DOWN = OSError("down")
KEYS = LockKeys.of("job")


@pytest.fixture
def steps():
    """Those of a lock."""
    options = RedlockOptions(5.0, server_timeout=1.0, longest_ttl=0.0)
    return MajoritySteps("job", [LockSteps(KEYS, set()) for _ in range(3)], options, lambda: 100.0)


@pytest.fixture
def ballot(steps):
    return steps.new_ballot(b"t")


def hold_of(ballot):
    return Hold(b"t", b"", 5000, None, False, 0.0, 5.0, ballot=ballot)


def result(core, votes):
    next(core)
    with pytest.raises(StopIteration) as stop:
        core.send(votes)
    return stop.value.value


@pytest.mark.parametrize(
    ("votes", "held"),
    [
        ([YES, YES, NO], True),
        ([YES, YES, None], True),
        ([YES, NO, NO], False),
        ([NO, NO, None], False),
        ([NO, DOWN, NO], False),
        # A server that begins to count with its age may yet make it a majority.
        ([NO, NO, ABSTAINS], False),
        ([YES, NO, ABSTAINS], None),
        ([YES, NO, None], None),
        ([YES, DOWN, None], None),
    ],
)
def test_renewal(steps, ballot, votes, held):
    answer = result(steps.renew(hold_of(ballot), 5000), votes)
    if held is None:
        assert isinstance(answer, QuorumError)
    else:
        assert answer is held


@pytest.mark.parametrize(
    ("votes", "held"),
    [
        ([YES, YES, NO], True),
        ([YES, YES, DOWN], True),
        ([YES, NO, NO], False),
        ([YES, NO, ABSTAINS], False),
        ([NO, NO, None], False),
        ([YES, NO, None], None),
    ],
)
def test_release(steps, ballot, votes, held):
    core = steps.give_back(hold_of(ballot))
    if held is not None:
        assert result(core, votes) is held
    else:
        next(core)
        with pytest.raises(ConnectionLost) as lost:
            core.send(votes)
        assert isinstance(lost.value.cause, QuorumError)
    assert ballot.closed


def test_no_server_is_asked_for_what_is_being_given_back_or_too_late(steps):
    """As by a thread that gets its turn too late."""
    for given_back, now in ((True, 100.0), (False, 102.0)):
        ballot = steps.new_ballot(b"t")
        fan_out = next(steps.ask_for(ballot, AcquireRequest(b"t", 5000)))
        if given_back:
            next(steps.release_all(ballot))
        steps._clock = lambda now=now: now
        for core in fan_out.cores:
            with pytest.raises(StopIteration):
                next(core)
        assert not any(seat.there for seat in ballot.seats)
