"""Commands for the cells of a time window.

BITFIELDs read header, state and cells of rows. A script turns a shard to the next epoch.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache, reduce
from itertools import chain
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.arrays import np
from bloomlock.commands import encode_command
from bloomlock.compiled import core
from bloomlock.descriptor import HEADER_BYTES, unflagged
from bloomlock.keys import window_keys
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script, answer_of, named_error
from bloomlock.sizing import FIRST_BIT
from bloomlock.windows import EPOCH_SHIFT, PART_BYTES, State, too_late

from .base import error_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock.commands import Replies
    from bloomlock.effects import Core
    from bloomlock.windows import Window

    from .base import Rows

    SomeRows = Sequence[Sequence[int]] | Rows

OPERATIONS_PER_COMMAND = 1000
COMMANDS_PER_WRITE = 4

FEW_BITS = 256
"""Bits of a batch of few items, whose cells are quicker read without an array."""

ROUNDS = 20
"""How often what adds may come too late for its slice before that is an error."""

NEEDS = "a filter with a window needs"
TIME = encode_command("TIME")
_SCRIPT = Script("header", "window_turn")
_TURNS = 2**17
"""More steps than the largest shard has parts."""


class Reading(NamedTuple):
    """What one command said of some rows.

    Attributes:
        rows: How many rows.
        header: The shard's.
        epoch: The one that the shard has turned to.
        masks: For each row the slices that have all its bits.
        error: The server's, or ConnectionLost.
    """

    rows: int
    header: int = 0
    epoch: int = 0
    masks: Sequence[int] = ()
    error: Exception | None = None


class Turning(NamedTuple):
    """A shard after it was turned.

    Attributes:
        header: Its header.
        epoch: The one it has turned to; None: the header is not the expected one.
        is_wiped: Whether the slice that comes next is wiped.
        error: What went wrong instead.
    """

    header: int = 0
    epoch: int | None = None
    is_wiped: bool = True
    error: Exception | None = None


class CellCommands:
    """Rows as BITFIELDs of up to 1000 operations, and TIME at the end.

    Args:
        window: The filter's.
        key: Of the shard.
        rows: N rows of k offsets, n > 0.
        epoch: In whose slice their bits are set; None: nothing is set.
    """

    def __init__(self, window: Window, key: str, rows: SomeRows, epoch: int | None) -> None:
        self._bits = window.cell_bits
        self._key = key
        self._rows = rows
        self._slice = None if epoch is None else epoch % self._bits
        self._num_hashes = len(rows[0])
        each = self._num_hashes * (1 if epoch is None else 2)
        self._size = max(1, OPERATIONS_PER_COMMAND // each)

    def __len__(self) -> int:
        """Return how many commands there are, with TIME."""
        return math.ceil(len(self._rows) / self._size) + 1

    def __iter__(self) -> Iterator[list[bytes]]:
        """Encode the commands, those that are written together as one list."""
        count, commands = len(self._rows), []
        for start in range(0, count, self._size):
            commands.append(self._encode(self._rows[start : start + self._size]))
            if start + self._size >= count:
                commands.append(TIME)
            if len(commands) >= COMMANDS_PER_WRITE or commands[-1] is TIME:
                yield commands
                commands = []

    def _encode(self, rows: SomeRows) -> bytes:
        if isinstance(rows, list):
            offsets = list(chain.from_iterable(rows))
        else:
            offsets = rows.ravel().tolist()  # type: ignore[union-attr]
        return encode_cells(self._key, offsets, self._bits, self._slice)

    def decode(self, replies: Replies) -> list[Reading]:
        """Read each command's header, state and old cells."""
        count = len(self._rows)
        return [
            self._read(reply, min(self._size, count - index * self._size))
            for index, reply in enumerate(replies)
        ]

    def _read(self, reply: object, rows: int) -> Reading:
        if not isinstance(reply, list):
            return Reading(rows, error=error_of(reply))
        masks = read_cells(reply, rows, self._num_hashes)
        return Reading(rows, reply[0], reply[1] >> EPOCH_SHIFT, masks)


def encode_cells(key: str, offsets: list[int], cell_bits: int, number: int | None) -> bytes:
    """Return the command that reads cells, and then sets the bit of a slice in each of them.

    Args:
        key: Of the shard.
        offsets: Of the cells.
        cell_bits: Bits of a cell.
        number: Of the slice; None: nothing is set.
    """
    opening = _opening(key, len(offsets), number is not None)
    start = _first_bit(cell_bits)
    # The lowest bit of a cell is its last.
    last = -1 if number is None else cell_bits - 1 - number
    if core is not None:
        return core.encode_cells(opening, offsets, cell_bits, start, last)
    places = bits_of_cells(cell_bits, offsets)
    operations = [_operation("GET", f"u{cell_bits}", place) for place in places]
    if number is not None:
        operations += [_operation("SET", "u1", place + last) + "$1\r\n1\r\n" for place in places]
    return opening + "".join(operations).encode()


def read_cells(reply: list[int], rows: int, num_hashes: int) -> Sequence[int]:
    """Return for each row the slices that have all its bits.

    Args:
        reply: Header, state, the cells of the rows, and whatever follows.
        rows: How many rows.
        num_hashes: Cells of a row.
    """
    if core is not None:
        return core.read_cells(reply, rows, num_hashes)
    cells = reply[2 : 2 + rows * num_hashes]
    if len(cells) <= FEW_BITS:
        starts = range(0, len(cells), num_hashes)
        return [reduce(and_, cells[start : start + num_hashes]) for start in starts]
    table = np.array(cells, np.int64).reshape(rows, num_hashes)
    masks: list[int] = np.bitwise_and.reduce(table, axis=1).tolist()
    return masks


def _first_bit(cell_bits: int) -> int:
    """Return where the cell of offset 0 would begin; offsets count what precedes the cells."""
    return FIRST_BIT * (1 - cell_bits)


def _operation(name: str, kind: str, place: int) -> str:
    return f"$3\r\n{name}\r\n${len(kind)}\r\n{kind}\r\n${len(str(place))}\r\n{place}\r\n"


@lru_cache(maxsize=4096)
def _opening(key: str, cells: int, write: bool) -> bytes:
    arguments = ("BITFIELD" if write else "BITFIELD_RO", key, "GET", "i64", 0, "GET", "i64", 64)
    count = len(arguments) + cells * (7 if write else 3)
    whole = encode_command(*arguments)
    return b"*%d" % count + whole[whole.index(b"\r") :]


def microseconds(time: Sequence[bytes | str]) -> int:
    """Return the time of a reply to TIME."""
    seconds, micros = time
    return int(seconds) * 10**6 + int(micros)


def bits_of_cells(cell_bits: int, offsets: Sequence[int]) -> list[int]:
    """Return the first bits of cells, whose numbers are the offsets of an item."""
    start = _first_bit(cell_bits)
    return [offset * cell_bits + start for offset in offsets]


def packed_window(window: Window, *, renews: bool = False) -> bytes:
    """Return a window as scripts take it; see cells.lua.

    Args:
        window: The filter's.
        renews: Whether an add renews what is there.
    """
    return struct.pack(">QBBB", window.slice_us, window.slices, window.cell_bits, renews)


def turn(window: Window, key: str, header: int) -> Core[Turning]:
    """Bring a shard to the epoch of the server's clock. Cost: a round trip for each part."""
    for _ in range(_TURNS):
        turning = yield from _turn_once(window, key, header)
        if turning.error is not None or turning.epoch is None or turning.epoch > 0:
            break
    return turning


class Turns:
    """Turns shards before a script that adds to them; an error if it comes too late each time.

    Args:
        window: The filter's; None: no shard has to turn.
        what: What the script is, for messages.
    """

    def __init__(self, window: Window | None, what: str) -> None:
        self._window = window
        self._what = what
        self._left = ROUNDS

    def make(self, keys: Sequence[str], header: int) -> Core[None]:
        """Turn shards to the epoch of the server's clock.

        Args:
            keys: Of the shards.
            header: Theirs.

        Raises:
            BloomlockError: If that was done `ROUNDS` times before.
            redis.exceptions.RedisError: What the server answered, or why it could not be reached.
        """
        window = self._window
        if window is None:
            raise TypeError("a filter without a window has nothing to turn")
        if not self._left:
            raise too_late(window, self._what)
        self._left -= 1
        turned = yield from in_parallel([turn(window, key, header) for key in keys])
        for turning in turned:
            if turning.error is not None:
                answer_of(turning.error, NEEDS)


def wipe(window: Window, key: str, header: int) -> Core[None]:
    """Wipe the slice that comes next. What goes wrong is left to who turns to it."""
    for _ in range(_TURNS):
        turning = yield from _turn_once(window, key, header)
        if turning.error is not None or turning.epoch is None or turning.is_wiped:
            return


def _turn_once(window: Window, key: str, header: int) -> Core[Turning]:
    """Take one step; the epoch is -1 if there are others to come."""
    expected = header.to_bytes(HEADER_BYTES, "big")
    arguments: list[bytes | int] = [expected, window.slice_us, window.cell_bits // 8, PART_BYTES]
    (reply,) = yield from _SCRIPT.call([((key, *window_keys(key)), arguments)], repeatable=True)
    if not isinstance(reply, list):
        return Turning(error=named_error(error_of(reply), NEEDS))
    found = int.from_bytes(reply[0], "big")
    if unflagged(found) != header:
        return Turning(found)
    epoch = State.of(int.from_bytes(reply[1], "big")).epoch
    is_behind, is_left = reply[2:]
    return Turning(found, -1 if is_behind else epoch, not is_left)
