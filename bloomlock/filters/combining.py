"""Parts of shards combined: at the server, in steps that are short, or through the client.

A server is busy with one command until it is done with it, and with the commands that one client
has sent it together. So a step takes a shard of at most 8 MiB, which BITOP does by itself, or a
part of 512 KiB of a larger one, which passes through the script, and what is sent together is not
more than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.effects import ConnectionLost
from bloomlock.keys import merge_keys
from bloomlock.refusals import is_missing
from bloomlock.scripts import Script
from bloomlock.sizing import FIRST_BYTE
from bloomlock.strategies.base import header_command, header_from_bytes
from bloomlock.strategies.bitmap import WHOLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

PART_BYTES = 512 * 1024
"""A part of a shard that is not combined as a whole."""

TRAVELLING_BYTES = 1024 * 1024
"""A part that goes through the client."""

DONE, TARGET, FIRST, SECOND = range(4)
"""What a step answers: it was carried out, or which shard has another header."""

_COMBINE = Script("combine")


class Piece(NamedTuple):
    """A part of a shard's string.

    Attributes:
        shard: The number of the shard.
        first: Its first byte; 0: the whole string.
        last: Its last byte.
    """

    shard: int
    first: int
    last: int

    @property
    def num_bytes(self) -> int:
        """How many bytes it has."""
        return self.last - self.first + 1


class Target(NamedTuple):
    """A shard that is written.

    Attributes:
        key: Its string.
        header: The header it has.
    """

    key: str
    header: int


def pieces(shards: int, size: int, *, travels: bool) -> list[list[Piece]]:
    """Return all parts of shards whose strings have `size` bytes, grouped by what goes together.

    Args:
        shards: How many.
        size: Bytes of each, the header included.
        travels: Whether they go through the client.

    >>> pieces(2, 100, travels=False)
    [[Piece(shard=0, first=0, last=99), Piece(shard=1, first=0, last=99)]]
    >>> [piece.first for group in pieces(1, 24 + 5 * 2**20, travels=True) for piece in group][:2]
    [24, 1048600]
    """
    most = TRAVELLING_BYTES if travels else PART_BYTES
    if travels or size > WHOLE_BYTES + FIRST_BYTE:
        starts = range(FIRST_BYTE, size, most)
        parts = [(first, min(first + most, size) - 1) for first in starts]
    else:
        most, parts = WHOLE_BYTES, [(0, size - 1)]
    groups: list[list[Piece]] = []
    room = 0
    for shard in range(shards):
        for first, last in parts:
            piece = Piece(shard, first, last)
            if piece.num_bytes > room:
                groups.append([])
                room = most + FIRST_BYTE
            groups[-1].append(piece)
            room -= piece.num_bytes
    return groups


def combine(target: Target, sources: Sequence[Shard], piece: Piece) -> Core[int | None]:
    """Write a part of one shard, or of two combined, at the server.

    Returns:
        DONE, or which of them is of another generation; None if the server cannot do it: the
        shards lie in different slots of a cluster, or it runs no scripts for this client.

    Cost: one round trip; 0.3 to 1 ms of the server's time for each MiB.
    """
    keys = [target.key, *merge_keys(target.key), *(source.key for source in sources)]
    headers = [_bytes(source.header) for source in sources]
    arguments: tuple[bytes | int, ...] = (_bytes(target.header), piece.first, piece.last, *headers)
    (reply,) = yield from _COMBINE.call([(keys, arguments)], repeatable=True)
    if isinstance(reply, ConnectionLost):
        raise reply.cause from None
    if isinstance(reply, ResponseError) and is_not_possible(reply):
        return None
    if isinstance(reply, Exception):
        raise reply
    return int(reply)


def read(shard: Shard, piece: Piece) -> Core[bytes | None]:
    """Return a part of a shard; None if it is of another generation."""
    bits, header = yield from ask(
        shard.key,
        encode_command("GETRANGE", shard.key, piece.first, piece.last),
        header_command(shard.key),
    )
    return bytes(bits) if header_from_bytes(header) == shard.header else None


def is_not_possible(error: ResponseError) -> bool:
    """Return whether a script is refused for good: its keys lie in several slots, or it may not."""
    # redis-py takes the first word off some errors.
    text = str(error).lower()
    # A script may be allowed, and a command in it not.
    words = ("acl failure", "no permissions", "can't run this command")
    refused = any(one in text for one in words)
    return is_missing(error) or refused or "same slot" in text or text.startswith("crossslot")


def _bytes(header: int) -> bytes:
    return header.to_bytes(HEADER_BYTES, "big")
