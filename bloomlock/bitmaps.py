"""Bits of many items in a local bitmap: test and set. Pure.

A bitmap is the image of a Redis string, header and all. Rows of bit numbers are those of
`Hasher.rows`; work goes in slices that fit the cache of a processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arrays import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Flags = npt.NDArray[np.bool_]
    Index = npt.NDArray[np.signedinteger[Any]]
    Rows = npt.NDArray[np.unsignedinteger[Any]]
    Words = npt.NDArray[np.uint64]

BITS_PER_SLICE = 2**16
"""Bits handled at a time: their positions are 512 KiB, half of a usual second-level cache."""

_ROUNDS = 8


def set_rows(bits: Bytes, rows: Rows) -> None:
    for start, stop in _slices(rows):
        index, masks = _split(rows[start:stop])
        _set(bits, index, masks, bits.take(index))


def rows_missing(bits: Bytes, rows: Rows) -> Flags:
    """Return for each row whether any of its bits is 0."""
    missing = np.empty(len(rows), np.bool_)
    for start, stop in _slices(rows):
        index, masks = _split(rows[start:stop])
        missing[start:stop] = _any_of_row(bits.take(index) & masks == 0, stop - start)
    return missing


def first_of_each(digests: Words) -> Flags:
    """Return for each item whether none before it in the batch has the same digest."""
    # Each item writes its number into a table at a place its digest gives; written from the last to
    # the first, the first stays. Who finds another number there is a repeat if the digests agree,
    # and else takes part in another round. Digests crafted to meet in the table are sorted in the
    # end.
    first = np.ones(len(digests), np.bool_)
    # The low bits of the last word: the high bits of the first chose the shard.
    table = np.empty(1 << (4 * len(digests)).bit_length(), np.int64)
    slots = (digests[:, -1] & np.uint64(len(table) - 1)).view(np.int64)
    items = np.arange(len(digests))
    for _ in range(_ROUNDS):
        table[slots[::-1]] = items[::-1]
        winners = table.take(slots)
        others = np.flatnonzero(winners != items)
        if not others.size:
            return first
        items, slots, winners = items[others], slots[others], winners[others]
        repeats = (digests[items] == digests[winners]).all(axis=1)
        first[items[repeats]] = False
        items, slots = items[~repeats], slots[~repeats]
    first[items] = False
    first[items[np.unique(digests[items], axis=0, return_index=True)[1]]] = True
    return first


def _slices(rows: Rows) -> list[tuple[int, int]]:
    count, num_hashes = rows.shape
    step = max(1, BITS_PER_SLICE // num_hashes)
    return [(start, min(start + step, count)) for start in range(0, count, step)]


def _split(rows: Rows) -> tuple[Index, Bytes]:
    """Return the byte numbers and the masks of all bits, the first bits of all rows first."""
    numbers = np.ascontiguousarray(rows.T).reshape(-1)
    index = numbers >> numbers.dtype.type(3)
    masks = np.right_shift(np.uint8(128), numbers.astype(np.uint8) & np.uint8(7))
    # Positions of 64 bits are read as signed ones in place, which NumPy would else convert.
    signed = index.view(np.int64) if index.dtype == np.uint64 else index.astype(np.int64)
    return signed, masks


def _any_of_row(flags: Flags, count: int) -> Flags:
    missing: Flags = np.logical_or.reduce(flags.reshape(-1, count), axis=0)
    return missing


def _set(bits: Bytes, index: Index, masks: Bytes, found: Bytes) -> None:
    """Set the bits; `found` holds their bytes as they are before (and is overwritten)."""
    # Of two bits in one byte the later assignment wins; what was lost is set again.
    found |= masks
    bits[index] = found
    while (lost := np.flatnonzero(bits.take(index) & masks == 0)).size:
        index, masks = index[lost], masks[lost]
        bits[index] = bits.take(index) | masks
