"""Only what a cluster refused is sent again, a transaction as a whole."""

from __future__ import annotations

import pytest
import redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ExecAbortError,
    MovedError,
    TryAgainError,
)

from bloomlock.commands import encode_command
from bloomlock.effects import ConnectionLost, Pause
from bloomlock.runtime import cluster
from bloomlock.runtime.cluster import (
    DOWN_SECONDS,
    LONGEST_PAUSE_S,
    MAX_REDIRECTS,
    MOVING_SECONDS,
    Again,
    Pauses,
    Sent,
    follow,
)

MULTI, EXEC, ASKING = (encode_command(name) for name in ("MULTI", "EXEC", "ASKING"))
MOVED, ASK = MovedError("7 127.0.0.1:7001"), AskError("7 127.0.0.1:7002")
TRY_AGAIN = TryAgainError("Multiple keys request during rehashing of slot")
ABORTED = ExecAbortError("")


@pytest.fixture
def clock(monkeypatch):
    times = [100.0]
    monkeypatch.setattr(cluster, "boot_clock", lambda: times[0])
    return times


def followed(commands, replies, *outcomes, waits=True, until=None):
    """Follow the refusals; return what was sent again, and the replies at the end."""
    sent, again, left = Sent("k", commands, replies), [], list(outcomes)
    steps, answer = follow(sent, until, waits=waits), None
    try:
        while True:
            step = steps.send(answer)
            again.append(step.commands if isinstance(step, Again) else step)
            answer = left.pop(0) if isinstance(step, Again) else None
    except StopIteration:
        assert not left
        return again, sent.replies


WORDS = {
    "MULTI": MULTI,
    "EXEC": EXEC,
    "ASKING": ASKING,
    "moved": MOVED,
    "ask": ASK,
    "again": TRY_AGAIN,
    "aborted": ABORTED,
}


@pytest.mark.parametrize(
    ("commands", "replies", "again", "outcome", "expected"),
    [
        ("a b", "moved 1", "a", "A", "A 1"),
        ("a b", "1 ask", "ASKING b", "OK B", "1 B"),
        ("a b", "ask again", "ASKING a ASKING b", "OK A OK B", "A B"),
        ("MULTI a EXEC", "OK moved aborted", "MULTI a EXEC", "OK Q 1", "OK Q 1"),
        ("MULTI a EXEC", "OK Q ask", "ASKING MULTI a EXEC", "OK OK Q 1", "OK Q 1"),
        ("r MULTI a EXEC", "R OK ask aborted", "ASKING MULTI a EXEC", "OK OK Q 1", "R OK Q 1"),
        (
            "r MULTI a EXEC",
            "ask OK ask aborted",
            "ASKING r ASKING MULTI a EXEC",
            "OK R OK OK Q 1",
            "R OK Q 1",
        ),
        ("r MULTI a EXEC", "moved OK Q 1", "r", "R", "R OK Q 1"),
    ],
)
def test_what_was_carried_out_is_not_sent_again(commands, replies, again, outcome, expected):
    given = [
        [WORDS.get(word, word) for word in text.split()]
        for text in (commands, replies, outcome, again, expected)
    ]
    assert followed(*given[:3]) == ([given[3]], given[4])


def test_what_was_cut_off_while_redirected_stands_in_its_own_place():
    """The commands that were carried out before must be neither repeated nor misread."""
    commands, error = [b"a", b"b", b"c", b"d"], redis.ConnectionError()
    lost = ConnectionLost(error, sent=True, replies=["B"])
    assert followed(commands, [1, MOVED, MOVED, 2], lost)[1] == [1, "B", lost, 2]
    lost = ConnectionLost(error, sent=True, replies=[b"OK", "B", b"OK"])
    assert followed(commands, [1, ASK, ASK, 2], lost)[1] == [1, "B", lost, 2]


def test_redirects_are_followed_at_once_and_then_with_pauses_until_time_is_up(clock):
    pauses = Pauses(None, waits=True)
    assert [pauses.next_s(MOVED) for _ in range(MAX_REDIRECTS)] == [0.0] * MAX_REDIRECTS
    later = [pauses.next_s(MOVED) for _ in range(50)]
    assert all(0 < pause <= LONGEST_PAUSE_S for pause in later)
    assert 0 < Pauses(None, waits=True).next_s(ASK, is_redirection=False) < LONGEST_PAUSE_S
    # The reason reaches the caller before its own limit does.
    assert Pauses(100.2, waits=True).next_s(TRY_AGAIN) is None
    assert Pauses(101.0, waits=True).next_s(TRY_AGAIN) is not None
    clock[0] += MOVING_SECONDS
    assert pauses.next_s(MOVED) is None


def test_a_cluster_without_a_server_for_a_slot_is_waited_for_a_second(clock):
    down = ClusterDownError("Hash slot not served")
    again, replies = followed([b"a"], [down], [down], ["A"])
    assert [step for step in again if not isinstance(step, Pause)] == [[b"a"]] * 2
    assert replies == ["A"]
    sent = Sent("k", [b"a"], [down])
    steps = follow(sent, None, waits=True)
    assert isinstance(next(steps), Pause)
    next(steps)
    clock[0] += DOWN_SECONDS
    with pytest.raises(StopIteration):
        steps.send([down])
    assert sent.replies == [down], "the server's own error is the answer"


def test_what_does_not_wait_follows_redirections_and_keeps_the_refusal():
    assert followed([b"a"], [MOVED], [TRY_AGAIN], waits=False) == ([[b"a"]], [TRY_AGAIN])
