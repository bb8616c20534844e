"""Add and exists, for one item and for many, in chunks of one round trip."""

from __future__ import annotations

from functools import partial
from itertools import islice, takewhile
from operator import not_
from typing import TYPE_CHECKING, TypeVar

from bloomlock.errors import BatchError, CapacityError, PartialResultError
from bloomlock.hashing import encode_item

from . import tombstones
from .batches import Chunks, answer_chunk, choose, fail_after, fail_after_adding, take_known
from .operation import Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core
    from bloomlock.strategies import Strategy
    from bloomlock.strategies.base import Answered

    from .batches import Route
    from .generation import View
    from .state import FilterState

A = TypeVar("A")
T = TypeVar("T")

REPEATS_SAMPLE = 1024
"""Items of a batch among which repeats are counted before its route is chosen."""

ASKED_FIRST = 512
"""Items of a batch that are asked about at once before a nearly full filter is added to."""


def add(state: FilterState, item: str | bytes) -> Core[bool]:
    """Add one item; True if it is new."""
    data = encode_item(item)
    view = state.view
    if view is None or state.lost or state.fill.refusing:
        return _first(_add_chunk(state, [data]))
    return _answer_one(state, view, item, data, write=True)


def exists(state: FilterState, item: str | bytes) -> Core[bool]:
    """Return whether an item was added (or, at the error rate, looks like it)."""
    data = encode_item(item)
    view = state.view
    if view is None or state.lost:
        return _first(_exists_chunk(state, [data]))
    return _answer_one(state, view, item, data, write=False)


def _first(core: Core[list[bool]]) -> Core[bool]:
    (answer,) = yield from core
    return answer


def _answer_one(
    state: FilterState, view: View, item: str | bytes, data: bytes, *, write: bool
) -> Core[bool]:
    """Do what Operation does for one item, without its costs where all is as expected."""
    asked = state.ask_near(view) if state.caching is not None else None
    strategy = state.strategy
    if not view.discards:
        number, offsets = view.hasher.locate(data)
        segment = yield from strategy.one(view.shards[number], offsets, write=write)
    else:
        segment = yield from tombstones.ask_one(view, strategy, data, write=write)
    _, header, missing, error = segment
    if error is None and missing is not None and header == view.header:
        if asked is not None:
            asked.confirm()
            is_kept = write or (not missing[0] and state.keeps_found)
            if is_kept:
                asked.near.keep(item)
        if not write:
            return not missing[0]
        answer = bool(missing[0])
    else:
        if asked is not None:
            asked.near.doubt()
        answered = [([0], [segment])]
        (answer,) = yield from Operation(state, [data], write=write).run(view, answered)
    if write and answer and state.fill.due(1):
        yield from state.fill.look_after_add(view)
    return answer


def add_many(
    state: FilterState, items: Iterable[str | bytes], route: Route = "auto"
) -> Core[list[bool]]:
    """Add many items; one answer for each, in order."""
    return _in_chunks(state, items, route, write=True)


class Stream:
    """Items of an iterable with their answers; it is read no further than a chunk at a time."""

    def __init__(
        self,
        state: FilterState,
        items: Iterable[str | bytes],
        route: Route,
        batch_size: int | None,
    ) -> None:
        self._state = state
        self._chunks = Chunks(state, items, route, finish=True, batch_size=batch_size)
        self._ask = partial(_add_chunk, state, route=route)
        self._failure: PartialResultError | None = None

    def add_next(self) -> Core[list[tuple[str | bytes, bool]]]:
        """Add the next items; return each with its answer, none at the end.

        After a PartialResultError `results` begins with the first item without an answer. What the
        iterable raises passes through, after the items before it.
        """
        if self._failure is not None:
            raise self._failure
        chunks = self._chunks
        yield from self._state.current()
        if not chunks.take():
            return []
        answers: list[bool]
        try:
            chunk = chunks.encode()
            answers = yield from answer_chunk(
                self._state, chunks.taken, chunk, self._ask, write=True
            )
        except PartialResultError as error:
            answers = take_known(error)
            if not answers:
                raise
            self._failure = error
        return list(zip(chunks.taken, answers, strict=False))


def exists_many(
    state: FilterState, items: Iterable[str | bytes], route: Route = "auto"
) -> Core[list[bool]]:
    """Test many items; one answer for each, in order."""
    return _in_chunks(state, items, route, write=False)


def _in_chunks(
    state: FilterState, items: Iterable[str | bytes], route: Route, *, write: bool
) -> Core[list[bool]]:
    # What is added and never answered is lost to all, so adds end where the iterable fails.
    chunks = Chunks(state, items, route, finish=not write)
    results: list[bool] = []
    step = _add_chunk if write else _exists_chunk
    yield from state.current()
    # What the iterable raises is the caller's: it passes through as it is.
    while chunks.take():
        ask = partial(step, state, route=route)
        try:
            chunk = chunks.encode()
            results += yield from answer_chunk(state, chunks.taken, chunk, ask, write=write)
        except Exception as error:  # noqa: BLE001 - raised again
            fail_after(results, error)
    return results


def update(state: FilterState, items: Iterable[str | bytes], route: Route = "auto") -> Core[None]:
    """Add many items without asking which of them are new."""
    chunks = Chunks(state, items, route, finish=True)
    added = 0
    yield from state.current()
    while chunks.take():
        try:
            chunk = chunks.encode()
            # The near-cache leaves none out: an update has no answers, so an item of a
            # generation that is over would be lost unnoticed.
            yield from _add_chunk(state, chunk, route, answers=False)
        except BaseException as error:
            if state.near is not None:
                state.near.doubt()
            if isinstance(error, Exception):
                fail_after_adding(added, error)
            raise
        added += len(chunk)


def _add_chunk(
    state: FilterState, items: Sequence[bytes], route: Route = "items", *, answers: bool = True
) -> Core[list[bool]]:
    add = _add_carefully if state.fill.refuse else _add_now
    return add(state, items, route, answers=answers)


def _add_carefully(
    state: FilterState, items: Sequence[bytes], route: Route, *, answers: bool
) -> Core[list[bool]]:
    """Add a chunk to a filter that refuses items when it is full."""
    yield from state.current()
    if state.fill.refusing or len(items) > state.fill.until_look:
        return (yield from _add_in_shares(state, items, route, answers=answers))
    return (yield from _add_now(state, items, route, answers=answers))


def _add_in_shares(
    state: FilterState, items: Sequence[bytes], route: Route, *, answers: bool
) -> Core[list[bool]]:
    """Add a chunk in parts with no more new items than this client may add before it looks again.

    Near the capacity, where shares are small, it is asked first which items are new, so that
    seen ones do not take part.
    """
    results: list[bool] = []
    seen: list[bool] = []
    try:
        while (start := len(results)) < len(items):
            if state.fill.refusing or not state.fill.until_look:
                yield from state.fill.look((yield from state.current()))
            if state.fill.refusing:
                results += yield from _refuse_new(state, items[start:])
                continue
            stop = start + max(1, state.fill.until_look)
            if stop < min(len(items), start + ASKED_FIRST):
                if start >= len(seen):
                    seen += [True] * (start - len(seen))
                    asked = items[start : start + ASKED_FIRST]
                    seen += yield from before_adding(_exists_chunk(state, asked))
                new = (index for index in range(start, len(seen)) if not seen[index])
                stop = next(islice(new, stop - start, None), len(seen))
            results += yield from _add_now(state, items[start:stop], route, answers=answers)
    except Exception as error:  # noqa: BLE001 - raised again
        fail_after(results, error)
    return results


def _add_now(
    state: FilterState, items: Sequence[bytes], route: Route, *, answers: bool
) -> Core[list[bool]]:
    view = yield from state.current()
    strategy, different = _prepare(state, view, items, route, write=True, answers=answers)
    if len(different) == len(items):
        results = yield from _ask(state, view, different, strategy, write=True, answers=answers)
    else:
        results = yield from _ask_once(
            state, view, items, different, strategy, write=True, answers=answers
        )
    # What is not counted may be new.
    if state.fill.due(sum(results) if strategy.has_answers else len(items)):
        yield from state.fill.look_after_add(state.view or view)
    return results


def _prepare(
    state: FilterState,
    view: View,
    items: Sequence[bytes],
    route: Route,
    *,
    write: bool,
    answers: bool = True,
) -> tuple[Strategy, Sequence[bytes]]:
    """Return what sends items to the server, and the items, each once where that matters.

    How many of them are different is counted among the first.
    """
    # Of an item whose reply is lost only the first occurrence may count as new.
    may_repeat = state.on_unknown != "new"
    if state.strategy.has_free_repeats and may_repeat:
        return choose(state, view, len(items), route, write=write, answers=answers), items
    first: Iterable[bytes] = items if len(items) <= REPEATS_SAMPLE else items[:REPEATS_SAMPLE]
    sample = dict.fromkeys(first)
    count = len(items) * len(sample) // max(1, min(len(items), REPEATS_SAMPLE))
    strategy = choose(state, view, count, route, write=write, answers=answers)
    if strategy.has_free_repeats and may_repeat:
        return strategy, items
    return strategy, list(sample if first is items else dict.fromkeys(items))


def _ask_once(
    state: FilterState,
    view: View,
    items: Sequence[bytes],
    different: Sequence[bytes],
    strategy: Strategy,
    *,
    write: bool,
    answers: bool = True,
) -> Core[list[bool]]:
    """Ask about each item once where some are repeated.

    A page links to itself a hundred times, and each time would cost as much as the first.
    """
    try:
        found = yield from _ask(state, view, different, strategy, write=write, answers=answers)
    except PartialResultError as error:
        answered = dict(zip(different, error.results, strict=False))
        unknown = {item for item, answer in answered.items() if answer is None}
        known = list(takewhile(answered.__contains__, items))
        results = _repeat(answered, known, write=write)
        # Where the first has no answer, nothing is known of its repeats.
        error.results[:] = [
            None if item in unknown else answer for item, answer in zip(known, results, strict=True)
        ]
        raise
    return _repeat(dict(zip(different, found, strict=True)), items, write=write)


def _ask(
    state: FilterState,
    view: View,
    items: Sequence[bytes],
    strategy: Strategy,
    *,
    write: bool,
    answers: bool,
) -> Core[list[bool]]:
    answered, found = None, None
    if not view.discards and len(items) <= strategy.few_items(view.hasher):
        # What Operation does, without its costs where all is as expected.
        answered = yield from strategy.few_each(view.shards, view.hasher, items, write=write)
        found = _read_few(view, answered, len(items), write=write)
    if found is None:
        operation = Operation(state, items, write=write, answers=answers, strategy=strategy)
        found = yield from operation.run(view, answered)
    return found


def _read_few(view: View, answered: Answered, count: int, *, write: bool) -> list[bool] | None:
    """Return the answers to few items; None if an Operation has to look at them."""
    results = [False] * count
    for indices, segments in answered:
        answers: list[bool] = []
        for _, header, missing, error in segments:
            if error is not None or not isinstance(missing, list) or header != view.header:
                return None
            answers += missing if write else map(not_, missing)
        if len(answers) == count:
            return answers
        for index, answer in zip(indices, answers, strict=True):
            results[index] = answer
    return results


def _repeat(answered: dict[bytes, A], items: Sequence[bytes], *, write: bool) -> list[A | bool]:
    """Return the answer to each item from those to different ones; an item is new once."""
    if write:
        return [answered.pop(item, False) for item in items]
    return [answered[item] for item in items]


def _refuse_new(state: FilterState, items: Sequence[bytes]) -> Core[list[bool]]:
    seen = yield from before_adding(_exists_chunk(state, items))
    if not all(seen) and not state.fill.refusing:
        # The filter was cleared meanwhile, and asking followed it there.
        return (yield from _add_chunk(state, items))
    known = [False] * [*seen, False].index(False)
    if all(seen):
        return known
    raise CapacityError(
        f"filter {state.keys.name!r} is full: {state.fill.why_refusing(state.descriptor)}", known
    )


def before_adding(test: Core[T]) -> Core[T]:
    """Carry out a test of items that are to be added; an error has none of its answers.

    "Not there" would be taken for "not new".
    """
    try:
        return (yield from test)
    except BatchError as error:
        raise error.__cause__ or error from None
    except PartialResultError as error:
        error.results.clear()
        raise


def _exists_chunk(
    state: FilterState, items: Sequence[bytes], route: Route = "items"
) -> Core[list[bool]]:
    view = yield from state.current()
    strategy, different = _prepare(state, view, items, route, write=False)
    if len(different) == len(items):
        core = _ask(state, view, different, strategy, write=False, answers=True)
    else:
        core = _ask_once(state, view, items, different, strategy, write=False)
    return (yield from core)
