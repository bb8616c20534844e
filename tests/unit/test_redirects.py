"""Only what was redirected is sent again, a transaction as a whole."""

from __future__ import annotations

from redis.exceptions import AskError, ExecAbortError, MovedError, ResponseError

from bloomlock.commands import encode_command
from bloomlock.runtime.redirects import find_redirects

MULTI, EXEC, ASKING = (encode_command(name) for name in ("MULTI", "EXEC", "ASKING"))
MOVED, ASK = MovedError("7 127.0.0.1:7001"), AskError("7 127.0.0.1:7002")


def test_nothing_is_redirected():
    assert find_redirects([b"a", b"b"], [1, ResponseError("ERR")]) == []


def test_neighbours_that_were_carried_out_are_not_sent_again():
    moved, asked = find_redirects([b"a", b"b", b"c"], [MOVED, 1, ASK])
    assert (moved.indices, moved.ask, moved.port) == ([0], False, 7001)
    assert moved.prepare([b"a"]) == [b"a"]
    assert moved.read(["A"]) == ["A"]
    assert (asked.indices, asked.ask, asked.port) == ([2], True, 7002)
    assert asked.prepare([b"c"]) == [ASKING, b"c"]
    assert asked.read([b"OK", "C"]) == ["C"]


def test_a_transaction_is_sent_again_as_a_whole_whatever_exec_says():
    commands = [MULTI, b"a", EXEC]
    for last in (ExecAbortError(""), ASK):
        (asked,) = find_redirects(commands, [b"OK", ASK, last])
        assert asked.indices == [0, 1, 2]
        assert asked.prepare(commands) == [ASKING, *commands]
        assert asked.read([b"OK", b"OK", b"QUEUED", [1]]) == [b"OK", b"QUEUED", [1]]
    (moved,) = find_redirects(commands, [b"OK", MOVED, ExecAbortError("")])
    assert moved.prepare(commands) == commands
