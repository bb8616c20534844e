"""The route "bitmap": the client builds a bitmap of a batch, and BITOP OR merges it into the shard.

It is for a batch that is large compared to the bitmap: a bit costs some nanoseconds here and a
quarter of a microsecond on the server. One transaction reads the old bits and merges the new ones
if the header is right. The answers are exact: an item is new if one of its bits was 0 before, and
a batch has each item once.

All bits of an item are merged at one instant, or two workers could both get "new". So the shard is
merged as a whole; without answers it is merged in parts.

https://redis.io/docs/latest/commands/bitop/
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import NoScriptError, ResponseError

from bloomlock.arrays import np
from bloomlock.commands import (
    EXEC,
    MULTI,
    Script,
    encode_command,
    encode_large,
    in_parallel,
    send_or_lost,
)
from bloomlock.descriptor import header_from_bytes
from bloomlock.effects import ConnectionLost, Core, Request
from bloomlock.hashing import pick
from bloomlock.keys import merge_keys
from bloomlock.refusals import is_missing
from bloomlock.sizing import FIRST_BYTE

from .base import Segment, Strategy, header_command
from .bits import why_aborted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from bloomlock.effects import Command
    from bloomlock.hashing import Words

    from .base import Answered, Flags, Indices, Segments, Shard

    Bytes = npt.NDArray[np.uint8]

WHOLE_BYTES = 8 * 1024 * 1024
"""The largest shard that one command merges or reads; it takes the server about 10 ms."""

PART_BYTES = 2 * 1024 * 1024
"""Parts of larger ones."""

TOGETHER_BYTES = 1024 * 1024
"""The most bytes of bitmaps that are sent at once; a larger bitmap is sent alone."""

REST_BYTES = 4096
"""Room for the replies beside the bits of a part."""

LEFT_SECONDS = 60
"""How long an image stays on the server if its merge was refused."""

_KEPT: list[tuple[Bytes, memoryview]] = []
"""The memory of the last batch, for the next batch of the same size: at most one, of 16 MiB.

The first touch of new memory takes longer than all work with it. The memory comes here after the
last reply, when no request uses it any more.
"""

_SCRIPT = Script("merge")


class BitmapStrategy(Strategy):
    """Two round trips for a batch of many bits; exact.

    If the server refuses it, `fallback` takes the items. Without `answers` each item that it adds
    has the answer "seen".
    """

    name = "bitmap"

    def __init__(self, fallback: Strategy, *, answers: bool = True) -> None:
        self._fallback = fallback
        self.is_atomic = fallback.is_atomic
        self.has_answers = answers

    def ask(
        self, shards: Sequence[Shard], items: Sequence[bytes], *, write: bool
    ) -> Core[Answered]:
        hasher = shards[0].hasher
        digests = hasher.digests(items)
        by_shard = hasher.by_shard(digests)
        cores = [
            self._ask(shards[number], digests[at], partial(_take, items, at), write=write)
            for number, at in by_shard.items()
        ]
        answers = yield from in_parallel(cores, self.shards_at_once(shards[0]))
        return list(zip(by_shard.values(), answers, strict=True))

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        return self._ask(shard, shard.hasher.digests(items), lambda: items, write=write)

    def _ask(
        self, shard: Shard, digests: Words, take: Callable[[], Sequence[bytes]], *, write: bool
    ) -> Core[Segments]:
        segment = yield from self._ask_at_once(shard, digests, write=write)
        if not isinstance(segment.error, ResponseError):
            return [segment]
        # Nothing was done.
        self.is_forbidden = self.is_forbidden or is_missing(segment.error)
        size = max(1, self._fallback.bits_per_exchange // shard.hasher.num_hashes)
        answered: list[Segment] = []
        items = take()
        for start in range(0, len(items), size):
            some = items[start : start + size]
            answered += yield from self._fallback.ask_shard(shard, some, write=write)
        return answered

    def _ask_at_once(self, shard: Shard, digests: Words, *, write: bool) -> Core[Segment]:
        count, size = len(digests), image_bytes(shard)
        image, room = _take_memory(size, write=write)
        if not write:
            reply = yield from _read(shard, size, room)
        elif self.has_answers:
            _set(shard, image, digests)
            reply = yield from merge_part(shard, 0, image, room)
        else:
            _set(shard, image, digests)
            reply = shard.header, b""
            for start, stop in _parts(size):
                if image[start:stop].any():
                    reply = yield from merge_part(shard, start, image[start:stop])
                    if isinstance(reply, Exception) or not shard.has(reply[0]):
                        break
        if isinstance(reply, Exception):
            return Segment(count, error=reply)
        header, before = reply
        if not shard.has(header):
            return Segment(count, header)
        missing: Flags | list[bool] = [False] * count
        if self.has_answers or not write:
            missing = _missing(shard, before, digests)
        if size <= WHOLE_BYTES:
            _KEPT[:] = [(image, room)]
        return Segment(count, header, missing)

    def shards_at_once(self, shard: Shard) -> int:
        return max(1, TOGETHER_BYTES // image_bytes(shard))


def _take(items: Sequence[bytes], at: Indices) -> list[bytes]:
    return pick(items, at.tolist())


def _take_memory(size: int, *, write: bool) -> tuple[Bytes, memoryview]:
    """Return memory for an image, all 0 if it is for a write, and room for the replies."""
    with suppress(IndexError):
        image, room = _KEPT.pop()
        if len(image) == size:
            if write:
                image.fill(0)
            return image, room
    return np.zeros(size, np.uint8), np.empty(size + REST_BYTES, np.uint8).data


def _set(shard: Shard, image: Bytes, digests: Words) -> None:
    hasher = shard.hasher
    if hasher.places is not None:
        hasher.places.over((image,) * hasher.shards).add_many(digests)
    else:
        set_rows(image, hasher.place(digests))


def _missing(shard: Shard, before: bytes | memoryview, digests: Words) -> Flags:
    hasher = shard.hasher
    if hasher.places is not None:
        image = bytearray(before) if isinstance(before, bytes) else before
        found = hasher.places.over((image,) * hasher.shards).exists_many(digests)
        return ~np.frombuffer(found, np.bool_)
    return rows_missing(np.frombuffer(before, np.uint8), hasher.place(digests))


def set_rows(image: Bytes, rows: Words) -> None:
    for index, masks in _columns(rows):
        np.bitwise_or.at(image, index, masks)


def rows_missing(image: Bytes, rows: Words) -> Flags:
    """Return for each row of bits whether any of them is 0."""
    missing = np.zeros(len(rows), np.bool_)
    for index, masks in _columns(rows):
        missing |= image.take(index) & masks == 0
    return missing


def _columns(rows: Words) -> Iterator[tuple[npt.NDArray[np.intp], Bytes]]:
    for numbers in rows.T:
        masks = np.right_shift(np.uint8(128), numbers.astype(np.uint8) & np.uint8(7))
        yield (numbers >> np.uint64(3)).astype(np.intp), masks


def _parts(size: int) -> list[tuple[int, int]]:
    if size <= WHOLE_BYTES:
        return [(0, size)]
    starts = range(FIRST_BYTE, size, PART_BYTES)
    return [(start, min(start + PART_BYTES, size)) for start in starts]


def merge_part(
    shard: Shard, first: int, image: Bytes, room: memoryview | None = None, *, union: bool = False
) -> Core[tuple[int, bytes | memoryview] | Exception]:
    """Set the bits of an image that begins at byte `first` of the shard.

    If a cluster moves the slot, the server refuses the merge and the items are sent instead. A
    `union` has no items and waits for the end of the move.

    Returns:
        The header found, and the bytes that were there before (empty without `room` for them). Or
        the error: a ConnectionLost if the outcome may be unknown, else nothing was done.
    """
    # A server that refuses MULTI would carry out the commands behind it.
    refused, _ = yield from send_or_lost(Request(shard.key, [MULTI, EXEC]), repeatable=True)
    if isinstance(refused, ConnectionLost):
        return ConnectionLost(refused.cause, sent=False, replies=[])
    if isinstance(refused, Exception):
        return refused
    merging = merge_keys(shard.key)
    expected, *others = shard.headers[:2]
    end, has_answers = first + len(image), room is not None
    before = [encode_command("GETRANGE", shard.key, first, end - 1)] if has_answers else []
    for call in (_SCRIPT.by_digest, _SCRIPT.by_source):
        # The image is sent by SET. As an argument of the script it would be copied several times.
        commands: list[Command] = [
            MULTI,
            encode_large("SET", merging[0], image.data, "EX", LEFT_SECONDS),
            *before,
            call([shard.key, *merging], [expected, first, *others]),
            EXEC,
        ]
        request = Request(shard.key, commands, room=room, waits=union)
        replies = yield from send_or_lost(request, repeatable=not has_answers)
        if not isinstance(replies[-1], list):
            return why_aborted(replies)
        if not isinstance(replies[-1][-1], NoScriptError):
            break
    _, *found, header = replies[-1]
    wrong = next((reply for reply in replies[-1] if isinstance(reply, Exception)), None)
    return wrong or (header_from_bytes(header), found[0] if found else b"")


def _read(
    shard: Shard, size: int, room: memoryview
) -> Core[tuple[int, bytes | memoryview] | Exception]:
    # A generation never returns: if the header is right after the bits, it was right before.
    commands = [encode_command("GETRANGE", shard.key, 0, size - 1), header_command(shard.key)]
    request = Request(shard.key, commands, room=room)
    bits, header = yield from send_or_lost(request, repeatable=True)
    wrong = next((reply for reply in (bits, header) if isinstance(reply, Exception)), None)
    return wrong or (header_from_bytes(header), bits)


def is_quick(shard: Shard, *, exact: bool) -> bool:
    # For exact answers one command reads all bits of an item.
    return not exact or image_bytes(shard) <= WHOLE_BYTES


def image_bytes(shard: Shard) -> int:
    return FIRST_BYTE + (shard.bits + 7) // 8
