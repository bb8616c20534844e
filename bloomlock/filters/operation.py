"""One chunk of items on its way to answers, and what the headers on the way mean.

For every answer the shard's header came along. If it is not the one this object attached to, the
filter was cleared, replaced or lost, and the answer is about another generation:

    on_lost="raise"     FilterLostError, and again for every operation until `reattach`; an item
                        without an answer may have been added to the generation that was found
    on_lost="recreate"  attach anew (creating what is missing) and keep the answer if the bits were
                        set or read in the generation attached to, else ask again

An item that was missing in a generation that is not attached to in the end was added there. If it
is then seen, that may be by this add or by that of another client: a rebuild takes over the items
of the generation that it closes. So the outcome is unknown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.arrays import np
from bloomlock.delivery import RETRY_PAUSES
from bloomlock.descriptor import DISCARDED, has_unknown_flags, is_header, unflagged
from bloomlock.effects import ConnectionLost, Core, Pause
from bloomlock.errors import (
    BloomlockError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    OutcomeUnknownError,
    PartialResultError,
    batch_error,
)
from bloomlock.parallel import in_parallel
from bloomlock.strategies import Segment

from . import tombstones
from .expiry import sweep
from .state import look_for_another

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.hashing import Hasher
    from bloomlock.strategies import Strategy
    from bloomlock.strategies.base import Answered as AnsweredEach

    from .generation import View
    from .state import FilterState

    Results = list[bool | None]
    Indices = npt.NDArray[np.intp]
    Answered = list[tuple[Indices, list[Segment]]]
    Stale = list[tuple[Indices, Segment]]
    Lost = list[tuple[Indices, ConnectionLost]]

logger = logging.getLogger("bloomlock")

ROUNDS = 10
"""How often a filter may vanish during one operation before that is an error."""

UNKNOWN = -1
NOT_DONE = -2


class Operation:
    """One chunk of items on its way to answers.

    An update, which wants no answers, is made again where its reply was lost.

    Args:
        state: The filter.
        items: Encoded items.
        write: Add them, not only test them.
        answers: Whether the caller wants to know which of the added items are new.
        strategy: How they reach Redis; None: by the filter's own strategy.
    """

    def __init__(
        self,
        state: FilterState,
        items: Sequence[bytes],
        *,
        write: bool,
        answers: bool = True,
        strategy: Strategy | None = None,
    ) -> None:
        self._state = state
        self._items = items
        self._write = write
        self._update = write and not answers
        self._strategy = strategy or state.strategy
        self._results = np.full(len(items), UNKNOWN, np.int8)
        # What happened to items without an answer: the reply was lost, or an error.
        self._lost: Lost = []
        self._failure: Exception | None = None
        # Items that were missing, and were added, in a generation that is not attached to.
        self._added_elsewhere = np.zeros(len(items), np.bool_)
        self._digests: Any = None
        self._hasher: Hasher | None = None

    def run(self, view: View, answered: AnsweredEach | None = None) -> Core[list[bool]]:
        """Exchange, read the answers, and follow the filter where it went, until all is known.

        Args:
            view: The generation to ask.
            answered: What it was asked already, about all items.

        Raises:
            OutcomeUnknownError: If a reply was lost, except where that counts as new; for an
                update, if it was lost again and again.
            FilterLostError: If the filter is gone and may not be followed, or is again and again.
            BatchError: If anything else went wrong and answers are known; else what went wrong.
        """
        first = None if answered is None else _with_arrays(answered)
        yield from self._ask_until_known(view, first)
        answers: list[bool] = (self._results == 1).tolist()
        return answers

    def _ask_until_known(self, view: View, answered: Answered | None) -> Core[None]:
        todo = np.arange(len(self._items), dtype=np.intp)
        later = todo[:0]
        repeats = Repeats()
        vanished = 0
        while True:
            if answered is None:
                answered = yield from self._exchange(view, todo)
            view, answered = yield from self._heed_flag(view, answered)
            stale = [
                s for indices, segments in answered for s in self._read(view, indices, segments)
            ]
            answered = None
            again: list[Indices] = []
            if stale:
                vanished += 1
                if vanished == ROUNDS:
                    self._state.forget()
                    raise FilterLostError(
                        f"filter {self._state.keys.name!r} vanished {ROUNDS} times during one "
                        "operation",
                        self._known(),
                    )
                view, again = yield from self._follow(view, stale)
            if self._lost and self._update and self._failure is None:
                lost, self._lost = self._lost, []
                count = sum(indices.size for indices, _ in lost)
                pause = repeats.pause([one for _, one in lost], answered=count < todo.size)
                if pause is None and repeats.sent:
                    raise self._unknown(lost)
                if pause is None:
                    self._failure = lost[0][1].cause
                else:
                    yield Pause(pause)
                    again += [indices for indices, _ in lost]
            if self._failure is not None or self._lost:
                self._results[later] = NOT_DONE
            self._raise_failure()
            if not again and not later.size:
                return
            # Shard by shard is not the order of the items, and of repeated ones the first is new.
            todo = np.sort(np.concatenate([*again, later]))
            todo, later = yield from self._share(view, todo)

    def _share(self, view: View, todo: Indices) -> Core[tuple[Indices, Indices]]:
        """Return what is asked for at once, and what after that.

        In a filter that grows a new generation may have much less room than the one before, for
        which the number of items was chosen.
        """
        fill = self._state.fill
        if not (self._write and view.descriptor.growth):
            return todo, todo[:0]
        if fill.due(todo.size):
            yield from fill.look_after_add(view)
        most = max(1, fill.until_look)
        return todo[:most], todo[most:]

    def _exchange(self, view: View, todo: Indices) -> Core[Answered]:
        """Ask for the items that `todo` names, in its order; each answer has its own index."""
        strategy, write = self._strategy, self._write
        if view.discards:
            some = [self._items[index] for index in todo.tolist()]
            each = yield from tombstones.ask(view, strategy, some, write=write)
            return [(todo[indices], segments) for indices, segments in _with_arrays(each)]
        if todo.size <= strategy.few_items(view.hasher):
            some = [self._items[index] for index in todo.tolist()]
            each = yield from strategy.few_each(view.shards, view.hasher, some, write=write)
            few = _with_arrays(each)
            return _joined([(todo[indices], segments) for indices, segments in few])
        numbers, rows = view.hasher.place(self._digests_of(view.hasher)[todo])
        if len(view.shards) == 1:
            return [(todo, (yield from strategy.many(view.shards[0], rows, write=write)))]
        order = np.argsort(numbers, kind="stable")
        todo, rows = todo[order], rows[order]
        counts = np.bincount(numbers.astype(np.intp))
        ends = np.cumsum(counts)
        parts = []
        for number in np.flatnonzero(counts).tolist():
            mine = slice(ends[number] - counts[number], ends[number])
            core = strategy.any_number(view.shards[number], rows[mine], write=write)
            parts.append((todo[mine], core))
        if len(parts) == 1:
            [(indices, core)] = parts
            return [(indices, (yield from core))]
        most = strategy.shards_at_once(view.shards[0], write=write)
        answers = yield from in_parallel([core for _, core in parts], most)
        return _joined([(part[0], answer) for part, answer in zip(parts, answers, strict=True)])

    def _heed_flag(self, view: View, answered: Answered) -> Core[tuple[View, Answered]]:
        """Settle what shards with discarded items answered to a view that had not heard of these.

        A bit that was missing is final. Where all were set there may be a tombstone.
        """
        flagged = view.header | DISCARDED
        if view.discards or not any(
            segment.header == flagged for _, segments in answered for segment in segments
        ):
            return view, answered
        if self._strategy.heeds_discards:
            now = self._state.note_discards(view)
            return now if now.header == view.header else view, [
                (indices, [tombstones.final(view, segment) for segment in segments])
                for indices, segments in answered
            ]
        settled: Answered = []
        all_set = []
        for indices, segments in answered:
            start = 0
            for segment in segments:
                mine = indices[start : start + segment.rows]
                start += segment.rows
                missing = _missing(segment)
                if segment.header != flagged or segment.missing is None:
                    settled.append((mine, [segment]))
                    continue
                if missing.any():
                    new = mine[missing]
                    settled.append((new, [Segment(new.size, view.header, [True] * new.size)]))
                all_set.append(mine[~missing])
        left = np.concatenate(all_set) if all_set else np.zeros(0, np.intp)
        try:
            now = self._state.note_discards(view)
        except ConfigurationError as error:
            return view, [*settled, (left, [Segment(left.size, error=error)])]
        some = [self._items[index] for index in left.tolist()]
        each = yield from tombstones.settle_all_set(view, some, write=self._write)
        settled += [(left[indices], segments) for indices, segments in _with_arrays(each)]
        return now if now.header == view.header else view, settled

    def _digests_of(self, hasher: Hasher) -> Any:
        """Return the digests of all items; another view's hasher may have other seeds."""
        if self._hasher is not hasher:
            self._hasher, self._digests = hasher, hasher.digests(self._items)
        return self._digests

    def _read(self, view: View, indices: Indices, segments: list[Segment]) -> Stale:
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

    def _take(self, indices: Indices, segment: Segment) -> None:
        """Take down answers about the generation that is attached to."""
        missing = np.asarray(segment.missing)
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
                self._take_error(seen, _elsewhere())

    def _known(self) -> Results:
        """Return what is known: None without an answer, nothing for the last that were not done."""
        done = np.flatnonzero(self._results != NOT_DONE)
        count = int(done[-1]) + 1 if done.size else 0
        return [None if result < 0 else result == 1 for result in self._results[:count].tolist()]

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
            self._take_error(np.flatnonzero(self._added_elsewhere), _elsewhere(error))
            self._added_elsewhere[:] = False
        if self._lost:
            # That something may have happened matters more than that something did not.
            raise self._unknown(self._lost)
        known = self._known()
        if error is None or (None not in known and len(known) == len(self._items)):
            return
        # An error of this class that a lock's factory raised is not ours to fill in.
        if any(answer is not None for answer in known) or isinstance(error, PartialResultError):
            raise batch_error(error, known)
        raise error

    def _unknown(self, lost: Lost) -> OutcomeUnknownError:
        count = sum(indices.size for indices, _ in lost)
        # An update may end here without one of its bytes having left in the last try.
        cause = next((one for _, one in lost if one.sent), lost[0][1]).cause
        error = outcome_unknown(self._state.keys.name, count, cause, repeated=self._update)
        error.results = self._known()
        return error

    def _follow(self, view: View, stale: Stale) -> Core[tuple[View, list[Indices]]]:
        """Find out where the filter went; return the view to go on with and what to ask again."""
        state = self._state
        added_before = self._added_elsewhere.copy()
        self._note_added(stale)
        header = stale[0][1].header
        if is_header(header) and has_unknown_flags(header):
            raise FilterMismatchError(
                f"filter {state.keys.name!r} is in a state that only a newer version of bloomlock "
                "knows; upgrade bloomlock"
            )
        now = state.view or view
        if unflagged(header) != now.header:
            is_own = state.is_own(header)
            stored = None if is_own else (yield from look_for_another(state.keys))
            is_known = is_own or (stored is not None and stored.continues(view.descriptor))
            if self._write and not is_own:
                yield from sweep(view, stored)
            if state.on_lost == "raise" and not is_known:
                now = self._lose(view, header)
            else:
                if not is_known:
                    name = state.keys.name
                    logger.warning("filter %r was cleared or lost; attaching to it anew", name)
                must_follow = state.on_lost == "raise" and not is_own
                attached = yield from self._attach_anew(must_follow=must_follow)
                if attached is None:
                    return view, []
                now = attached
                if not now.descriptor.same_bits(view.descriptor):
                    # Bits at the places of before are not those of the items.
                    self._added_elsewhere = added_before
        return now, self._sort(view, now, stale)

    def _note_added(self, stale: Stale) -> None:
        """Note which items were missing, and were added, where another header was found."""
        if not self._write or self._update:
            return
        for indices, segment in stale:
            # What is written to a string without a header is gone with it.
            if is_header(segment.header):
                self._added_elsewhere[indices] |= _missing(segment)

    def _sort(self, view: View, now: View, stale: Stale) -> list[Indices]:
        """Take the answers that are good in the view to go on with; return what to ask again."""
        again = []
        for indices, segment in stale:
            found = unflagged(segment.header)
            same = found == now.header and now.descriptor.same_bits(view.descriptor)
            # All bits may be spread over two generations, but not where this one was expected.
            is_whole = self._strategy.is_atomic or found == view.header
            if not (same and is_whole and segment.missing is not None):
                again.append(indices)
            elif found == segment.header and not now.discards:
                self._take(indices, segment)
            else:
                # What has all bits set may have a tombstone.
                missing = _missing(segment)
                if missing.any():
                    flags = missing[missing]
                    self._take(indices[missing], Segment(flags.size, found, flags))
                if not missing.all():
                    again.append(indices[~missing])
        return again

    def _attach_anew(self, *, must_follow: bool) -> Core[View | None]:
        try:
            return (yield from self._state.attach(must_follow=must_follow))
        except FilterLostError as error:
            error.results[:] = self._known()
            raise
        except (RedisError, BloomlockError, OSError) as error:
            self._failure = self._failure or error
            self._raise_failure()
            return None

    def _lose(self, view: View, header: int) -> View:
        """Raise FilterLostError, or return the view that another thread attached to meanwhile."""
        state = self._state
        what = "was cleared or replaced by another client" if is_header(header) else "is missing"
        if header == tombstones.BROKEN:
            what = "has lost what was discarded from it (evicted, or deleted by hand)"
        why = (
            f"filter {state.keys.name!r} {what} since this object attached to it; call reattach() "
            'to go on with what is there now, or use on_lost="recreate"'
        )
        if state.lose(view, why) or state.view is None:
            state.forget()
            raise FilterLostError(why, self._known()) from self._failure
        return state.view


def _with_arrays(answered: AnsweredEach) -> Answered:
    return [(np.array(indices, np.intp), segments) for indices, segments in answered]


def _joined(answered: Answered) -> Answered:
    """Return the answers of small parts as one, where all of them are of one generation."""
    segments = [segment for _, each in answered for segment in each]
    flags: list[bool] = []
    for segment in segments:
        if segment.header != segments[0].header or not isinstance(segment.missing, list):
            return answered
        flags += segment.missing
    whole = Segment(len(flags), segments[0].header, flags)
    return [(np.concatenate([indices for indices, _ in answered]), [whole])]


class Repeats:
    """Says whether an update whose reply was lost is made again: three times in all.

    What is answered meanwhile gives new tries to the rest, so a large batch gets through a bad
    network. A time-out has waited long and is followed by one more try only.

    Attributes:
        sent: Whether anything of what was lost may have reached the server, in any try.
    """

    def __init__(self) -> None:
        self.sent = False
        self._tries = 0
        self._timed_out = False

    def pause(self, lost: Sequence[ConnectionLost], *, answered: bool) -> float | None:
        """Return the seconds before the next try, None for no more.

        Args:
            lost: What happened to the items without an answer.
            answered: Whether the last try brought any answer.
        """
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


class _AddedElsewhereError(BloomlockError):
    """An item was added in a generation that is over, and is seen in the one that followed."""


def _elsewhere(cause: Exception | None = None) -> ConnectionLost:
    error = _AddedElsewhereError("the filter was cleared or rebuilt")
    error.__cause__ = cause
    return ConnectionLost(error, sent=True, replies=[])


def outcome_unknown(
    name: str, count: int, cause: Exception, *, repeated: bool = False
) -> OutcomeUnknownError:
    """Return the error for an add of `count` items whose reply was lost.

    Args:
        name: The filter's.
        count: Items.
        cause: What happened to the last reply.
        repeated: Whether it was tried several times, as it may be without harm.
    """
    what = "an item was" if count == 1 else f"{count} items were"
    what = f"{what} added to filter {name!r}"
    if isinstance(cause, _AddedElsewhereError):
        happened = f"the filter was cleared or rebuilt while {what}"
    else:
        happened = f"the reply was lost {'each time ' if repeated else ''}when {what}"
    advice = "; repeating the update is harmless" if repeated else ""
    error = OutcomeUnknownError(
        f"{happened}; the update may or may not have happened{advice} ({cause})"
    )
    error.__cause__ = cause
    return error
