"""A strategy that a server may refuse: what it refused, and no more, goes to the other one."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from bloomlock.hashing import Hasher
from bloomlock.slices import SliceState
from bloomlock.strategies.base import Segment, Shard, Strategy
from bloomlock.strategies.bitmap import BitmapStrategy

SHARD = Shard("bits", 1, 8192, SliceState(Hasher(8192, 2), 0, ()))
ITEMS = [b"%d" % number for number in range(5)]


class Said(Strategy):
    """Answers all items as missing, and notes them."""

    name = "said"
    bits_per_exchange = 4

    def __init__(self):
        self.seen = []

    def ask_shard(self, shard, items, *, write):
        self.seen += items
        yield from ()
        return [Segment(len(items), shard.header, [write] * len(items))]


class Refused(BitmapStrategy):
    """Answers by an error."""

    error = None

    def _ask_at_once(self, shard, items, *, write):  # noqa: ARG002 - as BitmapStrategy
        yield from ()
        return Segment(len(items), error=self.error)


def answers_of(error):
    """Return the answers to items where a server answers an error, and both strategies."""
    made = Refused(other := Said())
    made.error = error
    core = made.ask_shard(SHARD, ITEMS, write=True)
    with pytest.raises(StopIteration) as stop:
        next(core)
    return stop.value.value, made, other


@pytest.mark.parametrize(
    ("error", "is_forbidden"),
    [
        (NoPermissionError("this user may not"), True),
        (ResponseError("unknown command 'EVALSHA'"), True),
        (OutOfMemoryError("command not allowed"), False),
    ],
)
def test_refused_items_go_to_the_other_strategy(error, is_forbidden):
    segments, made, other = answers_of(error)
    assert [segment.rows for segment in segments] == [2, 2, 1]
    assert [flag for segment in segments for flag in segment.missing] == [True] * 5
    assert other.seen == ITEMS
    assert made.is_forbidden is is_forbidden


def test_other_errors_are_the_answer():
    segments, made, other = answers_of(error := ConnectionError())
    assert segments == [Segment(5, error=error)]
    assert not made.is_forbidden
    assert other.seen == []
