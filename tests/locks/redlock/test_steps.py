"""What a majority's answers mean for a hold: each step is given its answers by the test."""

from __future__ import annotations

import pytest

from bloomlock import QuorumError
from bloomlock.delivery import deliver
from bloomlock.effects import ConnectionLost, Pause, Request
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.majority import (
    Limits,
    MajoritySteps,
    VotingServer,
    note_sending,
)
from bloomlock.locks.protocol.model import AcquireRequest, ReleaseRequest
from bloomlock.locks.protocol.quorum import Vote
from bloomlock.locks.protocol.steps import Renewal

YES, NO, ABSTAINS = Vote.YES, Vote.NO, Vote.ABSTAINS
DOWN = OSError("down")
KEYS = LockKeys.of("job")


@pytest.fixture
def steps():
    """Those of a lock that is held."""
    made = MajoritySteps(
        "job", KEYS, [set() for _ in range(3)], Limits(1.0, 0.0, (1, 1)), lambda: 100.0
    )
    made.ballots[b"t"] = made.new_ballot(b"t")
    return made


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
def test_renewal(steps, votes, held):
    answer = result(steps.renew(Renewal(KEYS, b"t", b"", 5000)), votes)
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
def test_release(steps, votes, held):
    core = steps.release(ReleaseRequest(b"t"), waiters=False)
    if held is not None:
        assert result(core, votes) is held
    else:
        next(core)
        with pytest.raises(ConnectionLost) as lost:
            core.send(votes)
        assert isinstance(lost.value.cause, QuorumError)
    assert not steps.ballots


@pytest.mark.parametrize(("closed", "until"), [(True, 200.0), (False, 100.0)])
def test_nothing_is_sent_for_a_try_that_is_over(steps, closed, until):
    """As by a thread that gets its turn too late."""
    ballot = steps.new_ballot(b"t")
    ballot.closed = closed
    server = VotingServer(0, KEYS, set(), 0.0, lambda: 100.0)
    for core in (
        server.vote(ballot, AcquireRequest(b"t", 5000), until),
        server.leave(ballot),
    ):
        with pytest.raises(StopIteration):
            next(core)
    assert not any(ballot.there)


def test_a_server_that_is_down_is_tried_twice_without_a_pause():
    noted = []
    request = Request(KEYS.lock, [b"x"])
    core = note_sending(deliver(request, repeatable=True), noted.append)
    assert next(core) == request
    assert core.throw(ConnectionLost(DOWN, sent=True, replies=[])) == Pause(0.0)
    assert core.send(None) == request
    with pytest.raises(ConnectionLost):
        core.throw(ConnectionLost(DOWN, sent=False, replies=[]))
    assert noted[0]
    assert not any(noted[1:])
