"""How items are discarded: one script for the items of each shard makes their tombstones.

An object sets the flag in all shards before its first discard in a generation; that it finds one
with the flag proves nothing, as who set it may have died before the next. So when a `discard` has
returned, every later reply of any shard has the flag, and no near-cache goes on without it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from bloomlock.descriptor import has_discards, unflagged
from bloomlock.effects import ConnectionLost
from bloomlock.errors import OutcomeUnknownError, PartialResultError, batch_error
from bloomlock.hashing import encode_item, encode_items, pick
from bloomlock.parallel import in_parallel
from bloomlock.scripts import answer_of
from bloomlock.strategies.sliced import DISCARD as OPERATION
from bloomlock.strategies.sliced import ask_shard

from .batches import Chunk, fail_after
from .follow import Operation
from .state import in_one_generation
from .support import DISCARD, check_support
from .tombstones import NEEDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core
    from bloomlock.strategies import Segment

    from .generation import View
    from .state import FilterState

    Item = str | bytes

ITEMS_PER_CHUNK = 10_000


def discard(state: FilterState, item: Item) -> Core[bool]:
    """Discard one item; True if it was there."""
    check_support(DISCARD, state.strategy.name)
    (answer,) = yield from _Discards(state, [encode_item(item)]).run()
    return answer


def remove(state: FilterState, item: Item) -> Core[None]:
    """Discard one item, or raise KeyError."""
    if not (yield from discard(state, item)):
        raise KeyError(item)


def discard_many(state: FilterState, items: Iterable[Item]) -> Core[list[bool]]:
    """Discard many items; for each whether it was there."""
    if isinstance(items, (str, bytes)):
        raise TypeError(
            f"items must be an iterable of str or bytes, not one {type(items).__name__}"
        )
    check_support(DISCARD, state.strategy.name)
    results: list[bool] = []
    stream = iter(items)
    while taken := list(islice(stream, ITEMS_PER_CHUNK)):
        try:
            encoded = list(encode_items(taken, len(results)))
            answers = yield from _Discards(state, encoded).run()
        except Exception as error:  # noqa: BLE001 - raised again
            fail_after(results, error)
        results += answers
    return results


class _Discards:
    """Some items on their way to be discarded.

    Args:
        state: The filter.
        items: Encoded.
    """

    def __init__(self, state: FilterState, items: Sequence[bytes]) -> None:
        self._state = state
        self._items = items
        # For each item whether it was there; None: without an answer as yet.
        self._answers: list[bool | None] = [None] * len(items)
        self._lost: list[ConnectionLost] = []

    def run(self) -> Core[list[bool]]:
        """Return for each item whether it was there."""
        try:
            yield from in_one_generation(self._state, self._discard)
        except Exception as error:  # noqa: BLE001 - raised again
            self._fail(error)
        finally:
            # Whatever the outcome, this object gives no answer from before.
            self._state.forget()
        return [answer is True for answer in self._answers]

    def _fail(self, error: Exception) -> None:
        known = list(self._answers)
        if self._lost:
            raise OutcomeUnknownError(
                f"the reply was lost when {known.count(None)} items were discarded from filter "
                f"{self._state.keys.name!r}; each may or may not have been discarded; repeating "
                f"the discard is harmless ({error})",
                known,
            ) from error
        if isinstance(error, PartialResultError):
            error.results[:] = known
            raise error
        while known and known[-1] is None:
            known.pop()
        if known:
            raise batch_error(error, known) from error
        raise error

    def _left(self) -> list[int]:
        return [index for index, answer in enumerate(self._answers) if answer is None]

    def _discard(self, view: View) -> Core[bool | None]:
        """Discard what is left; None: it met another generation."""
        if len(view.shards) > 1 and self._state.flagged != view.header:
            view = yield from self._leave_out_absent(view)
            if self._left() and not (yield from self._flag_all(view)):
                return None
        left = self._left()
        shards, hasher = view.in_slices()
        some = [self._items[index] for index in left]
        # Sent once: the answer to what was discarded by a first try would be False.
        by_shard = hasher.by_shard(some)
        answered = yield from in_parallel(
            [
                ask_shard(shards[number], hasher, pick(some, indices), OPERATION)
                for number, indices in by_shard.items()
            ]
        )
        is_over = False
        failure: Exception | None = None
        for indices, segments in zip(by_shard.values(), answered, strict=True):
            rest = iter(indices)
            for segment in segments:
                mine = [left[index] for index in islice(rest, segment.rows)]
                error = segment.error
                if isinstance(error, ConnectionLost) and error.sent:
                    self._lost.append(error)
                elif error is not None:
                    failure = failure or error
                elif not self._take(view, mine, segment):
                    is_over = True
        if self._lost or failure is not None:
            answer_of(self._lost[0] if self._lost else failure, NEEDS)
        return None if is_over else True

    def _take(self, view: View, some: Sequence[int], segment: Segment) -> bool:
        """Take down the answers about some items; False: they are about another generation."""
        if unflagged(segment.header) != view.header or segment.missing is None:
            return False
        if has_discards(segment.header):
            self._state.note_discards(view)
        for index, is_missing in zip(some, segment.missing, strict=True):
            self._answers[index] = not is_missing
        return True

    def _leave_out_absent(self, view: View) -> Core[View]:
        """Answer items that are not there: for these no other client is to pay."""
        left = self._left()
        some = [self._items[index] for index in left]
        there = yield from Operation(self._state, Chunk(some), write=False).run(view)
        for index, found in zip(left, there, strict=True):
            if not found:
                self._answers[index] = False
        return self._state.view or view

    def _flag_all(self, view: View) -> Core[bool]:
        """Set the flag in all shards; False: the filter is of another generation, or broken."""
        shards, hasher = view.in_slices()
        asked = [ask_shard(shard, hasher, [], OPERATION) for shard in shards]
        for (segment,) in (yield from in_parallel(asked)):
            if segment.error is not None:
                answer_of(segment.error, NEEDS)
            if unflagged(segment.header) != view.header or segment.missing is None:
                return False
        self._state.flagged = view.header
        self._state.note_discards(view)
        return True
