"""Only what was redirected is sent again, a transaction as a whole."""

from __future__ import annotations

import redis
from redis.exceptions import AskError, ExecAbortError, MovedError, ResponseError

from bloomlock.effects import ConnectionLost, encode_command
from bloomlock.runtime.cluster import find_redirects

MULTI, EXEC, ASKING = (encode_command(name) for name in ("MULTI", "EXEC", "ASKING"))
MOVED, ASK = MovedError("7 127.0.0.1:7001"), AskError("7 127.0.0.1:7002")


def test_nothing_is_redirected():
    assert find_redirects([b"a", b"b"], [1, ResponseError("ERR")]) == []


def test_neighbours_that_were_carried_out_are_not_sent_again():
    moved, asked = find_redirects([b"a", b"b", b"c"], [MOVED, 1, ASK])
    assert (moved.indices, moved.ask, moved.port) == ([0], False, 7001)
    assert moved.prepare([b"a"]) == [b"a"]
    replies = [MOVED, 1, ASK]
    moved.merge(replies, ["A"])
    asked.merge(replies, [b"OK", "C"])
    assert replies == ["A", 1, "C"]
    assert (asked.indices, asked.ask, asked.port) == ([2], True, 7002)
    assert asked.prepare([b"c"]) == [ASKING, b"c"]


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
