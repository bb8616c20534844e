"""Add and exists, for one item and for many, in chunks of one round trip."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from bloomlock.commands import ConnectionLost, Core, Request, collect
from bloomlock.errors import CapacityError, PartialResultError
from bloomlock.hashing import encode_item

from .operation import Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .core import FilterCore
    from .operation import Results
    from .view import View

BITS_PER_TRIP = 10_000
"""Bits tested or set in one round trip of a batch: 625 items at 1e-6, about 400 kB."""


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
    """Do what Operation does for one item, without its costs where all is as expected."""
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
    (answer,) = yield from Operation(core, [data], write=write).run(view, [([0], segments)])
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
    results = yield from Operation(core, items, write=True).run(view)
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
    return (yield from Operation(core, items, write=False).run(view))
