"""Tests by replicas of a cluster, and by the master where a replica is not there or behind.

A replica has what its master had some moments ago. What it answers counts only where its header is
that of the generation asked for. All bits of an item are read at one instant there too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from bloomlock.delivery import with_each_step
from bloomlock.effects import ConnectionLost, Core, Parallel, Pipeline, Request

from .base import Segment, Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Step
    from bloomlock.hashing import Hasher

    from .base import Answered, Rows, Shard

T = TypeVar("T")


class ReplicaReads(Strategy):
    """Another strategy, whose tests replicas answer; it adds nothing.

    Args:
        tested_by: That strategy.
    """

    name = "replicas"

    def __init__(self, tested_by: Strategy) -> None:
        self._of = tested_by
        self.is_atomic = tested_by.is_atomic
        self.has_free_repeats = tested_by.has_free_repeats

    def few_items(self, hasher: Hasher) -> int:
        """See Strategy.few_items."""
        return self._of.few_items(hasher)

    def few_each(
        self, shards: Sequence[Shard], hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[Answered]:
        """See Strategy.few_each."""
        answered = yield from from_replicas(self._of.few_each(shards, hasher, items, write=write))
        header = shards[0].header
        if all(_counts(segment, header) for _, segments in answered for segment in segments):
            return answered
        kept: list[tuple[Sequence[int], list[Segment]]] = []
        again: list[int] = []
        for indices, segments in answered:
            start = 0
            for segment in segments:
                mine = indices[start : start + segment.rows]
                start += segment.rows
                if _counts(segment, header):
                    kept.append((mine, [segment]))
                else:
                    again += mine
        some = [items[index] for index in again]
        by_master = yield from self._of.few_each(shards, hasher, some, write=write)
        return kept + [([again[i] for i in indices], segments) for indices, segments in by_master]

    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.many."""
        segments = yield from from_replicas(self._of.any_number(shard, rows, write=write))
        answered: list[Segment] = []
        start = 0
        for segment in segments:
            mine = rows[start : start + segment.rows]
            start += segment.rows
            if _counts(segment, shard.header):
                answered.append(segment)
            else:
                answered += yield from self._of.any_number(shard, mine, write=write)
        return answered

    def one(self, shard: Shard, offsets: list[int], *, write: bool) -> Core[Segment]:
        """See Strategy.one."""
        segment = yield from from_replicas(self._of.one(shard, offsets, write=write))
        if _counts(segment, shard.header):
            return segment
        return (yield from self._of.one(shard, offsets, write=write))

    def shards_at_once(self, shard: Shard, *, write: bool) -> int | None:
        """See Strategy.shards_at_once."""
        return self._of.shards_at_once(shard, write=write)


def _counts(segment: Segment, header: int) -> bool:
    return segment.error is None and segment.header == header and segment.missing is not None


def from_replicas(core: Core[T]) -> Core[T]:
    """Carry out a core that only reads; what a replica does not answer is asked of the master."""
    return with_each_step(core, _ask)


def _ask(step: Step) -> Core[Any]:
    if isinstance(step, (Request, Pipeline)):
        try:
            return (yield step._replace(replica=True))
        except ConnectionLost:
            return (yield step)
    if not isinstance(step, Parallel):
        return (yield step)
    outcomes = yield Parallel([request._replace(replica=True) for request in step.requests])
    lost = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, ConnectionLost)]
    if lost:
        again = yield Parallel([step.requests[index] for index in lost])
        for index, outcome in zip(lost, again, strict=True):
            outcomes[index] = outcome
    return outcomes
