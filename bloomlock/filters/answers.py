"""Add and exists, for one item and for many: what the replies of a strategy mean to the caller.

For every answer the shard's header came along. If it is not the one this object attached to, the
filter was cleared, replaced or lost, and the answer is about another generation:

    on_lost="raise"     FilterLostError, and again for every operation until `reattach`
    on_lost="recreate"  attach anew (creating what is missing) and keep the answer if the bits were
                        set or read in the generation attached to, else ask again
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from bloomlock.commands import ConnectionLost, Core, Request, collect
from bloomlock.descriptor import has_unknown_flags, is_header
from bloomlock.errors import (
    BloomlockError,
    CapacityError,
    FilterLostError,
    FilterMismatchError,
    OutcomeUnknownError,
    PartialResultError,
)
from bloomlock.hashing import encode_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bloomlock.strategies import Segment

    from .core import FilterCore, View

    Results = list[bool | None]
    Placed = dict[int, tuple[list[int], list[list[int]]]]

logger = logging.getLogger("bloomlock")

BITS_PER_TRIP = 10_000
"""Bits tested or set in one round trip of a batch: 500 items at k = 20, about 400 kB."""

ROUNDS = 10
"""How often a filter may vanish during one operation before that is an error."""


def add(core: FilterCore, item: str | bytes) -> Core[bool]:
    """Add one item; True if it is new."""
    data = encode_item(item)
    view = core.view
    if view is None or core.lost or core.untold or core.fill.refusing:
        (new,) = yield from _add_chunk(core, [data])
        return new
    new = yield from _answer_one(core, view, data, write=True)
    if new and core.fill.due(1):
        yield from core.fill.look_after_add(view)
    return new


def exists(core: FilterCore, item: str | bytes) -> Core[bool]:
    """Tell whether an item was added (or, at the error rate, looks like it)."""
    data = encode_item(item)
    view = core.view
    if view is None or core.lost:
        (seen,) = yield from _exists_chunk(core, [data])
        return seen
    return (yield from _answer_one(core, view, data, write=False))


def _answer_one(core: FilterCore, view: View, data: bytes, *, write: bool) -> Core[bool]:
    """Do what _Operation does for one item, without its costs where all is as expected."""
    strategy = core.one_trip
    number, offsets = view.hasher.locate(data)
    shard, rows = view.shards[number], (offsets,)
    if strategy is not None:
        request = Request(shard.key, strategy.encode(shard, rows, write))
        try:
            replies = yield request
        except ConnectionLost as lost:
            if lost.sent and write:
                replies = [lost] * len(request.commands)
            else:
                replies = yield from collect(request, repeatable=not write)
        segments = strategy.decode(replies, rows)
    else:
        segments = yield from core.strategy.exchange(shard, rows, write=write)
    _, header, missing, error = segments[0]
    if error is None and missing is not None and header == view.header:
        return missing[0] if write else not missing[0]
    (answer,) = yield from _Operation(core, [data], write=write).run(view, [([0], segments)])
    return answer


def add_many(core: FilterCore, items: Iterable[str | bytes]) -> Core[list[bool]]:
    """Add many items; one answer for each, in order."""
    return (yield from _in_chunks(core, items, write=True))


def exists_many(core: FilterCore, items: Iterable[str | bytes]) -> Core[list[bool]]:
    """Test many items; one answer for each, in order."""
    return (yield from _in_chunks(core, items, write=False))


def update(core: FilterCore, items: Iterable[str | bytes]) -> Core[int]:
    """Add many items; return how many were new, keeping nothing of them."""
    added = 0
    stream = _encoded(items)
    while chunk := list(islice(stream, (yield from _chunk_size(core)))):
        added += sum((yield from _add_chunk(core, chunk)))
    return added


def _in_chunks(core: FilterCore, items: Iterable[str | bytes], *, write: bool) -> Core[list[bool]]:
    results: list[bool] = []
    step = _add_chunk if write else _exists_chunk
    try:
        stream = _encoded(items)
        while chunk := list(islice(stream, (yield from _chunk_size(core)))):
            results += yield from step(core, chunk)
    except PartialResultError as error:
        error.results[:0] = results
        raise
    except BaseException as error:
        # Whoever stopped the batch (the server, the network, the caller's own iterable, Ctrl-C),
        # the answers to the chunks before are known, and must not be lost with it.
        known: Results = [*results, *getattr(error, "results", ())]
        error.results = known  # type: ignore[attr-defined]
        error.add_note(f"bloomlock: {len(results)} items before were answered, see .results")
        raise
    return results


def _encoded(items: Iterable[str | bytes]) -> Iterator[bytes]:
    if isinstance(items, (str, bytes)):
        raise TypeError(
            f"items must be an iterable of str or bytes, not one {type(items).__name__}"
        )
    return map(encode_item, items)


def _chunk_size(core: FilterCore) -> Core[int]:
    view = yield from core.current()
    return max(1, BITS_PER_TRIP // view.descriptor.size.num_hashes)


def _add_chunk(core: FilterCore, items: Sequence[bytes]) -> Core[list[bool]]:
    view = yield from core.current()
    if core.fill.refusing:
        yield from core.fill.look(view)
        if core.fill.refusing:
            return (yield from _refuse_new(core, items))
    results = yield from _Operation(core, items, write=True).run(view)
    if core.untold:
        results = [
            new or _take_untold(core, item) for new, item in zip(results, items, strict=True)
        ]
    if core.fill.due(sum(results)):
        yield from core.fill.look_after_add(core.view or view)
    return results


def _take_untold(core: FilterCore, item: bytes) -> bool:
    if item in core.untold:
        core.untold.discard(item)
        return True
    return False


def _refuse_new(core: FilterCore, items: Sequence[bytes]) -> Core[list[bool]]:
    seen = yield from _exists_chunk(core, items)
    if all(seen):
        return [False] * len(items)
    if not core.fill.refusing:
        # The filter was cleared meanwhile, and asking followed it there.
        return (yield from _add_chunk(core, items))
    capacity = core.descriptor.capacity
    known = [False] * seen.index(False)
    raise CapacityError(
        f"filter {core.keys.name!r} is full: it holds its capacity of {capacity} items, and "
        'on_full="raise" refuses new ones',
        known,
    )


def _exists_chunk(core: FilterCore, items: Sequence[bytes]) -> Core[list[bool]]:
    view = yield from core.current()
    return (yield from _Operation(core, items, write=False).run(view))


class _Operation:
    """One chunk of items on its way to answers."""

    def __init__(self, core: FilterCore, items: Sequence[bytes], *, write: bool) -> None:
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
        shards, rows = view.hasher.locate_many([self._items[index] for index in todo])
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
            now = yield from core.attach()
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
        if self._write and is_header(header):
            for indices, segment in stale:
                new = zip(indices, segment.missing or (), strict=False)
                core.untold.update(self._items[index] for index, missing in new if missing)
        raise FilterLostError(core.lost, self._results) from self._failure


def _unknown(name: str, count: int, lost: ConnectionLost) -> BloomlockError:
    what = "an item was" if count == 1 else f"{count} items were"
    error = OutcomeUnknownError(
        f"the reply was lost when {what} added to filter {name!r}; the update may or may not have "
        f"happened ({lost.cause})"
    )
    error.__cause__ = lost.cause
    return error
