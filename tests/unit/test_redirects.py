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
from bloomlock.effects import ConnectionLost, Limit, Request
from bloomlock.runtime import cluster
from bloomlock.runtime._sync.driver import Driver
from bloomlock.runtime.cluster import (
    ASKING,
    DOWN_SECONDS,
    LONGEST_PAUSE_S,
    MOVING_SECONDS,
    SHORTEST_PAUSE_S,
    Pauses,
)

MULTI, EXEC = (encode_command(name) for name in ("MULTI", "EXEC"))
MOVED, ASK = MovedError("7 127.0.0.1:7001"), AskError("7 127.0.0.1:7002")
TRY_AGAIN = TryAgainError("Multiple keys request during rehashing of slot")
ABORTED = ExecAbortError("")


@pytest.fixture
def clock(monkeypatch):
    times = [100.0]
    monkeypatch.setattr(cluster, "boot_clock", lambda: times[0])
    return times


class Told(Driver):
    """Is told what comes of each try, and notes what was sent."""

    def __init__(self, outcomes):
        self.again, self._outcomes = [], list(outcomes)

    def _source_after(self, refusal, _key):
        return refusal

    def _take(self, source):
        return source

    def _exchange(self, _taken, commands, _room=None):
        self.again.append(commands)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, ConnectionLost):
            raise outcome
        return outcome

    def _end(self, *_):
        pass


def followed(commands, replies, *outcomes, waits=True):
    """Follow the refusals; return what was sent again, and the replies at the end."""
    driver = Told(outcomes)
    driver._follow(Request("k", commands), replies, Limit(None, [], waits))
    assert not driver._outcomes
    return driver.again, replies


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


def test_the_second_try_comes_at_once_and_others_after_pauses_until_time_is_up(clock):
    pauses = Pauses(None, waits=True)
    assert pauses.next_s(MOVED) == 0
    later = [pauses.next_s(MOVED) for _ in range(50)]
    assert all(0 < pause <= LONGEST_PAUSE_S for pause in later)
    assert later[0] <= SHORTEST_PAUSE_S
    clock[0] += MOVING_SECONDS
    assert pauses.next_s(MOVED) is None
    # The reason reaches the caller before its own limit does.
    for until, gives_up in [(100.2, True), (101.0, False)]:
        clock[0] = 100.0
        pauses = Pauses(until, waits=True)
        assert pauses.next_s(TRY_AGAIN) == 0
        assert (pauses.next_s(TRY_AGAIN) is None) is gives_up


def test_a_cluster_without_a_server_for_a_slot_is_waited_for_a_second(clock, monkeypatch):
    down = ClusterDownError("Hash slot not served")
    assert followed([b"a"], [down], [down], ["A"]) == ([[b"a"]] * 2, ["A"])
    seconds = iter([0.0, DOWN_SECONDS])
    monkeypatch.setattr(
        "bloomlock.runtime._sync.exchange.sleep",
        lambda _: clock.append(clock.pop() + next(seconds)),
    )
    # The server's own error is the answer.
    assert followed([b"a"], [down], [down], [down]) == ([[b"a"]] * 2, [down])


def test_what_does_not_wait_follows_a_redirection_and_keeps_the_refusal():
    assert followed([b"a"], [MOVED], [TRY_AGAIN], waits=False) == ([[b"a"]], [TRY_AGAIN])
