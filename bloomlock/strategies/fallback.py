"""Another way for batches, which a server may refuse, and what takes its place then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError, ResponseError

from .base import Segment, Strategy

if TYPE_CHECKING:
    from bloomlock.effects import Core

    from .base import Rows, Shard


class WithFallback(Strategy):
    """A way that may be refused, for whatever reason; then nothing was done by it.

    Args:
        first: What to try.
        fallback: What to do instead.

    Attributes:
        first: The same.
        forbidden: Whether there is no use in trying again.
    """

    name = "fallback"

    def __init__(self, first: Strategy, fallback: Strategy) -> None:
        """Believe that all is allowed."""
        self.first = first
        self.forbidden = False
        self._fallback = fallback

    @property
    def whole(self) -> bool:  # type: ignore[override]  # depends on both
        """See Strategy."""
        return self.first.whole and self._fallback.whole

    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.exchange."""
        segments = yield from self.first.exchange(shard, rows, write=write)
        refused = [s.error for s in segments if isinstance(s.error, ResponseError)]
        if not refused:
            return segments
        self.forbidden = any(map(_forbids, refused))
        if len(refused) == len(segments):
            return (yield from self._fall_back(shard, rows, write))
        answered: list[Segment] = []
        start = 0
        for segment in segments:
            mine = rows[start : start + segment.rows]
            start += segment.rows
            if isinstance(segment.error, ResponseError):
                answered += yield from self._fall_back(shard, mine, write)
            else:
                answered.append(segment)
        return answered

    def _fall_back(self, shard: Shard, rows: Rows, write: bool) -> Core[list[Segment]]:
        size = max(1, self._fallback.bits_per_exchange // rows.shape[1])
        segments: list[Segment] = []
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            segments += yield from self._fallback.exchange(shard, some, write=write)
        return segments


def _forbids(error: ResponseError) -> bool:
    return isinstance(error, NoPermissionError) or "unknown command" in str(error)
