"""The single-bit commands that three strategies share. Pure.

https://redis.io/docs/latest/commands/setbit/ (answers the old bit), /getbit/, /getrange/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bloomlock.descriptor import HEADER_BYTES, header_from_bytes
from bloomlock.effects import Replies, encode_arguments, encode_command

from .base import Segment, any_missing
from .encoding import encode_each

if TYPE_CHECKING:
    from .base import Flags, Rows


def bit_commands(key: str, rows: Rows, write: bool) -> list[bytes]:
    """Return one SETBIT (or GETBIT) for each offset of each row."""
    count, name, after = (4, "SETBIT", encode_arguments(1)) if write else (3, "GETBIT", b"")
    before = b"*%d\r\n%b" % (count, encode_arguments(name, key))
    return encode_each(rows.ravel(), before, after)


def header_command(key: str) -> bytes:
    """Return the command that reads the header."""
    return encode_command("GETRANGE", key, 0, HEADER_BYTES - 1)


def bits_then_header(replies: Replies, count: int) -> Segment:
    """Read the replies of bit commands for `count` rows that are followed by the header's.

    Any error makes the answer to all rows unknown.
    """
    wrong = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if wrong is not None:
        return Segment(count, error=wrong)
    *bits, header = replies
    missing: list[bool] | Flags
    if count == 1:
        missing = [0 in bits]
    else:
        missing = any_missing(np.frombuffer(bytes(bits), np.uint8), len(bits) // count)
    return Segment(count, header_from_bytes(header), missing)
