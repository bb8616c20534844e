"""Only what was redirected is sent again, a transaction as a whole."""

from __future__ import annotations

from functools import partial

import pytest
import redis
from redis.exceptions import (
    AskError,
    ExecAbortError,
    MovedError,
    ResponseError,
    TryAgainError,
)

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.effects import ConnectionLost, Pause, Request
from bloomlock.runtime.cluster import MAX_REDIRECTS, Rounds, Sent, find_again, find_redirects
from bloomlock.slot_moves import LONGEST_PAUSE_S, MOVING_SECONDS, through_moves, without_waiting

MULTI, EXEC, ASKING = (encode_command(name) for name in ("MULTI", "EXEC", "ASKING"))
MOVED, ASK = MovedError("7 127.0.0.1:7001"), AskError("7 127.0.0.1:7002")
TRY_AGAIN = TryAgainError("Multiple keys request during rehashing of slot")


def test_nothing_is_redirected():
    assert find_redirects([b"a", b"b"], [1, ResponseError("ERR")]) == []


def test_neighbours_that_were_carried_out_are_not_sent_again():
    moved, asked = find_redirects([b"a", b"b", b"c"], [MOVED, 1, ASK])
    assert (moved.indices, moved.target) == ([0], (False, "127.0.0.1", 7001))
    assert moved.prepare([b"a", b"b", b"c"]) == [b"a"]
    replies = [MOVED, 1, ASK]
    moved.merge(replies, ["A"])
    asked.merge(replies, [b"OK", "C"])
    assert replies == ["A", 1, "C"]
    assert (asked.indices, asked.target) == ([2], (True, "127.0.0.1", 7002))
    assert asked.prepare([b"a", b"b", b"c"]) == [ASKING, b"c"]


def test_what_was_cut_off_while_redirected_stands_in_its_own_place():
    """The commands that were carried out before must be neither repeated nor misread."""
    commands = [b"a", b"b", b"c", b"d"]
    lost = ConnectionLost(redis.ConnectionError(), sent=True, replies=["B"])
    replies = [1, MOVED, MOVED, 2]
    (moved,) = find_redirects(commands, replies)
    moved.merge(replies, lost.replies, lost)
    assert replies == [1, "B", lost, 2]
    replies = [1, ASK, ASK, 2]
    (asked,) = find_redirects(commands, replies)
    asked.merge(replies, [b"OK", "B", b"OK"], lost)
    assert replies == [1, "B", lost, 2]


def test_a_transaction_is_sent_again_as_a_whole_whatever_exec_says():
    commands = [MULTI, b"a", EXEC]
    for last in (ExecAbortError(""), ASK):
        (asked,) = find_redirects(commands, [b"OK", ASK, last])
        assert asked.indices == [0, 1, 2]
        assert asked.prepare(commands) == [ASKING, *commands]
        replies = [b"OK", ASK, last]
        asked.merge(replies, [b"OK", b"OK", b"QUEUED", [1]])
        assert replies == [b"OK", b"QUEUED", [1]]
    (moved,) = find_redirects(commands, [b"OK", MOVED, ExecAbortError("")])
    assert moved.prepare(commands) == commands


@pytest.mark.parametrize("first", [b"", ASK, MOVED, TRY_AGAIN])
@pytest.mark.parametrize("refused", [ASK, MOVED, TRY_AGAIN])
def test_a_transaction_behind_another_command_is_sent_again_as_a_whole(first, refused):
    commands = [b"read", MULTI, b"a", EXEC]
    replies = [first, b"OK", refused, ExecAbortError("")]
    *others, whole = find_redirects(commands, replies)
    assert whole.indices == [1, 2, 3]
    assert whole.prepare(commands) == [ASKING] * (refused is ASK) + commands[1:]
    assert [other.prepare(commands)[-1] for other in others] == [b"read"] * (first != b"")
    whole.merge(replies, [b"OK"] * (refused is ASK) + [b"OK", b"QUEUED", [1]])
    assert replies == [first, b"OK", b"QUEUED", [1]]
    # What was carried out is not sent again.
    done = [first, b"OK", b"QUEUED", [1]]
    assert [one.indices for one in find_redirects(commands, done)] == [[0]] * (first != b"")


def test_what_several_keys_wait_for_goes_to_the_owner_of_the_slot_again():
    (again,) = find_redirects([b"a", b"b"], [1, TRY_AGAIN])
    assert (again.indices, again.target) == ([1], None)
    (whole,) = find_redirects([MULTI, b"a", EXEC], [b"OK", b"QUEUED", TRY_AGAIN])
    assert whole.prepare([MULTI, b"a", EXEC]) == [MULTI, b"a", EXEC]


def test_what_one_server_refuses_of_many_requests_goes_out_in_one_write():
    """A reshard moves a thousand slots; a batch must not pay a round trip for each."""
    asked = Sent("k", [MULTI, b"c", EXEC], [b"OK", ASK, ExecAbortError("")])
    requests = [
        Sent("i", [b"a"], [MOVED]),
        Sent("j", [b"b", b"x"], [MOVED, 1]),
        asked,
        Sent("l", [b"d"], [TRY_AGAIN]),
        Sent("m", [b"e"], [TRY_AGAIN]),
        Sent("n", [b"f"], [2]),
    ]
    moved, ask, one, other = find_again(requests)
    assert (moved.target, moved.commands) == ((False, "127.0.0.1", 7001), [b"a", b"b"])
    assert (ask.target, ask.commands) == (
        (True, "127.0.0.1", 7002),
        [ASKING, MULTI, b"c", EXEC],
    )
    assert [(each.target, each.key) for each in (one, other)] == [(None, "l"), (None, "m")]
    lost = ConnectionLost(redis.ConnectionError(), sent=True, replies=["A"])
    moved.merge(lost.replies, lost)
    ask.merge([b"OK", b"OK", b"QUEUED", [1]])
    assert [sent.replies for sent in requests[:3]] == [["A"], [lost, 1], [b"OK", b"QUEUED", [1]]]


def test_redirects_are_followed_at_once_and_then_with_pauses_until_time_is_up():
    rounds = Rounds(began=100.0)
    assert [rounds.pause(100.0, redirected=True) for _ in range(MAX_REDIRECTS)] == [0.0] * 5
    pauses = [rounds.pause(100.0, redirected=n % 2 == 0) for n in range(50)]
    assert all(0 < pause <= LONGEST_PAUSE_S for pause in pauses)
    assert rounds.pause(100.0 + MOVING_SECONDS, redirected=False) is None
    # The reason reaches the caller before its own limit does.
    assert Rounds(100.0, until=101.0).pause(100.9, redirected=False) is None
    assert Rounds(100.0, until=101.0).pause(100.1, redirected=False) is not None


def test_what_still_is_refused_then_says_so():
    sent = Sent("bloomlock:{a}:bits", [MULTI, b"a", EXEC], [b"OK", ASK, ExecAbortError("")])
    Rounds(began=10.0).explain(sent, now=40.0)
    (message,) = set(map(str, sent.replies))
    assert message == (
        "the cluster moves the slot of key 'bloomlock:{a}:bits', and did not end that within "
        "30.0 s (its server answers ASK 7 127.0.0.1:7002); the command was not carried out; try "
        "again when the slot has moved"
    )
    assert all(isinstance(reply, TryAgainError) for reply in sent.replies)


def test_what_does_not_wait_follows_redirections_and_keeps_the_refusal():
    rounds = Rounds(began=100.0, waits=False)
    assert rounds.pause(100.0, redirected=True) == 0.0
    assert rounds.pause(100.0, redirected=False) is None
    sent = Sent("a", [b"a"], [TRY_AGAIN])
    rounds.explain(sent, now=100.0)
    assert sent.replies == [TRY_AGAIN]


def test_the_requests_of_a_step_under_watch_do_not_wait_themselves():
    core = through_moves("key", partial(ask, "key", b"a"))
    next(core)
    assert core.send(lambda: 0.0) == Request("key", (b"a",), waits=False)
    assert isinstance(core.send([TRY_AGAIN]), Pause)
    assert core.send(None) == Request("key", (b"a",), waits=False)


def test_a_step_under_watch_begins_anew_until_time_is_up():
    times = iter([0.0, 1.0, 2.0, MOVING_SECONDS + 1, MOVING_SECONDS + 2])
    outcomes = [ASK, TRY_AGAIN, MOVED]

    def step():
        raise outcomes.pop(0)
        yield

    core = through_moves("key", step)
    next(core)
    assert isinstance(core.send(lambda: next(times)), Pause)
    assert isinstance(core.send(None), Pause)
    with pytest.raises(
        TryAgainError, match=r"slot of key 'key'.* 32\.0 s \(its server answers MOV"
    ):
        core.send(None)

    def other():
        raise ResponseError("ERR")
        yield

    core = through_moves("key", other)
    next(core)
    with pytest.raises(ResponseError, match="ERR"):
        core.send(lambda: 0.0)


def test_a_core_of_which_no_request_waits():
    def asking():
        try:
            replies = yield Request("a", [b"a"])
        except ConnectionLost:
            replies = yield Request("a", [b"b"])
        return replies

    core = without_waiting(asking())
    assert next(core) == Request("a", [b"a"], waits=False)
    lost = ConnectionLost(redis.ConnectionError(), sent=False, replies=[])
    assert core.throw(lost) == Request("a", [b"b"], waits=False)
    with pytest.raises(StopIteration) as end:
        core.send([7])
    assert end.value.value == [7]
