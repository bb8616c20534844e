"""How often a request is sent: as often as is safe, and after a time-out only once more."""

from __future__ import annotations

import pytest
import redis.exceptions

from bloomlock.commands import deliver
from bloomlock.effects import ConnectionLost, Pause, Request

REQUEST = Request("key", [b"one", b"two"])
BROKEN = redis.exceptions.ConnectionError("broken")
SLOW = redis.exceptions.TimeoutError("slow")


def carried_out(outcomes, *, repeatable):
    """Drive `deliver` with what comes of each try; return the steps it takes and its result."""
    core, left, steps = deliver(REQUEST, repeatable=repeatable), list(outcomes), []
    step = next(core)
    try:
        while True:
            steps.append(step)
            if isinstance(step, Pause):
                step = core.send(None)
                continue
            outcome = left.pop(0)
            if isinstance(outcome, list):
                core.send(outcome)
            step = core.throw(outcome)
    except StopIteration as stop:
        result = stop.value
    except ConnectionLost as lost:
        result = lost
    assert not left
    return steps, result


def lost(cause, *, sent):
    return ConnectionLost(cause, sent=sent, replies=[])


@pytest.mark.parametrize(("repeatable", "sent"), [(True, True), (True, False), (False, False)])
def test_a_broken_connection_is_followed_by_two_more_tries(repeatable, sent):
    losses = [lost(BROKEN, sent=sent) for _ in range(3)]
    steps = [REQUEST, Pause(0.0), REQUEST, Pause(0.2), REQUEST]
    assert carried_out([*losses[:2], [1, 2]], repeatable=repeatable) == (steps, [1, 2])
    assert carried_out(losses, repeatable=repeatable) == (steps, losses[-1])


@pytest.mark.parametrize("cause", [BROKEN, SLOW])
def test_what_may_have_been_done_and_may_not_be_repeated_is_not(cause):
    loss = lost(cause, sent=True)
    assert carried_out([loss], repeatable=False) == ([REQUEST], loss)


def test_a_time_out_is_followed_by_one_try_at_once():
    first, second = lost(SLOW, sent=True), lost(SLOW, sent=True)
    assert carried_out([first, [1, 2]], repeatable=True) == ([REQUEST, REQUEST], [1, 2])
    assert carried_out([first, second], repeatable=True) == ([REQUEST, REQUEST], second)


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_server_that_cannot_be_reached_in_time_is_not_tried_again(repeatable):
    loss = lost(SLOW, sent=False)
    assert carried_out([loss], repeatable=repeatable) == ([REQUEST], loss)
