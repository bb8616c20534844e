"""The bits of a whole batch built here, and merged into the shard by BITOP OR.

For a batch that is large against the bitmap: a bit costs some nanoseconds here and a quarter of a
microsecond on the server. One transaction reads the bits that were there and merges the new ones
if the header is right, so the answers are exact: an item is new if one of its bits was 0 before,
and no earlier item of the batch has the same bits.

All bits of an item have to be merged at one instant, or two workers might get the answer "new", so
the shard is merged as a whole; where no answers are wanted, in parts.

https://redis.io/docs/latest/commands/bitop/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import NoScriptError, ResponseError

from bloomlock.arrays import np
from bloomlock.bitmaps import first_of_each, rows_missing, set_rows
from bloomlock.commands import EXEC, MULTI, encode_command, encode_large
from bloomlock.delivery import collect
from bloomlock.effects import ConnectionLost, Core, Request
from bloomlock.keys import merge_keys
from bloomlock.refusals import is_missing
from bloomlock.scripts import Script
from bloomlock.sizing import FIRST_BYTE

from .base import Segment, Strategy, header_command, header_from_bytes
from .setbit import why_aborted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.commands import Command
    from bloomlock.hashing import Hasher

    from .base import Shard

    Bytes = npt.NDArray[np.uint8]

WHOLE_BYTES = 8 * 1024 * 1024
"""The largest shard that is merged or read in one command, which takes the server about 10 ms."""

PART_BYTES = 2 * 1024 * 1024
"""Parts of larger ones."""

TOGETHER_BYTES = 1024 * 1024
"""Bitmaps sent at once; a larger one goes by itself, and its reply past the parser."""

REST_BYTES = 4096
"""The replies beside the bits of a part."""

LEFT_SECONDS = 60
"""How long an image whose merging was refused may be left behind."""

_SCRIPT = Script("merge")


class BitmapStrategy(Strategy):
    """Two round trips for a batch whose bits are many; exact.

    `fallback` takes the items that the server refuses to this one. Without `answers` all items that
    it adds are answered as seen.
    """

    name = "bitmap"
    has_free_repeats = True

    def __init__(self, fallback: Strategy, *, answers: bool = True) -> None:
        self._fallback = fallback
        self.is_atomic = fallback.is_atomic
        self.has_answers = answers

    def ask_shard(
        self, shard: Shard, hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[list[Segment]]:
        segment = yield from self._ask_at_once(shard, hasher, items, write=write)
        if not isinstance(segment.error, ResponseError):
            return [segment]
        # Nothing was done.
        self.is_forbidden = self.is_forbidden or is_missing(segment.error)
        size = max(1, self._fallback.bits_per_exchange // hasher.num_hashes)
        answered: list[Segment] = []
        for start in range(0, len(items), size):
            some = items[start : start + size]
            answered += yield from self._fallback.ask_shard(shard, hasher, some, write=write)
        return answered

    def _ask_at_once(
        self, shard: Shard, hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[Segment]:
        rows, size, header = hasher.rows(items), image_bytes(shard), shard.header
        image = np.zeros(size if write else 0, np.uint8)
        set_rows(image, rows if write else rows[:0])
        if not write:
            reply = yield from _read(shard, size)
        elif self.has_answers:
            reply = yield from merge_part(shard, 0, image, answers=True)
        else:
            reply = header, b""
            for start, stop in _parts(size):
                if image[start:stop].any():
                    reply = yield from merge_part(shard, start, image[start:stop], answers=False)
                    if isinstance(reply, Exception) or not shard.has(reply[0]):
                        break
        if isinstance(reply, Exception):
            return Segment(len(rows), error=reply)
        header, before = reply
        if not shard.has(header):
            return Segment(len(rows), header)
        if write and not self.has_answers:
            return Segment(len(rows), header, np.zeros(len(rows), np.bool_))
        missing = rows_missing(np.frombuffer(before, np.uint8), rows)
        if write:
            # Items with the same first four offsets have the same digest, or the same bits by
            # chance.
            missing &= first_of_each(rows[:, :4])
        return Segment(len(rows), header, missing)

    def shards_at_once(self, shard: Shard) -> int:
        return max(1, TOGETHER_BYTES // image_bytes(shard))


def _parts(size: int) -> list[tuple[int, int]]:
    """Return the bytes of a shard's bitmap that are merged at once where no answers are wanted."""
    if size <= WHOLE_BYTES:
        return [(0, size)]
    starts = range(FIRST_BYTE, size, PART_BYTES)
    return [(start, min(start + PART_BYTES, size)) for start in starts]


def merge_part(
    shard: Shard, first: int, image: Bytes, *, answers: bool, union: bool = False
) -> Core[tuple[int, bytes | memoryview] | Exception]:
    """Set the bits of an image, which begins at byte `first` of the shard.

    A slot that moves is a refusal, after which the items take the image's place; a `union`, which
    has no items, waits for it.

    Returns:
        The header found, and the bytes that were there before (empty without `answers`); or what
        went wrong, and then nothing was done or it is not known.
    """
    # A server that refuses MULTI would carry out what follows.
    refused, _ = yield from collect(Request(shard.key, [MULTI, EXEC]), repeatable=True)
    if isinstance(refused, ConnectionLost):
        return ConnectionLost(refused.cause, sent=False, replies=[])
    if isinstance(refused, Exception):
        return refused
    merging = merge_keys(shard.key)
    expected, *others = shard.headers[:2]
    end, room = first + len(image), _room_for(len(image)) if answers else None
    before = [encode_command("GETRANGE", shard.key, first, end - 1)] if answers else []
    for call in (_SCRIPT.by_digest, _SCRIPT.by_source):
        # The image goes the short way, not through the script, which would copy it several times.
        commands: list[Command] = [
            MULTI,
            encode_large("SET", merging[0], image.data, "EX", LEFT_SECONDS),
            *before,
            call([shard.key, *merging], [expected, first, *others]),
            EXEC,
        ]
        request = Request(shard.key, commands, room=room, waits=union)
        replies = yield from collect(request, repeatable=not answers)
        if not isinstance(replies[-1], list):
            return why_aborted(replies)
        if not isinstance(replies[-1][-1], NoScriptError):
            break
    _, *found, header = replies[-1]
    wrong = next((reply for reply in replies[-1] if isinstance(reply, Exception)), None)
    return wrong or (header_from_bytes(header), found[0] if found else b"")


def _read(shard: Shard, size: int) -> Core[tuple[int, bytes | memoryview] | Exception]:
    # A generation never returns: a header that is right afterwards was right before.
    commands = [encode_command("GETRANGE", shard.key, 0, size - 1), header_command(shard.key)]
    request = Request(shard.key, commands, room=_room_for(size))
    bits, header = yield from collect(request, repeatable=True)
    wrong = next((reply for reply in (bits, header) if isinstance(reply, Exception)), None)
    return wrong or (header_from_bytes(header), bits)


def _room_for(size: int) -> memoryview:
    """Return where replies are received of which one is so long and the others are short."""
    return np.empty(size + REST_BYTES, np.uint8).data


def is_quick(shard: Shard, *, exact: bool) -> bool:
    """Return whether the server is done with each command for the shard in about 10 ms.

    With `exact` answers are wanted, so that all bits of an item belong in one command.
    """
    return not exact or image_bytes(shard) <= WHOLE_BYTES


def image_bytes(shard: Shard) -> int:
    """Return the length of the shard's string."""
    return FIRST_BYTE + (shard.bits + 7) // 8
