"""A waiter's steps, with its clock, the answers and what it hears passed in by hand."""

from __future__ import annotations

import pytest
import redis

from bloomlock.effects import (
    ConnectionLost,
    Limit,
    NextMessage,
    Pause,
    Request,
    RunAfter,
    Subscribe,
)
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol import waiting
from bloomlock.locks.protocol.steps import SLICE_MS, LockRequest, LockSteps
from bloomlock.locks.protocol.waiting import LATER_SECONDS, Attempt

LEASE_MS = 600_000


class Waiter:
    """Runs an attempt at a lock that another client holds until it pauses or listens."""

    def __init__(self, *, until=None, left_ms=LEASE_MS):
        self.now, self.is_down, self.result = 1000.0, False, None
        self.busy = [0, left_ms, b"1"]
        asking = LockRequest(b"waiter", LEASE_MS)
        steps = LockSteps(LockKeys.of("job"))
        self._core = Attempt(steps, asking, until, lambda: self.now).run()

    def go(self, argument=None):
        """Answer the step that it waits in; return the next one, or None at the end."""
        move = self._core.send
        try:
            while not isinstance(step := move(argument), (NextMessage, Pause)):
                argument = self._answer(step)
                is_lost = isinstance(argument, ConnectionLost)
                move = self._core.throw if is_lost else self._core.send
        except StopIteration as stop:
            self.result = stop.value
            return None
        return step

    def _answer(self, step):
        if isinstance(step, Request):
            if self.is_down:
                return ConnectionLost(redis.ConnectionError("down"), sent=False, replies=[])
            return [self.busy]
        assert isinstance(step, (Subscribe, Limit, RunAfter))
        return b"channel" if isinstance(step, Subscribe) and step.connect else b""


@pytest.mark.parametrize(
    ("left_ms", "seconds"),
    [(LEASE_MS, SLICE_MS / 1000), (-1, SLICE_MS / 1000), (700, 0.7 + LATER_SECONDS)],
)
def test_it_sleeps_a_slice_but_not_beyond_the_lease_of_the_holder(left_ms, seconds):
    assert Waiter(left_ms=left_ms).go() == NextMessage(b"waiter", seconds)


def test_a_message_of_a_grant_that_was_over_when_it_asked_is_none():
    """It was stopped while it was granted the lock, until another client had it."""
    waiter = Waiter()
    assert isinstance(waiter.go(), NextMessage)
    assert isinstance(waiter.go(b"waiter 1"), NextMessage)
    assert waiter.go(b"waiter 2") is None
    assert waiter.result[0] == 2


@pytest.mark.parametrize("is_answered", [True, False])
def test_at_the_time_limit_the_last_answer_counts_and_an_error_after_it(is_answered):
    waiter = Waiter(until=1100.0)
    waiter.go()
    waiter.is_down = True
    assert waiter.go() == Pause(0.0)
    assert waiter.go() == Pause(0.2)
    assert waiter.go() == Pause(waiting.OUTAGE_PAUSE)
    if is_answered:
        waiter.is_down = False
        assert isinstance(waiter.go(), NextMessage)
    waiter.now += 200
    if is_answered:
        assert waiter.go() is None
        assert waiter.result is None
    else:
        with pytest.raises(redis.ConnectionError, match="down"):
            waiter.go()
