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

from redis.exceptions import NoScriptError

from bloomlock.arrays import np
from bloomlock.bitmaps import first_of_each, rows_missing, set_rows
from bloomlock.commands import EXEC, MULTI, Replies, encode_command, encode_large
from bloomlock.delivery import collect
from bloomlock.effects import ConnectionLost, Core, Request
from bloomlock.keys import merge_keys
from bloomlock.scripts import Script
from bloomlock.sizing import FIRST_BYTE

from .base import Segment, Strategy, header_command, header_from_bytes
from .setbit import why_aborted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from bloomlock.commands import Command
    from bloomlock.hashing import Hasher, Words

    from .base import Shard

    Bytes = npt.NDArray[np.uint8]
    Call = Callable[[Sequence[str], Sequence[str | bytes | int]], bytes]

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
    """Two round trips for a batch whose bits are many; exact. An error means: nothing was done."""

    name = "bitmap"
    has_free_repeats = True

    def ask_shard(
        self, shard: Shard, hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[list[Segment]]:
        """See Strategy.ask_shard."""
        return [(yield from _exchange(shard, hasher.rows(items), write))]

    def shards_at_once(self, shard: Shard, *, write: bool) -> int:  # noqa: ARG002 - images are large
        """See Strategy.shards_at_once."""
        return max(1, TOGETHER_BYTES // image_bytes(shard))


class MergeStrategy(BitmapStrategy):
    """A BitmapStrategy whose answers nothing needs: all items that it adds are answered as seen."""

    has_answers = False

    def ask_shard(
        self, shard: Shard, hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[list[Segment]]:
        """See Strategy.ask_shard."""
        if not write:
            return (yield from super().ask_shard(shard, hasher, items, write=write))
        image = np.zeros(image_bytes(shard), np.uint8)
        set_rows(image, hasher.rows(items))
        whole, header = len(image) <= WHOLE_BYTES, shard.header
        for part in [range(len(image))] if whole else _parts(len(image)):
            bits = image[part.start : part.stop]
            if not whole and not bits.any():
                continue
            reply = yield from merge_part(shard, part.start, bits, answers=False)
            if isinstance(reply, Exception):
                return [Segment(len(items), error=reply)]
            header, _ = reply
            if not shard.has(header):
                return [Segment(len(items), header)]
        return [Segment(len(items), header, np.zeros(len(items), np.bool_))]


def _parts(size: int) -> list[range]:
    """Return the bytes of a shard of `size` bytes that belong to its bitmap, in parts."""
    starts = range(FIRST_BYTE, size, PART_BYTES)
    return [range(start, min(start + PART_BYTES, size)) for start in starts]


def _exchange(shard: Shard, rows: Words, write: bool) -> Core[Segment]:
    size = image_bytes(shard)
    if write:
        image = np.zeros(size, np.uint8)
        set_rows(image, rows)
        reply = yield from merge_part(shard, 0, image, answers=True)
    else:
        reply = yield from _read(shard, size)
    if isinstance(reply, Exception):
        return Segment(len(rows), error=reply)
    header, before = reply
    if not shard.has(header):
        return Segment(len(rows), header)
    found = np.frombuffer(before, np.uint8)
    missing = rows_missing(found, rows)
    if write:
        # Items with the same first four offsets have the same digest, or the same bits by chance.
        missing &= first_of_each(rows[:, :4])
    return Segment(len(rows), header, missing)


def merge_part(
    shard: Shard, first: int, image: Bytes, *, answers: bool, union: bool = False
) -> Core[tuple[int, bytes | memoryview] | Exception]:
    """Set the bits of an image, which begins at byte `first` of the shard.

    A slot that moves is a refusal, after which the items take the image's place; a `union`, which
    has no items, waits for it. Nor does a union set bits in a shard with discarded items, as bits
    do not undo a discard.

    Returns:
        The header found, and the bytes that were there before (empty without `answers`); or what
        went wrong, and then nothing was done or it is not known.
    """
    refused = yield from _refuses_transactions(shard)
    if refused is not None:
        return refused
    how = {"answers": answers, "union": union}
    replies = yield from _transact(shard, first, image, _SCRIPT.by_digest, **how)
    if isinstance(replies, list) and isinstance(replies[-1], NoScriptError):
        replies = yield from _transact(shard, first, image, _SCRIPT.by_source, **how)
    if isinstance(replies, Exception):
        return replies
    wrong = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if wrong is not None:
        return wrong
    return header_from_bytes(replies[-1]), replies[1] if answers else b""


def _refuses_transactions(shard: Shard) -> Core[Exception | None]:
    """Return why the server refuses MULTI, after which it would carry out what follows."""
    request = Request(shard.key, [MULTI, EXEC])
    refused, _ = yield from collect(request, repeatable=True)
    if isinstance(refused, ConnectionLost):
        return ConnectionLost(refused.cause, sent=False, replies=[])
    return refused if isinstance(refused, Exception) else None


def _transact(
    shard: Shard,
    first: int,
    image: Bytes,
    call: Call,
    *,
    answers: bool,
    union: bool,
) -> Core[Replies | Exception]:
    """Store the image, read what is there if asked, and merge; return the replies to these."""
    merging = merge_keys(shard.key)
    expected, *others = shard.headers[: 1 if union else 2]
    # The image goes the short way, not through the script, which would copy it several times.
    commands: list[Command] = [
        MULTI,
        encode_large("SET", merging[0], image.data, "EX", LEFT_SECONDS),
        encode_command("GETRANGE", shard.key, first, first + len(image) - 1),
        call([shard.key, *merging], [expected, first, *others]),
        EXEC,
    ]
    room = _room_for(len(image)) if answers else None
    if not answers:
        del commands[2]
    request = Request(shard.key, commands, room=room, waits=union)
    replies = yield from collect(request, repeatable=not answers)
    if isinstance(replies[-1], list):
        return replies[-1]
    return why_aborted(replies)


def _read(shard: Shard, size: int) -> Core[tuple[int, bytes | memoryview] | Exception]:
    # A generation never returns: a header that is right afterwards was right before.
    commands = [
        encode_command("GETRANGE", shard.key, 0, size - 1),
        header_command(shard.key),
    ]
    request = Request(shard.key, commands, room=_room_for(size))
    bits, header = yield from collect(request, repeatable=True)
    for reply in (bits, header):
        if isinstance(reply, Exception):
            return reply
    return header_from_bytes(header), bits


def _room_for(size: int) -> memoryview:
    """Return where replies are received of which one is so long and the others are short."""
    return np.empty(size + REST_BYTES, np.uint8).data


def is_quick(shard: Shard, *, exact: bool) -> bool:
    """Return whether the server is done with each command for the shard in about 10 ms.

    Args:
        shard: What is to be merged or read.
        exact: Whether answers are wanted, so that all bits of an item belong in one command.
    """
    return not exact or image_bytes(shard) <= WHOLE_BYTES


def image_bytes(shard: Shard) -> int:
    """Return the length of the shard's string."""
    return FIRST_BYTE + (shard.bits + 7) // 8
