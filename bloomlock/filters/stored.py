"""What the server holds under a filter's name: one look at descriptor and first header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bloomlock.commands import (
    ConnectionLost,
    Core,
    Replies,
    Request,
    check,
    deliver,
    encode_command,
)
from bloomlock.descriptor import FIELDS, Descriptor, decode, header_from_bytes, is_header
from bloomlock.errors import FilterMismatchError
from bloomlock.strategies.bits import header_command

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys


@dataclass(frozen=True, slots=True)
class Found:
    """What the server holds under a filter's name."""

    descriptor: Descriptor | None
    header: int


def look(keys: FilterKeys) -> Core[Found]:
    """Read descriptor and first header in one round trip.

    Raises:
        FilterMismatchError: If the keys hold something that is no filter of this version.
    """
    request = Request(keys.meta, _commands(keys))
    try:
        return _read(keys, (yield from deliver(request, repeatable=True)))
    except ConnectionLost as lost:
        raise lost.cause from None


def look_and_watch(keys: FilterKeys) -> Core[Found]:
    """Do the same under WATCH, and hold the connection for the transaction to come.

    Only the descriptor is watched: whoever creates or clears writes it, and adds to the bitmap, of
    which there may be thousands a second, must not keep anybody from clearing.

    Raises:
        ConnectionLost: If the server cannot be reached; the WATCH is gone then.
    """
    watch = encode_command("WATCH", keys.meta)
    request = Request(keys.meta, [watch, *_commands(keys)], hold=True)
    replies = yield from deliver(request, repeatable=True)
    return _read(keys, replies)


def _commands(keys: FilterKeys) -> list[bytes]:
    return [encode_command("HMGET", keys.meta, *FIELDS), header_command(keys.bits(0))]


def _read(keys: FilterKeys, replies: Replies) -> Found:
    try:
        *_, values, start = check(replies)
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        raise _foreign(keys) from None
    descriptor, header = decode(keys.name, values), header_from_bytes(start)
    if descriptor is None and header and not is_header(header):
        raise _foreign(keys)
    return Found(descriptor, header)


def _foreign(keys: FilterKeys) -> FilterMismatchError:
    return FilterMismatchError(
        f"the keys of filter {keys.name!r} ({keys.meta!r}, {keys.bits(0)!r}) hold something that "
        "is no filter; nothing was changed; choose another name or prefix"
    )
