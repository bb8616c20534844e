"""One chunk of items on its way to answers, and what the headers on the way mean.

For every answer the shard's header came along. If it is not the one this object attached to, the
filter was cleared, replaced or lost, and the answer is about another generation:

    on_lost="raise"     FilterLostError, and again for every operation until `reattach`
    on_lost="recreate"  attach anew (creating what is missing) and keep the answer if the bits were
                        set or read in the generation attached to, else ask again
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
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
from bloomlock.strategies.atomic import AtomicStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.hashing import Hasher
    from bloomlock.strategies import Segment, Strategy

    from .core import FilterCore
    from .view import View

    Results = list[bool | None]
    Indices = npt.NDArray[np.intp]
    Answered = list[tuple[Indices, list[Segment]]]
    Stale = list[tuple[Indices, Segment]]

logger = logging.getLogger("bloomlock")

ROUNDS = 10
"""How often a filter may vanish during one operation before that is an error."""

FEW_BITS = 256
"""So few are placed and encoded one by one: what arrays cost whatever their size, 70 to 100 µs in
all, is more than they save."""

UNKNOWN = -1
UNSENT = -2


class Operation:
    """One chunk of items on its way to answers.

    Args:
        core: The filter.
        items: Encoded items.
        write: Add them, not only test them.
        strategy: How they reach Redis; None: by the filter's own strategy.
    """

    def __init__(
        self,
        core: FilterCore,
        items: Sequence[bytes],
        *,
        write: bool,
        strategy: Strategy | None = None,
    ) -> None:
        """Start with no answer to any of the items."""
        self._core = core
        self._items = items
        self._write = write
        self._strategy = strategy or core.strategy
        self._results = np.full(len(items), UNKNOWN, np.int8)
        self._failure: Exception | None = None
        # By the header they were found with: items added as new, nobody told so far.
        self._added: dict[int, npt.NDArray[np.bool_]] = {}
        self._digests: Any = None
        self._hasher: Hasher | None = None

    def run(self, view: View, answered: Answered | None = None) -> Core[list[bool]]:
        """Exchange, read the answers, and follow the filter where it went, until all is known."""
        todo = np.arange(len(self._items), dtype=np.intp)
        for _ in range(ROUNDS):
            if answered is None:
                answered = yield from self._exchange(view, todo)
            stale = [
                s for indices, segments in answered for s in self._read(view, indices, segments)
            ]
            answered = None
            todo = todo[:0]
            if stale:
                view, todo = yield from self._follow(view, stale)
            if self._failure is not None:
                self._raise()
            if not todo.size:
                answers: list[bool] = (self._results == 1).tolist()
                return answers
        self._remember()
        raise FilterLostError(
            f"filter {self._core.keys.name!r} vanished {ROUNDS} times during one operation",
            self._known(),
        )

    def _exchange(self, view: View, todo: Indices) -> Core[Answered]:
        """Ask for the items that `todo` names, in its order; each answer has its own index."""
        few = todo.size * view.descriptor.size.num_hashes <= FEW_BITS
        if few and isinstance(self._strategy, AtomicStrategy):
            return (yield from self._exchange_few(view, self._strategy, todo))
        numbers, rows = view.hasher.place(self._digests_of(view.hasher)[todo])
        answered = []
        shards = np.unique(numbers).tolist() if len(view.shards) > 1 else [0]
        for shard in shards:
            mine = numbers == shard
            indices, placed = (todo, rows) if len(shards) == 1 else (todo[mine], rows[mine])
            segments = yield from self._strategy.exchange(
                view.shards[shard], placed, write=self._write
            )
            answered.append((indices, segments))
        return answered

    def _digests_of(self, hasher: Hasher) -> Any:
        """Return the digests of all items; another view's hasher may have other seeds."""
        if self._hasher is not hasher:
            self._hasher, self._digests = hasher, hasher.digests(self._items)
        return self._digests

    def _exchange_few(self, view: View, strategy: AtomicStrategy, todo: Indices) -> Core[Answered]:
        """Do the same without arrays."""
        placed: dict[int, tuple[list[int], list[list[int]]]] = {}
        for index in todo.tolist():
            number, offsets = view.hasher.locate(self._items[index])
            indices, rows = placed.setdefault(number, ([], []))
            indices.append(index)
            rows.append(offsets)
        answered = []
        for number, (indices, rows) in placed.items():
            segment = yield from strategy.exchange_few(view.shards[number], rows, write=self._write)
            answered.append((np.array(indices), [segment]))
        return answered

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
        missing = np.asarray(segment.missing)
        self._results[indices] = missing if self._write else ~missing
        for header, added in self._added.items():
            # An update in pieces may have set its bits in any generation.
            if header == segment.header or not self._strategy.whole:
                self._results[indices] |= added[indices]
                added[indices] = False

    def _known(self) -> Results:
        """Return what is known: None for unknown answers, nothing for the items never sent."""
        sent = np.flatnonzero(self._results != UNSENT)
        count = int(sent[-1]) + 1 if sent.size else 0
        return [None if result < 0 else result == 1 for result in self._results[:count].tolist()]

    def _take_error(self, indices: Indices, error: Exception) -> None:
        if isinstance(error, ConnectionLost):
            if error.sent and self._write:
                if self._core.on_unknown == "new":
                    self._results[indices] = True
                    return
                error = outcome_unknown(self._core.keys.name, len(indices), error.cause)
            else:
                if not error.sent:
                    self._results[indices] = UNSENT
                error = error.cause
        # That something may have happened matters more than that something did not.
        if self._failure is None or isinstance(error, OutcomeUnknownError):
            self._failure = error

    def _raise(self) -> None:
        error = self._failure
        if error is None:
            return
        if isinstance(error, PartialResultError):
            error.results[:] = self._known()
        elif len(self._results) > 1:
            error.results = self._known()  # type: ignore[attr-defined]
        raise error

    def _follow(self, view: View, stale: Stale) -> Core[tuple[View, Indices]]:
        """Find out where the filter went; return the view to go on with and what to ask again."""
        core = self._core
        self._note(stale)
        header = stale[0][1].header
        if is_header(header) and has_unknown_flags(header):
            raise FilterMismatchError(
                f"filter {core.keys.name!r} is in a state that only a newer version of bloomlock "
                "knows; upgrade bloomlock"
            )
        now = core.view or view
        if header != now.header:
            if core.on_lost == "raise" and not core.is_own(header):
                now = self._lose(view, header)
            else:
                now = yield from self._attach_anew(header)
        again = [np.empty(0, np.intp)]
        for indices, segment in stale:
            same = segment.header == now.header and now.descriptor.same_bits(view.descriptor)
            if same and self._strategy.whole and segment.missing is not None:
                self._take(indices, segment)
                continue
            again.append(indices)
        # Shard by shard is not the order of the items, and of repeated ones the first is new.
        return now, np.sort(np.concatenate(again))

    def _attach_anew(self, header: int) -> Core[View]:
        core = self._core
        if not core.is_own(header):
            logger.warning("filter %r was cleared or lost; attaching to it anew", core.keys.name)
        try:
            return (yield from core.attach())
        except (RedisError, BloomlockError) as error:
            self._remember()
            self._failure = self._failure or error
            self._raise()
            raise

    def _lose(self, view: View, header: int) -> View:
        """Raise FilterLostError, or return the view that another thread attached to meanwhile."""
        core = self._core
        what = "was cleared or replaced by another client" if is_header(header) else "is missing"
        why = (
            f"filter {core.keys.name!r} {what} since this object attached to it; call reattach() "
            'to go on with what is there now, or use on_lost="recreate"'
        )
        if core.lose(view, why) or core.view is None:
            self._remember()
            raise FilterLostError(why, self._known()) from self._failure
        return core.view

    def _note(self, stale: Stale) -> None:
        """Note what was added as new to a generation that is not the one asked for."""
        for indices, segment in stale:
            if self._write and is_header(segment.header):
                nothing = np.zeros(len(self._items), np.bool_)
                self._added.setdefault(segment.header, nothing)[indices] |= _missing(segment)

    def _remember(self) -> None:
        """Keep what was added as new and the caller will not be told of now."""
        for header, added in self._added.items():
            items = [self._items[index] for index in np.flatnonzero(added).tolist()]
            self._core.untold.remember(header, items)
        self._core.forget()


def _missing(segment: Segment) -> npt.NDArray[np.bool_]:
    if segment.missing is None:
        return np.zeros(segment.rows, np.bool_)
    return np.asarray(segment.missing)


def outcome_unknown(name: str, count: int, cause: Exception) -> OutcomeUnknownError:
    """Return the error for an update of so many items whose reply was lost."""
    what = "an item was" if count == 1 else f"{count} items were"
    error = OutcomeUnknownError(
        f"the reply was lost when {what} added to filter {name!r}; the update may or may not have "
        f"happened ({cause})"
    )
    error.__cause__ = cause
    return error
