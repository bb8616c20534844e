"""One chunk of items on its way to answers, and what the headers on the way mean.

For every answer the shard's header came along. If it is not the one this object attached to, the
filter was cleared, replaced or lost, and the answer is about another generation:

    on_lost="raise"     FilterLostError, and again for every operation until `reattach`; an item
                        without an answer may have been added to the generation that was found
    on_lost="recreate"  attach again (creating what is missing) and keep the answer if the bits were
                        set or read in the generation attached to, else ask again

An item that was missing in a generation that is not attached to in the end was added there. If it
is then seen, that may be by this add or by that of another client: a rebuild takes over the items
of the generation that it closes. So the outcome is unknown.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.arrays import np
from bloomlock.delivery import RETRY_PAUSES
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
from bloomlock.strategies.sliced import BROKEN, SlicedStrategy

from .batches import Chunk, added_elsewhere, before_adding, outcome_unknown
from .expiry import sweep
from .state import look_for_another

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
"""Items of a batch that are asked about at once before a nearly full filter is added to."""

UNKNOWN = -1
NOT_DONE = -2


class Operation:
    """One chunk of items on its way to answers.

    An update, which is a write without answers, is made again where its reply was lost.
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
        # Of the items of the chunk in the order in which they are asked for, kept ones last.
        self._results = np.full(chunk.size, NOT_DONE, np.int8)
        # What happened to items without an answer: the reply was lost, or an error.
        self._lost: Lost = []
        # Of an update: replies lost in the try before, whose items are sent again.
        self._lost_before: Lost = []
        self._failure: Exception | None = None
        # Items that were missing, and were added, in a generation that is not attached to.
        self._added_elsewhere = np.zeros(chunk.size, np.bool_)
        self._again: list[Indices] = []
        self._tested = 0
        self._vanished = 0

    def run(self, view: View, answered: Answered | None = None) -> Core[list[bool]]:
        """Ask, read the answers, and follow the filter where it went, until all is known.

        `answered`: what the view was asked already, about all items. Any error but a
        PartialResultError is raised as a BatchError if answers are known.
        """
        try:
            yield from self._ask_until_known(view, answered)
        except PartialResultError:
            raise
        except Exception as error:
            lost = [*self._lost_before, *self._lost]
            if any(one.sent for _, one in lost):
                # A look at the filter failed. That something was added before it matters more.
                raise self._unknown(lost) from error
            known = self._known()
            if any(answer is not None for answer in known):
                raise batch_error(error, known) from error
            raise
        results = self._results[: len(self._chunk.items)] == 1
        return self._chunk.spread(results.tolist(), write=self._write)

    def _ask_until_known(self, view: View, answered: Answered | None) -> Core[None]:
        todo = pending = np.arange(len(self._chunk.items), dtype=np.intp)
        repeats = Repeats()
        if answered is not None:
            pending = pending[:0]
        while True:
            if answered is None:
                view, todo, pending = yield from self._share(view, pending)
                answered = (yield from self._exchange(view, todo)) if todo.size else []
            self._results[todo] = UNKNOWN
            view, parts = yield from self._heed_flag(view, list(_parts(answered)))
            answered = None
            stale = self._read(view, parts)
            self._lost_before = []
            if stale:
                view = yield from self._follow(view, stale)
            if self._lost and self._update and self._failure is None:
                lost, self._lost = self._lost, []
                count = sum(indices.size for indices, _ in lost)
                pause = repeats.pause([one for _, one in lost], answered=count < todo.size)
                if pause is not None:
                    yield Pause(pause)
                    self._again += [indices for indices, _ in lost]
                    self._lost_before = lost
                elif repeats.sent:
                    raise self._unknown(lost)
                else:
                    self._failure = lost[0][1].cause
            self._raise_failure()
            # What is not counted may be new.
            new = int((self._results[todo] == 1).sum()) if self._strategy.has_answers else todo.size
            if self._write and self._state.fill.due(new):
                yield from self._state.fill.look_after_add(view)
            # Shard by shard is not the order of the items, and of repeated ones the first is new.
            pending = np.sort(np.concatenate([*self._again, pending]))
            self._again = []
            if not pending.size:
                return

    def _share(self, view: View, pending: Indices) -> Core[tuple[View, Indices, Indices]]:
        """Return the view, the items to ask for at once, and those after them.

        A filter that refuses items, or grows, is given no more new items than this client may add
        before it looks again. Near the capacity, where that is little, it is asked first which
        items are new, so that seen ones take no part.
        """
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
        test = Operation(self._state, Chunk(self._items_at(some)), write=False)
        seen = yield from before_adding(test.run((yield from self._state.current())))
        self._results[some[seen]] = 0
        view = yield from self._state.current()
        return view, pending[self._results[pending] != 0]

    def _exchange(self, view: View, todo: Indices) -> Core[Answered]:
        """Ask for the items that `todo` names, in its order; each answer has its own index."""
        items, ask = self._items_at(todo), self._strategy.ask
        each = yield from ask(view.shards, view.hasher, items, write=self._write)
        return [(todo[indices], segments) for indices, segments in each]

    def _heed_flag(self, view: View, parts: list[Part]) -> Core[tuple[View, list[Part]]]:
        """Take the flag from answers of shards that have tombstones.

        Where a script answered it has looked for these. Else a bit that was missing is final, as a
        tombstone is made only when all are set; where all are set, a script looks for them now.
        """
        flagged = view.header | DISCARDED
        if not any(segment.header == flagged for _, segment in parts):
            return view, parts
        settled: list[Part] = []
        all_set = []
        for indices, segment in parts:
            if segment.header != flagged or segment.missing is None:
                settled.append((indices, segment))
            elif isinstance(self._strategy, SlicedStrategy):
                settled.append((indices, segment._replace(header=view.header)))
            else:
                missing = np.asarray(segment.missing)
                new = indices[missing]
                settled.append((new, Segment(new.size, view.header, [True] * new.size)))
                all_set.append(indices[~missing])
        left = np.concatenate(all_set) if all_set else np.zeros(0, np.intp)
        now = view
        if not view.discards:
            self._take_back()
            try:
                now = self._state.note_discards(view)
            except ConfigurationError as error:
                return view, [*settled, (left, Segment(left.size, error=error))]
        if left.size:
            ask, items = self._state.for_batches.tombstones.ask, self._items_at(left)
            each = yield from ask(view.shards, view.hasher, items, write=self._write)
            for indices, segment in _parts([(left[indices], found) for indices, found in each]):
                is_same = segment.header == flagged
                settled.append(
                    (indices, segment._replace(header=view.header) if is_same else segment)
                )
        return now if now.header == view.header else view, settled

    def _read(self, view: View, parts: list[Part]) -> list[Part]:
        """Take down the answers; return those that are about another generation."""
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
        """Take down which bits were missing in the generation that is attached to."""
        self._results[indices] = missing if self._write else ~missing
        elsewhere = indices[self._added_elsewhere[indices]]
        if elsewhere.size:
            self._added_elsewhere[elsewhere] = False
            seen = elsewhere[self._results[elsewhere] == 0]
            if not self._strategy.is_atomic:
                # Several callers may get "new" by such a strategy, so this one does.
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
        """Raise what went wrong, if anything did and items are left without an answer."""
        error = self._failure
        if error is not None and self._added_elsewhere.any():
            self._take_error(np.flatnonzero(self._added_elsewhere), added_elsewhere(error))
            self._added_elsewhere[:] = False
        if self._lost:
            # That something may have happened matters more than that something did not.
            raise self._unknown(self._lost)
        if isinstance(error, PartialResultError):
            # One that a lock's factory raised is not ours to fill in.
            raise batch_error(error, self._known()) from error
        if error is not None:
            raise error

    def _known(self) -> Results:
        """Return what is known: None without an answer, nothing for the last that were not done."""
        asked = self._results[: len(self._chunk.items)]
        results = self._chunk.spread(asked.tolist(), write=self._write)
        while results and results[-1] == NOT_DONE:
            results.pop()
        return [None if result < 0 else result == 1 for result in results]

    def _unknown(self, lost: Lost) -> OutcomeUnknownError:
        count = sum(indices.size for indices, _ in lost)
        # An update may end here without one of its bytes having left in the last try.
        cause = next((one for _, one in lost if one.sent), lost[0][1]).cause
        error = outcome_unknown(self._state.keys.name, count, cause, repeated=self._update)
        error.results = self._known()
        return error

    def _take_back(self) -> None:
        """Ask for the kept items too: what was kept is not to be relied on any more."""
        old = len(self._chunk.items)
        self._again.append(np.arange(old, old + self._chunk.take_back(), dtype=np.intp))

    def _items_at(self, indices: Indices) -> list[bytes]:
        return pick(self._chunk.items, indices.tolist())

    def _follow(self, view: View, stale: list[Part]) -> Core[View]:
        """Find out where the filter went; return the view to go on with."""
        state = self._state
        self._vanished += 1
        if self._vanished == ROUNDS:
            state.forget()
            name = state.keys.name
            raise FilterLostError(
                f"filter {name!r} vanished {ROUNDS} times during one operation", self._known()
            )
        self._take_back()
        added_before = self._added_elsewhere.copy()
        for indices, segment in stale:
            # What is written to a string without a header is gone with it.
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
            attached = yield from self._go_after(view, header)
            if attached is None:
                return view
            now = attached
            if not now.descriptor.same_bits(view.descriptor):
                # Bits at the places of before are not those of the items.
                self._added_elsewhere = added_before
        self._sort(view, now, stale)
        return now

    def _go_after(self, view: View, header: int) -> Core[View | None]:
        """Return the view of the generation after, if it may be followed; None: a failure."""
        state = self._state
        is_own = state.is_own(header)
        stored = None if is_own else (yield from look_for_another(state.keys))
        is_known = is_own or (stored is not None and stored.continues(view.descriptor))
        if self._write and not is_own:
            yield from sweep(view)
        if state.on_lost == "raise" and not is_known:
            return self._lose(view, header)
        if not is_known:
            logger.warning("filter %r was cleared or lost; attaching to it anew", state.keys.name)
        try:
            return (yield from state.attach(must_follow=state.on_lost == "raise" and not is_own))
        except FilterLostError as error:
            error.results[:] = self._known()
            raise
        except (RedisError, BloomlockError, OSError) as error:
            self._failure = self._failure or error
            return None

    def _sort(self, view: View, now: View, stale: list[Part]) -> None:
        """Take the answers that are good in the view to go on with; ask the rest again."""
        for indices, segment in stale:
            found = unflagged(segment.header)
            same = found == now.header and now.descriptor.same_bits(view.descriptor)
            # All bits may be spread over two generations, but not where this one was expected.
            is_whole = self._strategy.is_atomic or found == view.header
            if not (same and is_whole and segment.missing is not None):
                self._again.append(indices)
                continue
            missing = _missing(segment)
            # What has all bits set may have a tombstone.
            final = missing | (found == segment.header and not now.discards)
            self._take(indices[final], missing[final])
            self._again.append(indices[~final])

    def _lose(self, view: View, header: int) -> View:
        """Raise FilterLostError, or return the view that another thread attached to meanwhile."""
        state = self._state
        what = "was cleared or replaced by another client" if is_header(header) else "is missing"
        if header == BROKEN:
            what = "has lost what was discarded from it (evicted, or deleted by hand)"
        why = (
            f"filter {state.keys.name!r} {what} since this object attached to it; call reattach() "
            'to go on with what is there now, or use on_lost="recreate"'
        )
        if state.lose(view, why) or state.view is None:
            state.forget()
            raise FilterLostError(why, self._known()) from self._failure
        return state.view


def _parts(answered: Answered) -> Iterator[Part]:
    """Yield each segment with the items that it is about."""
    for indices, segments in answered:
        left = np.asarray(indices, np.intp)
        for segment in segments:
            yield left[: segment.rows], segment
            left = left[segment.rows :]


class Repeats:
    """Says whether an update whose reply was lost is made again: three times in all.

    What is answered in between gives new tries to the rest, so a large batch gets through a bad
    network. A time-out has waited long and is followed by one more try only. `sent` says whether
    anything of what was lost may have reached the server, in any try.
    """

    def __init__(self) -> None:
        self.sent = False
        self._tries = 0
        self._timed_out = False

    def pause(self, lost: Sequence[ConnectionLost], *, answered: bool) -> float | None:
        """Return the seconds before the next try of what was lost; None for no more."""
        if answered:
            self._tries, self._timed_out = 0, False
        if not any(one.sent for one in lost):
            # To connect was tried several times by then.
            return None
        self.sent = True
        if any(isinstance(one.cause, RedisTimeoutError) for one in lost):
            if self._timed_out:
                return None
            self._timed_out = True
        self._tries += 1
        return RETRY_PAUSES[self._tries - 1] if self._tries <= len(RETRY_PAUSES) else None


def _missing(segment: Segment) -> npt.NDArray[np.bool_]:
    if segment.missing is None:
        return np.zeros(segment.rows, np.bool_)
    return np.asarray(segment.missing)
