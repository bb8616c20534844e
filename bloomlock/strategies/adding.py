"""Adds to a shard with a time window that are made again until they are in the slice of the time.

Of items that are asked for by versions (`Shard.held`) each try reads the versions first.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bloomlock.descriptor import says_forgotten, unflagged
from bloomlock.effects import ConnectionLost
from bloomlock.errors import BloomlockError
from bloomlock.windows import too_late

from .base import Segment
from .cells import ROUNDS, Reading, Turning, wipe
from .held import LateNew

if TYPE_CHECKING:
    from bloomlock.effects import Core
    from bloomlock.windows import Window

    from .base import Shard
    from .cells import SomeRows
    from .held import Held

FEWEST_AT_ONCE, MOST_AT_ONCE = 250, 65_536
ITEM_US = 200
"""Microseconds of a slice for each item that is added at once, at most: ten times what it takes."""


def most_at_once(window: Window) -> int:
    """Return how many items are added at once.

    What takes longer than a slice would always be too late for it.
    """
    return max(FEWEST_AT_ONCE, min(MOST_AT_ONCE, window.slice_us // ITEM_US))


class Outcome(NamedTuple):
    """The answer to one row; see Segment."""

    header: int = 0
    missing: bool | None = None
    error: Exception | None = None


class Adder(Protocol):
    """What carries out the commands of an add.

    Attributes:
        window: The filter's.
        refresh: Whether the add of an item that is there renews it.
    """

    window: Window
    refresh: bool

    def known_epoch(self, shard: Shard) -> int | None:
        """See SlicedStrategy."""

    def exchange(
        self, shard: Shard, rows: SomeRows, epoch: int | None
    ) -> Core[tuple[list[Reading], int]]:
        """See SlicedStrategy."""

    def turn(self, shard: Shard) -> Core[Turning]:
        """See SlicedStrategy."""


class _Try(NamedTuple):
    """A try to add some rows in the slice of an epoch.

    Attributes:
        header: Of the shard.
        turned_to: The epoch that it had turned to.
        now: The epoch of the server's clock after it.
        live: The slices that were live.
        live_before: Those that were live at any time since the client heard of the epoch. None: the
            shard has turned, so some of them may be wiped.
        written_in: The epoch in whose slice the rows are now.
        is_visible: Whether others see that slice.
        is_in_time: Whether it is that of the time.
    """

    header: int
    turned_to: int
    now: int
    live: int
    live_before: int | None
    written_in: int
    is_visible: bool
    is_in_time: bool

    @classmethod
    def of(cls, window: Window, epoch: int, reading: Reading, now: int) -> _Try:
        """Return what a command in the slice of an epoch has said."""
        written_in = window.epoch_of_slice(epoch, reading.epoch)
        return cls(
            reading.header,
            reading.epoch,
            now,
            window.live_mask(reading.epoch, now),
            window.live_mask(epoch, epoch) if reading.epoch == epoch else None,
            # Whatever the slice's epoch was meant to be.
            written_in,
            window.is_live(written_in, reading.epoch, now),
            reading.epoch == epoch and now <= epoch,
        )

    def is_live(self, window: Window, epoch: int) -> bool:
        """Return whether what was added in an epoch was remembered."""
        return window.is_live(epoch, self.turned_to, self.now)


class Adding:
    """The add of some rows to one shard, made again until all are in the slice of the time.

    Where an add is made again, the first try may have added the item: its bits are in a slice that
    is live, and no other client adds it as new while that lasts. So what was missing then counts as
    new if that slice is still live when the add is made again. If it is not, the item was forgotten
    in between, and the second try says which client has added it since.
    """

    def __init__(self, strategy: Adder, shard: Shard, rows: SomeRows) -> None:
        self._strategy = strategy
        self._window = strategy.window
        self._shard = shard
        self._rows = rows
        self._outcomes: list[Outcome | None] = [None] * len(rows)
        # By row: the epoch in whose slice it was added as new by an earlier try.
        self._added: dict[int, int] = {}
        # By row, if it had its version at the last try, which came too late: whether it was new
        # then; None: that is not known. A row of which nothing was seen or added is missing.
        self._before: dict[int, bool | None] = {}
        self._is_doubtful = False

    def run(self, first: tuple[int, list[Reading], int] | None = None) -> Core[list[Segment]]:
        """Return the answers to all rows in order.

        Args:
            first: What came of a first try: the epoch in whose slice that was, what the commands
                said, and the epoch of the server's clock.
        """
        strategy, shard = self._strategy, self._shard
        todo = list(range(len(self._rows)))
        epoch = strategy.known_epoch(shard)
        has_turned = False
        if first is not None:
            todo, epoch = self._take(todo, *first)
        elif epoch is None or not strategy.refresh:
            todo, epoch = yield from self._ask(todo)
        for _ in range(ROUNDS):
            if not todo:
                break
            if epoch is None:
                turning = yield from strategy.turn(shard)
                self._hear(turning.header)
                if turning.epoch is None:
                    self._end(todo, turning)
                    break
                has_turned, epoch = has_turned or not turning.is_wiped, turning.epoch
            todo, epoch = yield from self._try(todo, epoch)
        else:
            if todo:
                self._end(todo, Turning(error=too_late(self._window, "an add")))
        if has_turned:
            yield from wipe(strategy.window, shard.key, shard.header)
        return self._segments()

    def _pick(self, todo: list[int]) -> SomeRows:
        """Return the rows that the next request is about."""
        if self._shard.held is not None:
            self._shard.held.ask_for(todo)
        if len(todo) == len(self._rows):
            return self._rows
        if isinstance(self._rows, list):
            return [self._rows[index] for index in todo]
        return self._rows[todo]  # type: ignore[call-overload]

    def _ask(self, todo: list[int]) -> Core[tuple[list[int], int | None]]:
        """Find out what is there; return the rest, and the epoch if it is that of the time."""
        readings, now = yield from self._strategy.exchange(self._shard, self._pick(todo), None)
        left, epoch, start = [], None, 0
        for reading in readings:
            mine, start = todo[start : start + reading.rows], start + reading.rows
            error = reading.error
            if error is not None:
                if isinstance(error, ConnectionLost):
                    # Nothing is done by asking.
                    error = ConnectionLost(error.cause, sent=False, replies=[])
                self._note(mine, Outcome(error=error))
            elif not self._shard.has(reading.header):
                self._note(mine, Outcome(reading.header))
            else:
                held = self._shard.held
                live = self._window.live_mask(reading.epoch, now)
                for index, mask in zip(mine, reading.masks, strict=True):
                    if mask & live and not self._strategy.refresh:
                        self._outcomes[index] = Outcome(reading.header, missing=False)
                    elif held is not None and not held.has(index):
                        # It has to be added by another version.
                        self._outcomes[index] = Outcome(reading.header, missing=True)
                    else:
                        left.append(index)
                epoch = reading.epoch if now <= reading.epoch else None
        return left, epoch

    def _try(self, todo: list[int], epoch: int) -> Core[tuple[list[int], int | None]]:
        """Add rows in the slice of an epoch; return those to be added again, and in which."""
        readings, now = yield from self._strategy.exchange(self._shard, self._pick(todo), epoch)
        return self._take(todo, epoch, readings, now)

    def _take(
        self, todo: list[int], epoch: int, readings: list[Reading], now: int
    ) -> tuple[list[int], int | None]:
        """Take down what the commands said; return what `_try` does."""
        window, held = self._window, self._shard.held
        left: list[int] = []
        found, start = None, 0
        for reading in readings:
            mine, start = todo[start : start + reading.rows], start + reading.rows
            if reading.error is not None:
                self._fail(mine, reading.error)
                continue
            seen = _Try.of(window, epoch, reading, now)
            if unflagged(reading.header) != self._shard.header:
                self._take_of_another(mine, reading, seen)
                continue
            found = reading.epoch if now <= reading.epoch else None
            for index, mask in zip(mine, reading.masks, strict=True):
                if held is not None and not held.has(index):
                    self._end_forgotten(index, held, seen, mask)
                elif self._take_row(index, seen, mask):
                    left.append(index)
            if not seen.is_in_time:
                self._hear(reading.header)
        return left, found

    def _take_row(self, index: int, seen: _Try, mask: int) -> bool:
        """Take down what a try said of a row; return whether it is to be made again."""
        missing = not mask & seen.live
        added_in = self._added.pop(index, None)
        was_added = added_in is not None and seen.is_live(self._window, added_in)
        if was_added:
            missing = True
        if seen.is_in_time:
            self._outcomes[index] = self._outcome(seen.header, missing=missing)
            return False
        if missing and seen.is_visible:
            self._added[index] = seen.written_in
        elif missing and added_in is not None:
            self._added[index] = added_in
        if self._shard.held is not None:
            is_sure = seen.live_before is not None and not mask & seen.live_before
            if was_added or not missing or (seen.is_visible and is_sure):
                self._before[index] = missing
            elif seen.is_visible:
                self._before[index] = None
            else:
                self._before.pop(index, None)
        return True

    def _take_of_another(self, rows: list[int], reading: Reading, seen: _Try) -> None:
        """Take down an answer of a generation that the caller has not heard of.

        It has the items if others see the slice that was written to.
        """
        header = reading.header
        for index, mask in zip(rows, reading.masks, strict=True):
            missing = not mask & seen.live if seen.is_visible else None
            # There it may have had another version for long.
            error = LateNew(header) if missing and says_forgotten(header) else None
            self._outcomes[index] = Outcome(header, None if error else missing, error)

    def _end_forgotten(self, index: int, held: Held, seen: _Try, mask: int) -> None:
        """Take down what became of a row that has another version than the one it is asked by.

        If it had that one at the try before, which came too late, the item was forgotten since.
        What that try said of it counts then, and it must not be added again. But if the shard had
        turned by then, it is not known whether it was forgotten before the try or after it.
        """
        version = held.found(index)
        if isinstance(version, Exception):
            self._outcomes[index] = Outcome(error=unknown(version))
        elif index not in self._before:
            self._outcomes[index] = Outcome(seen.header, not mask & seen.live)
        elif (before := self._before[index]) is None:
            why = BloomlockError("another client forgot the item while the shard turned")
            self._outcomes[index] = Outcome(error=unknown(why))
        else:
            held.settled.add(index)
            self._outcomes[index] = Outcome(seen.header, before)

    def _hear(self, header: int) -> None:
        """Note that a header has the flag of forgetting, if the caller has not heard of it.

        The item may have another version then, for longer than what this client knows of the shard.
        """
        if says_forgotten(header) and not self._shard.has(header):
            self._is_doubtful = True

    def _outcome(self, header: int, *, missing: bool) -> Outcome:
        """Return the answer by the usual bits, or by those of a version in force."""
        if missing and self._is_doubtful:
            return Outcome(error=LateNew(header))
        return Outcome(header, missing)

    def _fail(self, rows: list[int], error: Exception) -> None:
        """Note an error; whether a row that was set before is in the filter is not known."""
        for index in rows:
            self._outcomes[index] = Outcome(error=unknown(error) if index in self._added else error)

    def _end(self, rows: list[int], turning: Turning) -> None:
        if turning.error is None:
            self._note(rows, Outcome(turning.header))
            return
        error = turning.error
        if isinstance(error, ConnectionLost):
            # What turns the shard adds nothing.
            error = ConnectionLost(error.cause, sent=False, replies=[])
        self._fail(rows, error)

    def _note(self, rows: list[int], outcome: Outcome) -> None:
        for index in rows:
            self._outcomes[index] = outcome

    def _segments(self) -> list[Segment]:
        """Return the outcomes, those that follow each other and are alike as one."""
        segments = []
        outcomes = [one for one in self._outcomes if one is not None]

        def kind(one: Outcome) -> tuple[int, bool, int]:
            return one.header, one.missing is None, id(one.error)

        for _, some in groupby(outcomes, kind):
            first, *rest = some
            if first.missing is None:
                segments.append(Segment(1 + len(rest), first.header, None, first.error))
            else:
                missing = [bool(one.missing) for one in (first, *rest)]
                segments.append(Segment(len(missing), first.header, missing))
        return segments


def unknown(error: Exception) -> ConnectionLost:
    """Return the error for an item that may have been added before."""
    cause = error.cause if isinstance(error, ConnectionLost) else error
    return ConnectionLost(cause, sent=True, replies=[])
