"""An operation on one chunk of items: it asks until each item has an answer.

Each answer comes with the header of its shard. If that is not the header this object attached to,
the answer is about another generation. It counts only if the object attaches to that generation.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from bloomlock.arrays import np
from bloomlock.commands import RETRY_PAUSES
from bloomlock.descriptor import DISCARDED, has_unknown_flags, is_header, unflagged
from bloomlock.effects import ConnectionLost, Core, Pause
from bloomlock.errors import (
    BloomlockError,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    OutcomeUnknownError,
    PartialResultError,
    batch_error,
)
from bloomlock.hashing import pick
from bloomlock.strategies import Segment
from bloomlock.strategies.script import ScriptStrategy

from .batches import Chunk, added_elsewhere, before_adding, outcome_unknown
from .lifetime import sweep
from .state import follow
from .tombstones import UNKNOWN, ask_beside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from bloomlock.strategies import Strategy

    from .batches import Results
    from .generation import View
    from .state import FilterState

    Indices = npt.NDArray[np.intp]
    Answered = Sequence[tuple[Sequence[int] | Indices, list[Segment]]]
    Part = tuple[Indices, Segment]
    Lost = list[tuple[Indices, ConnectionLost]]

T = TypeVar("T")
logger = logging.getLogger("bloomlock")

ROUNDS = 10
"""How often a filter may vanish during one operation before that is an error."""

ASKED_FIRST = 512
"""Items that are tested at once before they are added to a nearly full filter."""

NOT_DONE = -2


class Operation:
    """Adds or tests the items of one chunk.

    An update is a write without answers. It is repeated if its reply is lost.
    """

    def __init__(
        self,
        state: FilterState,
        chunk: Chunk,
        *,
        write: bool,
        answers: bool = True,
        strategy: Strategy | None = None,
    ) -> None:
        self._state = state
        self._chunk = chunk
        self._write = write
        self._update = write and not answers
        self._strategy = strategy or state.strategy
        self._results = np.full(len(chunk.items), NOT_DONE, np.int8)
        # Whether each item had a tombstone when it was tested.
        self._looked = np.full(len(chunk.items), UNKNOWN, np.int8)
        # Why items have no answer: a lost reply, or an error.
        self._lost: Lost = []
        self._failure: Exception | None = None
        # Items that were new, and were added, in a generation that this object is not attached to.
        self._added_elsewhere = np.zeros(len(chunk.items), np.bool_)
        self._again: list[Indices] = []
        self._tested = 0
        self._vanished = 0

    def run(self, view: View, answered: Answered | None = None) -> Core[list[bool]]:
        """Ask and follow the filter to newer generations until each item has an answer.

        `answered`: answers of `view` for all items, if it was asked already.
        """
        try:
            yield from self._ask_until_known(view, answered)
        except PartialResultError:
            raise
        except Exception as error:
            if any(one.sent for _, one in self._lost):
                # A look at the filter failed. It matters more that items may have been added.
                raise self._unknown() from error
            known = self._known()
            if any(answer is not None for answer in known):
                raise batch_error(error, known) from error
            raise
        return self._chunk.spread((self._results == 1).tolist(), write=self._write)

    def _ask_until_known(self, view: View, answered: Answered | None) -> Core[None]:
        todo = pending = np.arange(len(self._chunk.items), dtype=np.intp)
        if answered is not None:
            pending = pending[:0]
        # Tries in a row without any answer, and whether any of them was sent.
        tries, was_sent = 0, False
        while True:
            if answered is None:
                view, todo, pending = yield from self._share(view, pending)
                answered = (yield from self._exchange(view, todo)) if todo.size else []
            self._results[todo] = UNKNOWN
            view, parts = yield from self._heed_flag(view, list(_parts(answered)))
            answered, self._lost = None, []
            stale = self._read(view, parts)
            if stale:
                view = yield from self._follow(view, stale)
            lost = self._lost if self._update and self._failure is None else []
            tries = 0 if sum(indices.size for indices, _ in lost) < todo.size else tries
            is_sent = any(one.sent for _, one in lost)
            was_sent |= is_sent
            if is_sent and tries < len(RETRY_PAUSES):
                # An update may be repeated.
                self._again += [indices for indices, _ in lost]
                yield Pause(RETRY_PAUSES[tries])
                tries += 1
            else:
                if lost and not was_sent:
                    # Connecting has failed several times by now.
                    self._failure, self._lost = lost[0][1].cause, []
                self._raise_failure()
            # Without answers each item may be new.
            new = int((self._results[todo] == 1).sum()) if self._strategy.has_answers else todo.size
            if self._write and self._state.fill.due(new):
                yield from self._state.fill.look_after_add(view)
            # Answers come shard by shard; the next round asks in the order of the items.
            pending = np.sort(np.concatenate([*self._again, pending]))
            self._again = []
            if not pending.size:
                return

    def _share(self, view: View, pending: Indices) -> Core[tuple[View, Indices, Indices]]:
        # A filter that refuses items, or grows, gets no more new items than this client may add
        # before it looks at the fill again. Near the capacity that is a small number, so the items
        # are tested first, and seen ones do not count.
        fill = self._state.fill
        if not (self._write and fill.refuse) or (
            pending.size <= fill.until_look and not fill.refusing
        ):
            return view, pending, pending[:0]
        try:
            if fill.refusing or not fill.until_look:
                yield from fill.look(view)
            if fill.refusing:
                view, pending = yield from self._leave_out_seen(pending, pending)
                if fill.refusing and pending.size:
                    raise CapacityError(
                        f"filter {self._state.keys.name!r} is full: "
                        f"{fill.why_refusing(view.descriptor)}"
                    )
            first = pending[:ASKED_FIRST]
            untested = first[first >= self._tested]
            if fill.until_look < first.size and untested.size:
                self._tested = int(untested[-1]) + 1
                view, pending = yield from self._leave_out_seen(untested, pending)
        except PartialResultError as error:
            error.results[:] = takewhile(lambda answer: answer is not None, self._known())
            raise
        most = max(1, fill.until_look)
        return view, pending[:most], pending[most:]

    def _leave_out_seen(self, some: Indices, pending: Indices) -> Core[tuple[View, Indices]]:
        test = Operation(self._state, Chunk(self._items_at(some), range(some.size)), write=False)
        seen = yield from before_adding(test.run((yield from self._state.current())))
        self._results[some[seen]] = 0
        view = yield from self._state.current()
        return view, pending[self._results[pending] != 0]

    def _exchange(self, view: View, todo: Indices) -> Core[Answered]:
        is_all = todo.size == len(self._chunk.items)
        items = self._chunk.items if is_all else self._items_at(todo)
        self._looked[todo] = UNKNOWN
        each: Answered
        if not view.discards or isinstance(self._strategy, ScriptStrategy):
            each = yield from self._strategy.ask(view.shards, items, write=self._write)
        else:
            ask = ask_beside(view, self._strategy, items, write=self._write)
            each, self._looked[todo] = yield from ask
        if len(each) == 1:
            return [(todo, each[0][1])]
        return [(todo[indices], segments) for indices, segments in each]

    def _heed_flag(self, view: View, parts: list[Part]) -> Core[tuple[View, list[Part]]]:
        """Settle the answers of shards that have tombstones, and remove the flag from them.

        A script has looked at the tombstones itself. For other strategies there are three cases. A
        bit was missing: final, because a tombstone is made only when all bits are set. All bits
        were set, and SMISMEMBER beside the command found no tombstone: final. Else the script asks.
        """
        flagged = view.header | DISCARDED
        if not any(segment.header == flagged for _, segment in parts):
            return view, parts
        settled: list[Part] = []
        all_set = []
        for indices, segment in parts:
            if segment.header != flagged or segment.missing is None:
                settled.append((indices, segment))
            elif isinstance(self._strategy, ScriptStrategy):
                settled.append((indices, segment._replace(header=view.header)))
            else:
                missing = np.asarray(segment.missing)
                new = indices[missing]
                settled.append((new, Segment(new.size, view.header, [True] * new.size)))
                all_set.append(indices[~missing])
        left = np.concatenate(all_set) if all_set else np.zeros(0, np.intp)
        looked = self._looked[left]
        final = looked == 0 if self._write else looked != UNKNOWN
        there, left = left[final], left[~final]
        settled.append((there, Segment(there.size, view.header, looked[final] == 1)))
        now = view
        if not view.discards:
            try:
                now = self._state.note_discards(view)
            except ConfigurationError as error:
                return view, [*settled, (left, Segment(left.size, error=error))]
        if left.size:
            ask, items = self._state.tombstones.ask, self._items_at(left)
            each = yield from ask(view.shards, items, write=self._write)
            for indices, segment in _parts([(left[indices], found) for indices, found in each]):
                is_same = segment.header == flagged
                settled.append(
                    (indices, segment._replace(header=view.header) if is_same else segment)
                )
        return now if now.header == view.header else view, settled

    def _read(self, view: View, parts: list[Part]) -> list[Part]:
        good, stale = [], []
        for indices, segment in parts:
            if segment.error is not None:
                self._take_error(indices, segment.error)
            elif segment.header != view.header:
                stale.append((indices, segment))
            elif segment.rows:
                good.append((indices, segment.missing))
        if good:
            self._take(*map(np.concatenate, zip(*good, strict=True)))
        return stale

    def _take(self, indices: Indices, missing: npt.NDArray[np.bool_]) -> None:
        self._results[indices] = missing if self._write else ~missing
        elsewhere = indices[self._added_elsewhere[indices]]
        if elsewhere.size:
            self._added_elsewhere[elsewhere] = False
            seen = elsewhere[self._results[elsewhere] == 0]
            if not self._strategy.is_atomic:
                # This strategy may tell several callers "new", so it tells this one.
                self._results[seen] = True
            elif seen.size:
                self._results[seen] = UNKNOWN
                self._take_error(seen, added_elsewhere())

    def _take_error(self, indices: Indices, error: Exception) -> None:
        if isinstance(error, ConnectionLost):
            if self._update or (error.sent and self._write and self._state.on_unknown != "new"):
                self._lost.append((indices, error))
                return
            if error.sent and self._write:
                self._results[indices] = True
                return
            error = error.cause
        self._results[indices] = NOT_DONE
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        error = self._failure
        if error is not None and self._added_elsewhere.any():
            self._take_error(np.flatnonzero(self._added_elsewhere), added_elsewhere(error))
            self._added_elsewhere[:] = False
        if self._lost:
            # It matters more that items may have been added than that others were not.
            raise self._unknown()
        if error is not None:
            raise error

    def _known(self) -> Results:
        """Return the answers: None if unknown; the last items that were not sent are left out."""
        results = self._chunk.spread(self._results.tolist(), write=self._write)
        while results and results[-1] == NOT_DONE:
            results.pop()
        return [None if result < 0 else result == 1 for result in results]

    def _unknown(self) -> OutcomeUnknownError:
        count = sum(indices.size for indices, _ in self._lost)
        # The last try of an update may have sent nothing; an earlier one did.
        cause = next((one for _, one in self._lost if one.sent), self._lost[0][1]).cause
        error = outcome_unknown(self._state.keys.name, count, cause, repeated=self._update)
        error.results = self._known()
        return error

    def _items_at(self, indices: Indices) -> list[bytes]:
        return pick(self._chunk.items, indices.tolist())

    def _follow(self, view: View, stale: list[Part]) -> Core[View]:
        state = self._state
        self._vanished += 1
        if self._vanished == ROUNDS:
            state.drop_cached()
            name = state.keys.name
            raise FilterLostError(
                f"filter {name!r} vanished {ROUNDS} times during one operation", self._known()
            )
        added_before = self._added_elsewhere.copy()
        for indices, segment in stale:
            # Bits that are written to a string without a header are gone with that string.
            if self._write and not self._update and is_header(segment.header):
                self._added_elsewhere[indices] |= _missing(segment)
        header = stale[0][1].header
        if is_header(header) and has_unknown_flags(header):
            raise FilterMismatchError(
                f"filter {state.keys.name!r} is in a state that only a newer version of bloomlock "
                "knows; upgrade bloomlock"
            )
        now = state.view or view
        if unflagged(header) != now.header:
            if self._write and not state.is_own(header):
                yield from sweep(view)
            try:
                now = yield from follow(state, view, header)
            except FilterLostError as error:
                error.results[:] = self._known()
                raise error from self._failure
            except (RedisError, BloomlockError, OSError) as error:
                self._failure = self._failure or error
                return view
        self._sort(view, now, stale, added_before)
        return now

    def _sort(
        self, view: View, now: View, stale: list[Part], added_before: npt.NDArray[np.bool_]
    ) -> None:
        has_same_bits = now.descriptor.same_bits(view.descriptor)
        for indices, segment in stale:
            found = unflagged(segment.header)
            same = found == now.header and has_same_bits
            if found == now.header and not has_same_bits:
                # The new generation has other bits for the same items, so none was added to it. A
                # filter that a rebuild has closed has the same, and what it has is taken over.
                self._added_elsewhere[indices] = added_before[indices]
            # Without atomicity the bits may come from two generations, unless this header was the
            # expected one.
            is_whole = self._strategy.is_atomic or found == view.header
            if not (same and is_whole and segment.missing is not None):
                self._again.append(indices)
                continue
            missing = _missing(segment)
            # An item with all bits set may have a tombstone.
            final = missing | (found == segment.header and not now.discards)
            self._take(indices[final], missing[final])
            self._again.append(indices[~final])


def _parts(answered: Answered) -> Iterator[Part]:
    for indices, segments in answered:
        left = np.asarray(indices, np.intp)
        for segment in segments:
            yield left[: segment.rows], segment
            left = left[segment.rows :]


def _missing(segment: Segment) -> npt.NDArray[np.bool_]:
    if segment.missing is None:
        return np.zeros(segment.rows, np.bool_)
    return np.asarray(segment.missing)
