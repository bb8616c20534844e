"""How full the shards of a filter are: bits that the server counts, a sample, or its own count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.arrays import np
from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES, generation_of, says_forgotten, slices_of
from bloomlock.growth import compound_error_rate
from bloomlock.keys import forgotten_key, native_key
from bloomlock.parallel import in_parallel
from bloomlock.sizing import FIRST_BYTE, error_rate_at_fill, estimate_count, whole_collisions
from bloomlock.strategies.base import header_command, header_from_bytes, plain_header
from bloomlock.strategies.cells import TIME, microseconds
from bloomlock.windows import STATE_BYTES, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

COUNTED_BYTES_PER_COMMAND = 16 * 1024 * 1024
"""About 2 ms of the server's time."""

COMMANDS_PER_TRIP = 8
SAMPLED_BYTES = 64 * 1024


class Counted(NamedTuple):
    """How full a filter is.

    Attributes:
        items: Distinct items, estimated or known.
        bits_set: Bits that are 1, counted or expected.
        error_rate: The false-positive rate, where it does not follow from the bits that are 1.
        fullest: With a window, items of a filter whose slices are all as full as the fullest.
        forgotten: How often any item was forgotten.
        num_bits: Bits of all slices of a filter that grows; 0: as the descriptor says.
        slices: The most that a shard of a filter that grows has.
    """

    items: int
    bits_set: int
    error_rate: float | None = None
    fullest: int = 0
    forgotten: int = 0
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
    total, forgotten = (sum(column) for column in zip(*known, strict=True))
    items = descriptor.formulas.estimate_count(total, size.num_bits, size.num_hashes)
    # Each time that an item is forgotten it leaves the bits of one.
    return Counted(max(0, round(items) - forgotten), total, forgotten=forgotten)


def _count_bits(shard: Shard, length: int, first: int = FIRST_BYTE) -> Core[tuple[int, int] | None]:
    """Return how many bits are set, and how often any item was forgotten."""
    total, key, table = 0, shard.key, forgotten_key(shard.key)
    forgotten, end = 0, first + length
    commands = [
        encode_command("BITCOUNT", key, start, min(start + COUNTED_BYTES_PER_COMMAND, end) - 1)
        for start in range(first, end, COUNTED_BYTES_PER_COMMAND)
    ]
    for trip in range(0, len(commands), COMMANDS_PER_TRIP):
        *counts, often, start = yield from ask(
            key,
            *commands[trip : trip + COMMANDS_PER_TRIP],
            encode_command("HGET", table, "count"),
            header_command(key),
        )
        if not shard.has_header(plain_header(start)):
            return None
        total += sum(counts)
        forgotten = int(often or 0)
    return total, forgotten


def count_cells(descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
    """Estimate the items of shards with a time window from some of their cells."""
    most = max(1, COUNTED_BYTES_PER_COMMAND // SAMPLED_BYTES)
    found = yield from in_parallel([_sample_cells(descriptor, one) for one in shards], most)
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    # An item that was forgotten counts until its slice is over.
    counted = _sum_of_slices(descriptor, [fills for fills, _ in known])
    return counted._replace(forgotten=sum(often for _, often in known))


def _sample_cells(descriptor: Descriptor, shard: Shard) -> Core[tuple[list[float], int] | None]:
    """Return for each live slice the part of its bits that is set, from some of the cells.

    And how often any item was forgotten.
    """
    window, key = descriptor.window, shard.key
    assert window is not None  # noqa: S101 - for the type checker
    start, first = HEADER_BYTES, FIRST_BYTE
    head, some, time = yield from ask(
        key,
        encode_command("GETRANGE", key, 0, start + STATE_BYTES - 1),
        encode_command("GETRANGE", key, first, first + SAMPLED_BYTES - 1),
        TIME,
    )
    if plain_header(head[:start]) != shard.header or not some:
        return None
    often = None
    if says_forgotten(header_from_bytes(head[:start])):
        (often,) = yield from ask(key, encode_command("HGET", forgotten_key(key), "count"))
    turned_to = State.of(int.from_bytes(head[start:], "big")).epoch
    now = window.epoch_at(microseconds(time))
    cells = np.frombuffer(some, f">u{window.cell_bits // 8}")
    live = window.live_mask(turned_to, now)
    fills = [
        float(np.count_nonzero(cells & (1 << number)) / len(cells))
        for number in range(window.cell_bits)
        if live >> number & 1
    ]
    return fills, int(often or 0)


def _sum_of_slices(descriptor: Descriptor, samples: Sequence[Sequence[float]]) -> Counted:
    size, estimate = descriptor.size, descriptor.formulas.estimate_count
    window = descriptor.window
    assert window is not None  # noqa: S101 - for the type checker
    items = bits_set = rate = fullest = 0.0
    for fills in samples:
        for fill in fills:
            bits = fill * size.shard_bits
            count = estimate(bits, size.shard_bits, size.num_hashes)
            items += count
            bits_set += bits
            rate += descriptor.formulas.error_rate_at_fill(fill, size.num_hashes) / len(samples)
            fullest = max(fullest, count)
    most = round(fullest * len(samples) * window.slices)
    return Counted(round(items), round(bits_set), min(1.0, rate), most)


def count_slices(descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
    """Count the items of shards that grow, in all their slices."""
    asked = [_count_bits_of_slices(descriptor, shard) for shard in shards]
    found = yield from in_parallel(asked)
    items = rate = 0.0
    bits_set = num_bits = most = forgotten = 0
    for counted in found:
        if counted is None:
            return None
        counts, often = counted
        forgotten += often
        rates = []
        for part, bits in zip(descriptor.slices, counts, strict=False):
            items += estimate_count(bits, part.bits, part.num_hashes)
            fill = bits / part.bits
            whole = whole_collisions(fill, part.bits, part.num_hashes)
            rates.append(error_rate_at_fill(fill, part.num_hashes) + whole)
            num_bits += part.bits
        rate += compound_error_rate(rates) / len(shards)
        bits_set += sum(counts)
        most = max(most, len(counts))
    left = max(0, round(items) - forgotten)
    return Counted(left, bits_set, rate, num_bits=num_bits, forgotten=forgotten, slices=most)


def _count_bits_of_slices(
    descriptor: Descriptor, shard: Shard
) -> Core[tuple[list[int], int] | None]:
    """Return the bits set in each slice of a shard, and how often any item was forgotten.

    None if it is of another generation.
    """
    (start,) = yield from ask(shard.key, header_command(shard.key))
    header = plain_header(start)
    if not descriptor.has_header(header):
        return None
    counts, forgotten = [], 0
    for part in descriptor.slices[: slices_of(header)]:
        found = yield from _count_bits(shard, part.end_byte - part.first_byte, part.first_byte)
        if found is None:
            return None
        bits, forgotten = found
        counts.append(bits)
    return counts, forgotten


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
