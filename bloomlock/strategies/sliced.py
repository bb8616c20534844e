"""Cells of slices for time windows: header, state and all cells in one atomic BITFIELD.

TIME follows it in the same request, so the answer is that of the server's clock at a moment that
is not before the command. A command for one item goes without TIME while the epoch follows from
an answer to it that is `TRUST_S` old at most. An add sets its bits in the slice that the client
believes current, and the reply says which one is. If the slice was another one, or its epoch was
over, the add is made again; see `_Adding`.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.delivery import collect
from bloomlock.effects import ConnectionLost, Pipeline, Request
from bloomlock.windows import DRIFT_S, EPOCH_SHIFT, too_late

from .base import Segment, Strategy, error_of
from .cells import (
    COMMANDS_PER_WRITE,
    FEW_BITS,
    ROUNDS,
    TIME,
    CellCommands,
    Reading,
    Turning,
    encode_cells,
    microseconds,
    read_cells,
    turn,
    wipe,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.effects import Core
    from bloomlock.windows import Window

    from .base import Rows, Shard
    from .cells import SomeRows

FEWEST_AT_ONCE, MOST_AT_ONCE = 250, 65_536
ITEM_US = 200
"""Microseconds of a slice for each item that is added at once, at most: ten times what it takes."""

STALE_PART = 0.25
"""Part of the window after which a client reads the state of a shard before it adds to it.

What it believed by then might be the slice that is wiped for the next epoch."""

TRUST_S = 0.1
"""Seconds for which a client adds its own clock's to the server's time, and does not ask for it.

So much later it takes notice of a server's clock that was set, or of another server's."""


class Outcome(NamedTuple):
    """The answer to one row; see Segment."""

    header: int = 0
    missing: bool | None = None
    error: Exception | None = None


class Known(NamedTuple):
    """What is known of the clock of the server that has a shard.

    Attributes:
        epoch: Of that clock.
        until: Until when, by the client's clock, it is not asked for again.
        end: When, by the client's clock, that epoch is not yet over.
    """

    epoch: int = 0
    until: float = -math.inf
    end: float = -math.inf


UNKNOWN = Known()


class SlicedStrategy(Strategy):
    """One round trip, no script, for a test and for an add that renews; exact.

    Other adds test first, and set the bits of what is new by a second command.

    Args:
        window: The filter's.
        refresh: Whether the add of an item that is there renews it.
        clock: Seconds, going on while the machine is suspended.
        on_epoch: Is given the key of a shard, the epoch in which the shard has answered, and when
            that is not yet over, before the answer is returned; None: nothing is.
    """

    name = "atomic"
    is_sliced = True
    bits_per_exchange = 2**16
    few_bits = FEW_BITS

    def __init__(
        self,
        window: Window,
        *,
        refresh: bool,
        clock: Callable[[], float],
        on_epoch: Callable[[str, int, float], None] | None = None,
    ) -> None:
        self.window = window
        self.refresh = refresh
        self._clock = clock
        self._on_epoch = on_epoch
        self._stale_s = STALE_PART * window.length_us / 10**6
        # By the key of a shard: the epoch it had turned to, which was that of the server's clock,
        # and when that was asked for.
        self._epochs: dict[str, tuple[int, float]] = {}
        # By the key of a shard.
        self._now: dict[str, Known] = {}

    def one(self, shard: Shard, offsets: list[int], *, write: bool) -> Core[Segment]:
        """See Strategy.one."""
        if write and self.refresh:
            return (yield from self._add_one(shard, offsets, self.known_epoch(shard)))
        window = self.window
        asked_at = self._clock()
        command = encode_cells(shard.key, offsets, window.cell_bits, None)
        reply, now = yield from self._exchange_one(shard, command, asked_at, write=False)
        if not isinstance(reply, list) or isinstance(now, Exception):
            if write:
                return (yield from self._add_one(shard, offsets, None))
            return Segment(1, error=now if isinstance(now, Exception) else error_of(reply))
        header = reply[0]
        if header != shard.header:
            return Segment(1, header, None)
        epoch = reply[1] >> EPOCH_SHIFT
        (mask,) = read_cells(reply, 1, len(offsets))
        mask &= window.live_mask(epoch, now)
        if not write or mask:
            return Segment(1, header, [mask == 0])
        self._note_turned(shard, epoch, now, asked_at)
        return (yield from self._add_one(shard, offsets, epoch if now <= epoch else None))

    def _add_one(self, shard: Shard, offsets: list[int], epoch: int | None) -> Core[Segment]:
        """Add an item in the slice of an epoch, without the costs of many where that is right."""
        if epoch is None:
            (segment,) = yield from self._add(shard, [offsets])
            return segment
        window = self.window
        asked_at = self._clock()
        command = encode_cells(shard.key, offsets, window.cell_bits, epoch % window.cell_bits)
        reply, now = yield from self._exchange_one(shard, command, asked_at, write=True)
        if isinstance(reply, list) and not isinstance(now, Exception):
            header, word = reply[:2]
            if header == shard.header and word >> EPOCH_SHIFT == epoch and now <= epoch:
                self._epochs[shard.key] = epoch, asked_at
                (mask,) = read_cells(reply, 1, len(offsets))
                mask &= window.live_mask(epoch, now)
                return Segment(1, header, [mask == 0])
        readings = CellCommands(window, shard.key, [offsets], epoch).decode([reply])
        first = self._at_time(shard, readings, now, asked_at)
        (segment,) = yield from _Adding(self, shard, [offsets]).run((epoch, *first))
        return segment

    def _exchange_one(
        self, shard: Shard, command: bytes, asked_at: float, *, write: bool
    ) -> Core[tuple[Any, int | Exception]]:
        """Send one command; return its reply, and the epoch of the server's clock after it.

        Args:
            shard: Where to.
            command: In RESP.
            asked_at: The client's clock.
            write: Whether it sets bits.
        """
        known = self._now.get(shard.key, UNKNOWN)
        is_known = asked_at < known.until
        request = Request(shard.key, [command] if is_known else [command, TIME])
        try:
            reply, *times = yield request
        except ConnectionLost as lost:
            reply, *times = yield from collect(request, repeatable=not write, lost=lost)
        if is_known and self._clock() < known.until:
            if self._on_epoch is not None:
                self._on_epoch(shard.key, known.epoch, known.end)
            return reply, known.epoch
        time = times[0] if times else None
        return reply, (yield from self._epoch_after(shard, time, asked_at, write=write))

    def few(
        self, shard: Shard, rows: Sequence[Sequence[int]], *, write: bool
    ) -> Core[list[Segment]]:
        """See Strategy.few."""
        return (yield from (self._add if write else self._test)(shard, rows))

    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.many."""
        return (yield from (self._add if write else self._test)(shard, rows))

    def _test(self, shard: Shard, rows: SomeRows) -> Core[list[Segment]]:
        readings, time = yield from self.exchange(shard, rows, None)
        segments = []
        for reading in readings:
            if reading.error is not None:
                segments.append(Segment(reading.rows, error=reading.error))
            elif reading.header != shard.header:
                segments.append(Segment(reading.rows, reading.header, None))
            else:
                live = self.window.live_mask(reading.epoch, time)
                missing = [not mask & live for mask in reading.masks]
                segments.append(Segment(reading.rows, reading.header, missing))
        return segments

    def _add(self, shard: Shard, rows: SomeRows) -> Core[list[Segment]]:
        # What takes longer than a slice would always be too late for it.
        most = max(FEWEST_AT_ONCE, min(MOST_AT_ONCE, self.window.slice_us // ITEM_US))
        segments: list[Segment] = []
        for start in range(0, len(rows), most):
            some = rows if len(rows) <= most else rows[start : start + most]
            segments += yield from _Adding(self, shard, some).run()
        return segments

    def known_epoch(self, shard: Shard) -> int | None:
        """Return the epoch that a shard had turned to not long ago; None if that is not known."""
        epoch, asked_at = self._epochs.get(shard.key, (0, -math.inf))
        return epoch if epoch and self._clock() - asked_at < self._stale_s else None

    def exchange(
        self, shard: Shard, rows: SomeRows, epoch: int | None
    ) -> Core[tuple[list[Reading], int]]:
        """Read the cells of rows and the time; set their bits in the slice of an epoch as well.

        Args:
            shard: Where they are.
            rows: N rows of k offsets, n > 0.
            epoch: None: nothing is set.

        Returns:
            What the commands said, and the epoch of the server's clock after them; without that
            all are lost.
        """
        asked_at = self._clock()
        commands = CellCommands(self.window, shard.key, rows, epoch)
        request: Request | Pipeline
        if len(commands) <= COMMANDS_PER_WRITE:
            request = Request(shard.key, [one for write in commands for one in write])
        else:
            request = Pipeline(shard.key, commands)
        *replies, time = yield from collect(request, repeatable=epoch is None)
        readings = commands.decode(replies)
        now = yield from self._epoch_after(shard, time, asked_at, write=epoch is not None)
        return self._at_time(shard, readings, now, asked_at)

    def _epoch_after(
        self, shard: Shard, time: Any, asked_at: float, *, write: bool
    ) -> Core[int | Exception]:
        """Return the epoch of the server's clock after a request, or why it is not known.

        Args:
            shard: Where it went.
            time: The reply to TIME; None: there was none.
            asked_at: The client's clock before the request.
            write: Whether the request set bits.
        """
        window = self.window
        error = None if time is None or isinstance(time, list) else error_of(time)
        if error is not None:
            return _unknown(error) if write and not isinstance(error, ConnectionLost) else error
        if time is not None and write:
            took_us = round((self._clock() - asked_at) * 10**6)
            now_us = microseconds(time)
            # A node of a cluster may have sent the commands on, and answered TIME before they were
            # carried out.
            if window.epoch_at(now_us + took_us) != window.epoch_at(now_us):
                time = None
        if time is None:
            asked_at = self._clock()
            (time,) = yield from collect(Request(shard.key, [TIME]), repeatable=True)
            if not isinstance(time, list):
                return _unknown(error_of(time)) if write else error_of(time)
        now, end = window.end_of_epoch(microseconds(time), asked_at)
        self._now[shard.key] = Known(now, min(asked_at + TRUST_S - DRIFT_S, end), end)
        if self._on_epoch is not None:
            self._on_epoch(shard.key, now, end)
        return now

    def _at_time(
        self, shard: Shard, readings: list[Reading], now: int | Exception, asked_at: float
    ) -> tuple[list[Reading], int]:
        """Return what commands said, with the epoch of the server's clock; see `exchange`."""
        if isinstance(now, Exception):
            return [one if one.error else Reading(one.rows, error=now) for one in readings], 0
        for reading in readings:
            if reading.header == shard.header:
                self._note_turned(shard, reading.epoch, now, asked_at)
        return readings, now

    def _note_turned(self, shard: Shard, epoch: int, now: int, asked_at: float) -> None:
        """Note the epoch that a shard had turned to, if it was that of the clock.

        If it was an earlier one, the next add turns the shard, and may wipe that slice for the
        epoch after: what is written to it then would look as if it were of that epoch.
        """
        if now <= epoch:
            self._epochs[shard.key] = epoch, asked_at
        else:
            self._epochs.pop(shard.key, None)

    def turn(self, shard: Shard) -> Core[Turning]:
        """Bring a shard to the epoch of the server's clock. Cost: a round trip for each part."""
        asked_at = self._clock()
        turning = yield from turn(self.window, shard.key, shard.header)
        if turning.epoch is not None and turning.epoch > 0:
            self._epochs[shard.key] = turning.epoch, asked_at
        return turning


class _Adding:
    """The add of some rows to one shard, made again until all are in the slice of the time.

    Where an add is made again, the first try may have added the item: its bits are in a slice that
    is live, and no other client adds it as new while that lasts. So what was missing then counts as
    new if that slice is still live when the add is made again. If it is not, the item was forgotten
    in between, and the second try says which client has added it since.
    """

    def __init__(self, strategy: SlicedStrategy, shard: Shard, rows: SomeRows) -> None:
        self._strategy = strategy
        self._window = strategy.window
        self._shard = shard
        self._rows = rows
        self._outcomes: list[Outcome | None] = [None] * len(rows)
        # By row: the epoch in whose slice it was added as new by an earlier try.
        self._added: dict[int, int] = {}

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
            elif reading.header != self._shard.header:
                self._note(mine, Outcome(reading.header))
            else:
                live = self._window.live_mask(reading.epoch, now)
                for index, mask in zip(mine, reading.masks, strict=True):
                    if mask & live and not self._strategy.refresh:
                        self._outcomes[index] = Outcome(reading.header, missing=False)
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
        window, expected = self._window, self._shard.header
        left, found, start = [], None, 0
        for reading in readings:
            mine, start = todo[start : start + reading.rows], start + reading.rows
            if reading.error is not None:
                self._fail(mine, reading.error)
                continue
            live = window.live_mask(reading.epoch, now)
            # Others see the slice that was written to, whatever its epoch was meant to be.
            written_in = window.epoch_of_slice(epoch, reading.epoch)
            is_visible = window.is_live(written_in, reading.epoch, now)
            if reading.header != expected:
                # Of a generation that the caller has not heard of: it has the item if others see
                # the slice that was written to.
                for index, mask in zip(mine, reading.masks, strict=True):
                    missing = not mask & live if is_visible else None
                    self._outcomes[index] = Outcome(reading.header, missing)
                continue
            is_in_time = reading.epoch == epoch and now <= epoch
            found = reading.epoch if now <= reading.epoch else None
            for index, mask in zip(mine, reading.masks, strict=True):
                missing = not mask & live
                added_in = self._added.pop(index, None)
                if added_in is not None and window.is_live(added_in, reading.epoch, now):
                    missing = True
                if is_in_time:
                    self._outcomes[index] = Outcome(expected, missing)
                    continue
                left.append(index)
                if missing and is_visible:
                    self._added[index] = written_in
                elif missing and added_in is not None:
                    self._added[index] = added_in
        return left, found

    def _fail(self, rows: list[int], error: Exception) -> None:
        """Note an error; whether a row that was set before is in the filter is not known."""
        for index in rows:
            self._outcomes[index] = Outcome(
                error=_unknown(error) if index in self._added else error
            )

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


def _unknown(error: Exception) -> ConnectionLost:
    """Return the error for an item that may have been added before."""
    cause = error.cause if isinstance(error, ConnectionLost) else error
    return ConnectionLost(cause, sent=True, replies=[])
