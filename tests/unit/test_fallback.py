"""A strategy that a server may refuse: what it refused, and no more, goes to the other one."""

from __future__ import annotations

import numpy as np
import pytest
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from bloomlock.strategies.base import Segment, Shard, Strategy, WithFallback

SHARD = Shard("bits", 1, 4)
ROWS = np.arange(10, dtype=np.uint64).reshape(5, 2)


class Said(Strategy):
    """Answers by what is given, and notes the rows."""

    name = "said"
    bits_per_exchange = 4

    def __init__(self, *answers):
        self.answers = answers
        self.seen = []

    def many(self, shard, rows, *, write):
        self.seen += rows[:, 0].tolist()
        yield from ()
        return list(self.answers) or [Segment(len(rows), shard.header, [write] * len(rows))]


def finish(core):
    try:
        while True:
            next(core)
    except StopIteration as stop:
        return stop.value


@pytest.mark.parametrize(
    ("error", "is_forbidden"),
    [
        (NoPermissionError("this user may not"), True),
        (ResponseError("unknown command 'EVALSHA'"), True),
        (OutOfMemoryError("command not allowed"), False),
    ],
)
def test_refused_rows_go_to_the_other_strategy(error, is_forbidden):
    first = Said(Segment(2, 1, [False, True]), Segment(3, error=error))
    other = Said()
    both = WithFallback(first, other)
    segments = finish(both.many(SHARD, ROWS, write=True))
    assert [segment.rows for segment in segments] == [2, 2, 1]
    assert [flag for segment in segments for flag in segment.missing] == [False] + [True] * 4
    assert other.seen == [4, 6, 8]
    assert both.is_forbidden is is_forbidden


def test_other_errors_are_the_answer():
    lost = Segment(5, error=ConnectionError())
    other = Said()
    assert finish(WithFallback(Said(lost), other).many(SHARD, ROWS, write=True)) == [lost]
    assert other.seen == []
