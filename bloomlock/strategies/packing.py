"""Offsets of many items as one argument of a script. Pure.

A classic row is its offsets, four bytes each. A row of a blocked filter is the number of its block,
four bytes, and two bytes for each position. Scripts count in floating-point numbers and have no
integers of 64 bits, so a block is ten words of 48 bits and one of 32 to them, and a position is the
number of its word (from 1) and the number of its bit there (from 1, the lowest first); an odd
number of positions is made even by repeating the last. Everything is big-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from bloomlock.blocked import BLOCK_BITS
from bloomlock.sizing import HEADER_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Rows

WORD_BITS = 48


def _place(position: int) -> int:
    word, bit = divmod(position, WORD_BITS)
    bits = min(WORD_BITS, BLOCK_BITS - word * WORD_BITS)
    return (word + 1) << 8 | (bits - bit)


# The header shifts all blocks against multiples of 512, which an index must follow.
PLACES = [_place((offset - HEADER_BITS) % BLOCK_BITS) for offset in range(BLOCK_BITS)]
_PLACES = np.array(PLACES, ">u2")
_LAST = BLOCK_BITS - 1


def row_bytes(num_hashes: int, *, blocked: bool) -> int:
    """Return the length of one packed row."""
    return 4 + 2 * (num_hashes + num_hashes % 2) if blocked else 4 * num_hashes


def pack(rows: Rows, *, blocked: bool) -> bytes:
    """Return the rows of many items, one after the other.

    Cost: 0.01 microseconds a bit.

    >>> pack(np.array([[64, 319]], np.uint64), blocked=False).hex(" ", 4)
    '00000040 0000013f'
    """
    if not blocked:
        return rows.astype(">u4").tobytes()
    count, num_hashes = rows.shape
    packed = np.empty((count, row_bytes(num_hashes, blocked=True) // 2), ">u2")
    blocks = (rows[:, 0] - np.uint64(HEADER_BITS)) // np.uint64(BLOCK_BITS)
    packed[:, 0] = blocks >> np.uint64(16)
    packed[:, 1] = blocks & np.uint64(0xFFFF)
    packed[:, 2 : 2 + num_hashes] = _PLACES[rows & np.uint64(_LAST)]
    packed[:, -1] = packed[:, 1 + num_hashes]
    return packed.tobytes()


def pack_one(offsets: Sequence[int], *, blocked: bool) -> bytes:
    """Return the row of one item.

    >>> pack_one([64, 319], blocked=True).hex(" ", 2)
    '0000 0000 0130 0621'
    """
    if not blocked:
        return struct.pack(f">{len(offsets)}I", *offsets)
    places = [PLACES[offset & _LAST] for offset in offsets]
    places += places[-1:] * (len(places) % 2)
    return struct.pack(f">I{len(places)}H", (offsets[0] - HEADER_BITS) // BLOCK_BITS, *places)
