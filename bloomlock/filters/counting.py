"""How full the shards of a filter are: bits that the server counts, a sample, or its own count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES, generation_of, has_discards
from bloomlock.keys import discards_key, native_key
from bloomlock.parallel import in_parallel
from bloomlock.sizing import FIRST_BYTE, error_rate_at_fill, estimate_count, whole_collisions
from bloomlock.slice_sizes import compound_error_rate
from bloomlock.slices import live_slices
from bloomlock.strategies.base import (
    header_command,
    header_from_bytes,
    plain_header,
    start_command,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.slices import Slice
    from bloomlock.strategies import Shard

COUNTED_BYTES_PER_COMMAND = 16 * 1024 * 1024
"""About 2 ms of the server's time."""

COMMANDS_PER_TRIP = 8


class Counted(NamedTuple):
    """How full a filter is.

    Attributes:
        items: Distinct items, estimated or known.
        bits_set: Bits that are 1, counted or expected.
        error_rate: The false-positive rate, where it does not follow from the bits that are 1.
        fullest: With a window, items of a filter whose slices are all as full as the fullest.
        discarded: Items that have a tombstone.
        num_bits: Bits of all slices of a filter that grows; 0: as the descriptor says.
        slices: The most that a shard of a filter that grows has.
    """

    items: int
    bits_set: int
    error_rate: float | None = None
    fullest: int = 0
    discarded: int = 0
    num_bits: int = 0
    slices: int = 1


def count_bitmaps(descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
    """Count the items of shards that are a bitmap each; None if one changed meanwhile."""
    size = descriptor.size
    length = (size.shard_bits + 7) // 8
    most = max(1, COMMANDS_PER_TRIP * COUNTED_BYTES_PER_COMMAND // length)
    counts = yield from in_parallel([_count_bits(shard, length) for shard in shards], most)
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    total, discarded = (sum(column) for column in zip(*known, strict=True))
    items = estimate_count(total, size.num_bits, size.num_hashes)
    # An item with a tombstone has its bits still.
    return Counted(max(0, round(items) - discarded), total, discarded=discarded)


def _count_bits(
    shard: Shard, length: int, first: int = FIRST_BYTE, cardinality: str = "SCARD"
) -> Core[tuple[int, int] | None]:
    """Return how many bits are set, and how many items have a tombstone."""
    total, key, table = 0, shard.key, discards_key(shard.key)
    discarded, end = 0, first + length
    commands = [
        encode_command("BITCOUNT", key, start, min(start + COUNTED_BYTES_PER_COMMAND, end) - 1)
        for start in range(first, end, COUNTED_BYTES_PER_COMMAND)
    ]
    for trip in range(0, len(commands), COMMANDS_PER_TRIP):
        *counts, members, start = yield from ask(
            key,
            *commands[trip : trip + COMMANDS_PER_TRIP],
            encode_command(cardinality, table),
            header_command(key),
        )
        if plain_header(start) != shard.header:
            return None
        total += sum(counts)
        # The sentinel is none; a set that is left of another generation says nothing.
        discarded = max(0, members - 1) if has_discards(header_from_bytes(start)) else 0
    return total, discarded


def count_slices(descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
    """Count the items of shards in all slices that count; an item in two of them counts twice."""
    asked = [_count_bits_of_slices(descriptor, shard) for shard in shards]
    found = yield from in_parallel(asked)
    items = rate = fullest = 0.0
    bits_set = num_bits = most = discarded = 0
    for counted in found:
        if counted is None:
            return None
        counts, dead = counted
        discarded += dead
        rates = []
        for part, bits in counts:
            held = estimate_count(bits, part.bits, part.num_hashes)
            fill = bits / part.bits
            whole = 0.0
            if not descriptor.seeds:
                whole = whole_collisions(fill, part.bits, part.num_hashes)
            rates.append(error_rate_at_fill(fill, part.num_hashes) + whole)
            items, fullest = items + held, max(fullest, held)
            bits_set, num_bits = bits_set + bits, num_bits + part.bits
        rate += compound_error_rate(rates) / len(shards)
        most = max(most, len(counts))
    left = max(0, round(items) - discarded)
    if (window := descriptor.window) is not None:
        most_items = round(fullest * len(shards) * window.slices)
        return Counted(left, bits_set, rate, most_items, discarded)
    return Counted(left, bits_set, rate, num_bits=num_bits, discarded=discarded, slices=most)


def _count_bits_of_slices(
    descriptor: Descriptor, shard: Shard
) -> Core[tuple[list[tuple[Slice, int]], int] | None]:
    """Return the slices that count of a shard with their bits that are set, and its tombstones.

    None if it is of another generation.
    """
    start, time = yield from ask(shard.key, start_command(shard.key), encode_command("TIME"))
    if len(start) < FIRST_BYTE or plain_header(start[:HEADER_BYTES]) != shard.header:
        return None
    now_us = int(time[0]) * 10**6 + int(time[1])
    cardinality = "ZCARD" if descriptor.window else "SCARD"
    counts, discarded = [], 0
    for part in live_slices(descriptor.slices, descriptor.epoch_us, start, now_us):
        found = yield from _count_bits(shard, part.size, part.first_byte, cardinality)
        if found is None:
            return None
        bits, discarded = found
        counts.append((part, bits))
    return counts, discarded


def count_servers_own(descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
    """Return how many items the server has counted itself."""
    counts = yield from in_parallel([_count_own(shard) for shard in shards])
    if None in counts:
        return None
    items, size = sum(count or 0 for count in counts), descriptor.size
    filled = -math.expm1(-size.num_hashes * items / size.num_bits)
    return Counted(items, round(filled * size.num_bits))


def _count_own(shard: Shard) -> Core[int | None]:
    own = native_key(shard.key, generation_of(shard.header))
    number, there, start = yield from ask(
        shard.key,
        encode_command("BF.CARD", own),
        encode_command("EXISTS", own),
        header_command(shard.key),
    )
    return int(number) if there and plain_header(start) == shard.header else None
