"""Cells of slices for time windows: header, state and all cells in one atomic BITFIELD.

TIME follows it in the same request, so the answer is that of the server's clock at a moment that
is not before the command. A command for one item goes without TIME while the epoch follows from
an answer to it that is `TRUST_S` old at most. An add sets its bits in the slice that the client
believes current, and the reply says which one is. If the slice was another one, or its epoch was
over, the add is made again; see `Adding`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.delivery import collect
from bloomlock.descriptor import says_forgotten, unflagged
from bloomlock.effects import ConnectionLost, Pipeline, Request
from bloomlock.windows import DRIFT_S, EPOCH_SHIFT

from .adding import Adding, most_at_once, unknown
from .base import Segment, Strategy, error_of
from .cells import (
    COMMANDS_PER_WRITE,
    FEW_BITS,
    TIME,
    CellCommands,
    Reading,
    Turning,
    encode_cells,
    microseconds,
    read_cells,
    turn,
)
from .held import Preceded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.effects import Core
    from bloomlock.windows import Window

    from .base import Rows, Shard
    from .cells import SomeRows

STALE_PART = 0.25
"""Part of the window after which a client reads the state of a shard before it adds to it.

What it believed by then might be the slice that is wiped for the next epoch."""

TRUST_S = 0.1
"""Seconds for which a client adds its own clock's to the server's time, and does not ask for it.

So much later it takes notice of a server's clock that was set, or of another server's."""


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
        # when that was asked for, and the header that said so.
        self._epochs: dict[str, tuple[int, float, int]] = {}
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
        if header != shard.header and not shard.has(header):
            return Segment(1, header, None)
        epoch = reply[1] >> EPOCH_SHIFT
        (mask,) = read_cells(reply, 1, len(offsets))
        mask &= window.live_mask(epoch, now)
        # What has another version by now has to be added by that.
        if not write or mask or (shard.held is not None and not shard.held.has(0)):
            return Segment(1, header, [mask == 0])
        self._note_turned(shard, epoch, now, asked_at, header)
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
            has_version = shard.held is None or shard.held.has(0)
            is_in_time = word >> EPOCH_SHIFT == epoch and now <= epoch
            if shard.has(header) and has_version and is_in_time:
                self._epochs[shard.key] = epoch, asked_at, header
                (mask,) = read_cells(reply, 1, len(offsets))
                mask &= window.live_mask(epoch, now)
                return Segment(1, header, [mask == 0])
        readings = CellCommands(window, shard.key, [offsets], epoch).decode([reply])
        first = self._at_time(shard, readings, now, asked_at)
        (segment,) = yield from Adding(self, shard, [offsets]).run((epoch, *first))
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
        held = shard.held
        commands = [command] if is_known else [command, TIME]
        request = Request(shard.key, commands if held is None else [*held.commands, *commands])
        try:
            replies = yield request
        except ConnectionLost as lost:
            replies = yield from collect(request, repeatable=not write, lost=lost)
        reply, *times = replies if held is None else held.take(replies)
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
            elif not shard.has(reading.header):
                segments.append(Segment(reading.rows, reading.header, None))
            else:
                live = self.window.live_mask(reading.epoch, time)
                missing = [not mask & live for mask in reading.masks]
                segments.append(Segment(reading.rows, reading.header, missing))
        return segments

    def _add(self, shard: Shard, rows: SomeRows) -> Core[list[Segment]]:
        most = most_at_once(self.window)
        segments: list[Segment] = []
        for start in range(0, len(rows), most):
            some = rows if len(rows) <= most else rows[start : start + most]
            segments += yield from Adding(self, shard, some).run()
        return segments

    def known_epoch(self, shard: Shard) -> int | None:
        """Return the epoch that a shard had turned to not long ago; None if that is not known."""
        epoch, asked_at, header = self._epochs.get(shard.key, (0, -math.inf, 0))
        if unflagged(header) != shard.header:
            # The shard of another generation may be a new one, which has to turn first.
            return None
        if says_forgotten(header) and not shard.also:
            # An object that has not heard has to ask. By then the item may have another version.
            return None
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
        held = shard.held
        writes = commands if held is None else Preceded(held.commands, commands)
        request: Request | Pipeline
        if len(writes) <= COMMANDS_PER_WRITE:
            request = Request(shard.key, [one for write in writes for one in write])
        else:
            request = Pipeline(shard.key, writes)
        answered = yield from collect(request, repeatable=epoch is None)
        *replies, time = answered if held is None else held.take(answered)
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
            return unknown(error) if write and not isinstance(error, ConnectionLost) else error
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
                return unknown(error_of(time)) if write else error_of(time)
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
            if shard.has(reading.header):
                self._note_turned(shard, reading.epoch, now, asked_at, reading.header)
        return readings, now

    def _note_turned(
        self, shard: Shard, epoch: int, now: int, asked_at: float, header: int
    ) -> None:
        """Note the epoch that a shard had turned to, if it was that of the clock.

        If it was an earlier one, the next add turns the shard, and may wipe that slice for the
        epoch after: what is written to it then would look as if it were of that epoch.
        """
        if now <= epoch:
            self._epochs[shard.key] = epoch, asked_at, header
        else:
            self._epochs.pop(shard.key, None)

    def turn(self, shard: Shard) -> Core[Turning]:
        """Bring a shard to the epoch of the server's clock. Cost: a round trip for each part."""
        asked_at = self._clock()
        turning = yield from turn(self.window, shard.key, shard.header)
        if turning.epoch is not None and turning.epoch > 0:
            self._epochs[shard.key] = turning.epoch, asked_at, turning.header
        return turning
