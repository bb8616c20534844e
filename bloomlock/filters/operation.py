"""One chunk of items on its way to answers, and what the headers on the way mean.

For every answer the shard's header came along. If it is not the one this object attached to, the
filter was cleared, replaced or lost, and the answer is about another generation:

    on_lost="raise"     FilterLostError, and again for every operation until `reattach`
    on_lost="recreate"  attach anew (creating what is missing) and keep the answer if the bits were
                        set or read in the generation attached to, else ask again
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.commands import ConnectionLost, Core
from bloomlock.descriptor import has_unknown_flags, is_header
from bloomlock.errors import (
    BloomlockError,
    FilterLostError,
    FilterMismatchError,
    OutcomeUnknownError,
    PartialResultError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.strategies import Segment

    from .core import FilterCore
    from .view import View

    Results = list[bool | None]
    Placed = dict[int, tuple[list[int], list[list[int]]]]

logger = logging.getLogger("bloomlock")

ROUNDS = 10
"""How often a filter may vanish during one operation before that is an error."""


class Operation:
    """One chunk of items on its way to answers."""

    def __init__(self, core: FilterCore, items: Sequence[bytes], *, write: bool) -> None:
        """Start with no answer to any of the encoded items."""
        self._core = core
        self._items = items
        self._write = write
        self._results: Results = [None] * len(items)
        self._failure: Exception | None = None
        self._found_new: set[int] = set()

    def run(
        self, view: View, answered: list[tuple[list[int], list[Segment]]] | None = None
    ) -> Core[list[bool]]:
        """Exchange, read the answers, and follow the filter where it went, until all is known."""
        todo = list(range(len(self._items)))
        for _ in range(ROUNDS):
            if answered is None:
                answered = yield from self._exchange(view, todo)
            stale = [
                s for indices, segments in answered for s in self._read(view, indices, segments)
            ]
            todo, answered = [], None
            if stale:
                view, todo = yield from self._follow(view, stale)
            if self._failure is not None:
                self._raise()
            if not todo:
                return [bool(result) for result in self._results]
        raise FilterLostError(
            f"filter {self._core.keys.name!r} vanished {ROUNDS} times during one operation",
            self._results,
        )

    def _exchange(self, view: View, todo: list[int]) -> Core[list[tuple[list[int], list[Segment]]]]:
        placed: Placed = {}
        digests = view.hasher.digests([self._items[index] for index in todo])
        shards, rows = (each.tolist() for each in view.hasher.place(digests))
        for index, shard, row in zip(todo, shards, rows, strict=True):
            indices, mine = placed.setdefault(shard, ([], []))
            indices.append(index)
            mine.append(row)
        answered = []
        for shard, (indices, mine) in placed.items():
            segments = yield from self._core.strategy.exchange(
                view.shards[shard], mine, write=self._write
            )
            answered.append((indices, segments))
        return answered

    def _read(
        self, view: View, indices: list[int], segments: list[Segment]
    ) -> list[tuple[list[int], Segment]]:
        """Take down the answers; return those that are about another generation."""
        stale = []
        start = 0
        for segment in segments:
            mine = indices[start : start + segment.rows]
            start += segment.rows
            if segment.error is not None:
                self._take_error(mine, segment.error)
            elif segment.header == view.header:
                self._take(mine, segment)
            else:
                stale.append((mine, segment))
        return stale

    def _take(self, indices: list[int], segment: Segment) -> None:
        for index, missing in zip(indices, segment.missing or (), strict=True):
            new = missing or index in self._found_new
            self._results[index] = new if self._write else not missing

    def _take_error(self, indices: list[int], error: Exception) -> None:
        if isinstance(error, ConnectionLost):
            if error.sent and self._write:
                if self._core.on_unknown == "new":
                    for index in indices:
                        self._results[index] = True
                    return
                error = _unknown(self._core.keys.name, len(indices), error)
            else:
                error = error.cause
        # That something may have happened matters more than that something did not.
        if self._failure is None or isinstance(error, OutcomeUnknownError):
            self._failure = error

    def _raise(self) -> None:
        error = self._failure
        if error is None:
            return
        if isinstance(error, PartialResultError):
            error.results[:] = self._results
        elif len(self._results) > 1:
            error.results = self._results  # type: ignore[attr-defined]
        raise error

    def _follow(
        self, view: View, stale: list[tuple[list[int], Segment]]
    ) -> Core[tuple[View, list[int]]]:
        """Find out where the filter went; return the view to go on with and what to ask again."""
        core = self._core
        header = stale[0][1].header
        if is_header(header) and has_unknown_flags(header):
            raise FilterMismatchError(
                f"filter {core.keys.name!r} is in a state that only a newer version of bloomlock "
                "knows; upgrade bloomlock"
            )
        now = core.view or view
        if header != now.header:
            if core.on_lost == "raise":
                self._lose(header, stale)
            logger.warning("filter %r was cleared or lost; attaching to it anew", core.keys.name)
            try:
                now = yield from core.attach()
            except (RedisError, BloomlockError) as error:
                self._remember(stale)
                self._failure = self._failure or error
                self._raise()
        again = []
        for indices, segment in stale:
            same = segment.header == now.header and now.descriptor.same_bits(view.descriptor)
            if same and core.strategy.whole and segment.missing is not None:
                self._take(indices, segment)
                continue
            again += indices
            if is_header(segment.header) and not core.strategy.whole:
                # Some of these bits were set by us; that they are set when asked again must not
                # turn "new" into "seen".
                flags = zip(indices, segment.missing or (), strict=False)
                self._found_new.update(index for index, missing in flags if missing)
        return now, again

    def _lose(self, header: int, stale: list[tuple[list[int], Segment]]) -> None:
        core = self._core
        what = "was cleared or replaced by another client" if is_header(header) else "is missing"
        core.lost = (
            f"filter {core.keys.name!r} {what} since this object attached to it; call reattach() "
            'to go on with what is there now, or use on_lost="recreate"'
        )
        self._remember(stale)
        raise FilterLostError(core.lost, self._results) from self._failure

    def _remember(self, stale: list[tuple[list[int], Segment]]) -> None:
        """Keep what was added as new to a generation the caller will not be told of now."""
        for indices, segment in stale:
            if self._write and is_header(segment.header):
                new = zip(indices, segment.missing or (), strict=False)
                self._core.untold.update(self._items[i] for i, missing in new if missing)


def _unknown(name: str, count: int, lost: ConnectionLost) -> BloomlockError:
    what = "an item was" if count == 1 else f"{count} items were"
    error = OutcomeUnknownError(
        f"the reply was lost when {what} added to filter {name!r}; the update may or may not have "
        f"happened ({lost.cause})"
    )
    error.__cause__ = lost.cause
    return error
