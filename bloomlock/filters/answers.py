"""Add and exists, for one item and for many, in chunks of one round trip.

Answers go to the near-cache only if the object's view is the same before and after the request.
Then every answer came with the header of that view. The exception is an add whose reply was lost:
`on_unknown="new"` counts it as new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock.errors import CapacityError, PartialResultError
from bloomlock.hashing import encode_item, encode_items
from bloomlock.strategies import ScriptStrategy

from . import tombstones
from .batches import Chunk, choose, chunks, fail_after, fail_after_adding, take_known
from .follow import Operation
from .near_cache import keys_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core

    from .batches import Route
    from .near_cache import KeptAnswers
    from .state import FilterState

    Item = str | bytes

SAMPLE = 128
"""If none of the first 128 items is cached, the others are not looked up, which costs as much as
hashing them."""


def add(state: FilterState, item: Item) -> Core[bool]:
    return _answer_one(state, item, write=True)


def exists(state: FilterState, item: Item) -> Core[bool]:
    return _answer_one(state, item, write=False)


def _answer_one(state: FilterState, item: Item, *, write: bool) -> Core[bool]:
    """Answer for one item without the cost of an Operation, unless something unexpected happens."""
    data = encode_item(item)
    view = state.view
    if view is None or state.lost or (write and state.fill.refusing):
        (answer,) = yield from _answer(state, [item], 0, "items", write=write)
        return answer
    ticket = state.begin_cached(view) if state.caching is not None else None
    if view.expected == view.header or isinstance(state.strategy, ScriptStrategy):
        segment = yield from state.strategy.one(view.shards, data, write=write)
    else:
        segment = yield from tombstones.ask_one(state, view, data, write=write)
    _, header, missing, error = segment
    if error is not None or missing is None or header != view.expected:
        if ticket is not None:
            ticket.near.suspend()
        operation = Operation(state, Chunk([data], [0]), write=write)
        (answer,) = yield from operation.run(view, [([0], [segment])])
        return answer
    if ticket is not None:
        ticket.validate()
        if write or (not missing[0] and state.keeps_found):
            ticket.near.keep(item)
    if not write:
        return not missing[0]
    if missing[0] and state.fill.due(1):
        yield from state.fill.look_after_add(view)
    return bool(missing[0])


def add_many(state: FilterState, items: Iterable[Item], route: Route = "auto") -> Core[list[bool]]:
    # An item that is added but not answered is lost to all callers. So nothing is added any more
    # when the iterable fails.
    return _in_chunks(state, items, route, write=True)


def exists_many(
    state: FilterState, items: Iterable[Item], route: Route = "auto"
) -> Core[list[bool]]:
    return _in_chunks(state, items, route, write=False)


def _in_chunks(
    state: FilterState, items: Iterable[Item], route: Route, *, write: bool
) -> Core[list[bool]]:
    stream = chunks(state, items, route, finish=not write)
    results: list[bool] = []
    yield from state.current()
    # An exception of the iterable passes through unchanged.
    for taken in stream:
        try:
            results += yield from _answer(state, taken, len(results), route, write=write)
        except Exception as error:  # noqa: BLE001 - raised again
            fail_after(results, error)
    return results


def update(state: FilterState, items: Iterable[Item], route: Route = "auto") -> Core[None]:
    stream = chunks(state, items, route, finish=True)
    added = 0
    yield from state.current()
    for taken in stream:
        try:
            yield from _answer(state, taken, added, route, write=True, answers=False)
        except Exception as error:  # noqa: BLE001 - raised again
            fail_after_adding(added, error)
        added += len(taken)


class Stream:
    """Items of an iterable with their answers; reads one chunk of the iterable at a time."""

    def __init__(
        self, state: FilterState, items: Iterable[Item], route: Route, batch_size: int | None
    ) -> None:
        self._state = state
        self._route = route
        self._chunks = chunks(state, items, route, finish=True, batch_size=batch_size)
        self._count = 0
        self._failure: PartialResultError | None = None

    def add_next(self) -> Core[list[tuple[Item, bool]]]:
        """Add the next items; return each with its answer, or nothing at the end.

        After a PartialResultError `results` begins with the first item without an answer. An
        exception of the iterable passes through after the items before it.
        """
        if self._failure is not None:
            raise self._failure
        yield from self._state.current()
        taken = next(self._chunks, [])
        if not taken:
            return []
        try:
            first, self._count = self._count, self._count + len(taken)
            answers = yield from _answer(self._state, taken, first, self._route, write=True)
        except PartialResultError as error:
            answers = take_known(error)
            if not answers:
                raise
            self._failure = error
        return list(zip(taken, answers, strict=False))


def _answer(
    state: FilterState,
    items: Sequence[Item],
    first: int,
    route: Route,
    *,
    write: bool,
    answers: bool = True,
) -> Core[list[bool]]:
    encoded = encode_items(items, first)
    view = yield from state.current()
    # An update does not use the cache. It has no answers, so a caller would not notice an item
    # that is cached from an older generation and therefore not sent.
    ticket = state.begin_cached(view) if answers else None
    missed: Sequence[int] = range(len(items))
    try:
        if ticket is not None:
            missed = _look_up(ticket.near, keys_of(items))
            if not missed:
                return [not write] * len(items)
        chunk = Chunk(encoded, missed)
        strategy = choose(state, view, len(chunk.items), route, write=write, answers=answers)
        operation = Operation(state, chunk, write=write, answers=answers, strategy=strategy)
        results = yield from operation.run(view)
    except BaseException as error:
        if state.near is not None and not isinstance(error, CapacityError):
            state.near.suspend()
        raise
    if ticket is not None and state.view is view:
        ticket.validate()
        if write and state.on_unknown != "new":
            kept = missed
        elif write or state.keeps_found:
            kept = [index for index in missed if results[index] != write]
        else:
            kept = []
        whole = len(kept) == len(items)
        ticket.near.keep_many(items if whole else [items[index] for index in kept])
    return results


def _look_up(near: KeptAnswers, keys: Sequence[Any]) -> Sequence[int]:
    """Return the indices of items that are not cached; see SAMPLE."""
    if len(keys) > SAMPLE and len(near.missed(keys[:SAMPLE])) == SAMPLE:
        return range(len(keys))
    return near.missed(keys)
