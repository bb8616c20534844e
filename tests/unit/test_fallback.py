"""A strategy that a server may refuse: what it refused, and no more, goes to the other one."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from bloomlock.hashing import Hasher
from bloomlock.strategies.base import Segment, Shard, Strategy, WithFallback

SHARD = Shard("bits", 1, 8192, None)
HASHER = Hasher(8192, 2)
ITEMS = [b"%d" % number for number in range(5)]


class Said(Strategy):
    """Answers by what is given, and notes the items."""

    name = "said"
    bits_per_exchange = 4

    def __init__(self, *answers):
        self.answers = answers
        self.seen = []

    def ask_shard(self, shard, hasher, items, *, write):  # noqa: ARG002 - as Strategy
        self.seen += items
        yield from ()
        return list(self.answers) or [Segment(len(items), shard.header, [write] * len(items))]


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
def test_refused_items_go_to_the_other_strategy(error, is_forbidden):
    first = Said(Segment(2, 1, [False, True]), Segment(3, error=error))
    other = Said()
    both = WithFallback(first, other)
    segments = finish(both.ask_shard(SHARD, HASHER, ITEMS, write=True))
    assert [segment.rows for segment in segments] == [2, 2, 1]
    assert [flag for segment in segments for flag in segment.missing] == [False] + [True] * 4
    assert other.seen == ITEMS[2:]
    assert both.is_forbidden is is_forbidden


def test_other_errors_are_the_answer():
    lost = Segment(5, error=ConnectionError())
    other = Said()
    both = WithFallback(Said(lost), other)
    assert finish(both.ask_shard(SHARD, HASHER, ITEMS, write=True)) == [lost]
    assert other.seen == []
