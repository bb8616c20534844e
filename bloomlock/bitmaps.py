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

BITS_PER_SLICE = 2**16
"""Bits handled at a time: their positions are 512 KiB, half of a usual second-level cache."""


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
