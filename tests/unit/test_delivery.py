"""How often a request is sent: as often as is safe, and after a time-out only once more."""

from __future__ import annotations

import pytest
import redis.exceptions

from bloomlock.commands import send_with_retry
from bloomlock.effects import ConnectionLost, Pause, Request

REQUEST = Request("key", [b"one", b"two"])
BROKEN = redis.exceptions.ConnectionError("broken")
SLOW = redis.exceptions.TimeoutError("slow")


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(
    ("cause", "sent", "pauses"),
    [
        # A broken connection is followed by two more tries.
        (BROKEN, True, [0.0, 0.2]),
        (BROKEN, False, [0.0, 0.2]),
        # A time-out is followed by one at once.
        (SLOW, True, [None]),
        # A server that cannot be reached in time is not tried again.
        (SLOW, False, []),
    ],
)
def test_a_request_is_sent_as_often_as_is_safe(cause, sent, pauses, repeatable):
    lost = ConnectionLost(cause, sent=sent, replies=[])
    if sent and not repeatable:
        # It may have been done.
        pauses = []
    core = send_with_retry(REQUEST, repeatable=repeatable)
    step = next(core)
    for pause in pauses:
        assert step == REQUEST
        step = core.throw(lost)
        if pause is not None:
            assert step == Pause(pause)
            step = core.send(None)
    assert step == REQUEST
    with pytest.raises(ConnectionLost) as raised:
        core.throw(lost)
    assert raised.value is lost
