"""One generation of a filter as an object sees it, and how its shards are counted.

A view is replaced as a whole, so an operation that took one at its start is not confused by a clear
in another thread.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.commands import call, encode_command, in_parallel
from bloomlock.descriptor import (
    DISCARDED,
    GENERATION_BITS,
    HEADER_BYTES,
    generation_of,
    has_discards,
    header_bytes,
    header_from_bytes,
    plain_header,
)
from bloomlock.errors import FilterMismatchError
from bloomlock.keys import discards_key, native_key
from bloomlock.sizing import (
    FIRST_BIT,
    FIRST_BYTE,
    error_rate_at_fill,
    estimate_count,
    whole_collisions,
)
from bloomlock.slices import Slice, SliceState, compound_error_rate, live_slices, slices_in
from bloomlock.strategies import Shard
from bloomlock.strategies.base import header_command, start_command
from bloomlock.strategies.bitmap import image_bytes
from bloomlock.strategies.script import too_many_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.hashing import Hasher
    from bloomlock.keys import FilterKeys

PER_COMMAND = 16 * 1024 * 1024
"""Bytes that a command counts, in about 2 ms of the server's time."""

COMMANDS_PER_TRIP = 8


class Counted(NamedTuple):
    """How full a filter is.

    Attributes:
        error_rate: The false-positive rate, where it does not follow from the bits that are 1.
        fullest: With a window, items of a filter whose slices are all as full as the fullest.
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


def count_items(
    descriptor: Descriptor, shards: Sequence[Shard], sample: int | None = None
) -> Core[Counted | None]:
    """Count the items of shards in all slices that count; an item in two of them counts twice.

    `sample`: how many bytes of a slice speak for it. None if a shard has changed in between.
    """
    if descriptor.native:
        return (yield from _count_native(descriptor, shards))
    most = max(1, COMMANDS_PER_TRIP * PER_COMMAND // descriptor.shard_bytes())
    counting = [count_shard(descriptor, shard, sample) for shard in shards]
    found = yield from in_parallel(counting, most)
    items = rate = fullest = 0.0
    bits_set = num_bits = slices = discarded = 0
    for counted in found:
        if counted is None:
            return None
        bitmaps, dead = counted
        rates = []
        for part, bits in bitmaps:
            held = estimate_count(bits, part.bits, part.num_hashes)
            fill = bits / part.bits
            whole = 0.0 if descriptor.seeds else whole_collisions(fill, part.bits, part.num_hashes)
            rates.append(error_rate_at_fill(fill, part.num_hashes) + whole)
            items, fullest = items + held, max(fullest, held)
            bits_set, num_bits = bits_set + bits, num_bits + part.bits
        rate += compound_error_rate(rates) / len(shards)
        slices, discarded = max(slices, len(bitmaps)), discarded + dead
    # An item with a tombstone has its bits still.
    left = max(0, round(items) - discarded)
    if (window := descriptor.window) is not None:
        most_items = round(fullest * len(shards) * window.slices)
        return Counted(left, bits_set, rate, most_items, discarded)
    known = rate if descriptor.growth else None
    return Counted(left, bits_set, known, num_bits=num_bits, discarded=discarded, slices=slices)


def count_shard(
    descriptor: Descriptor, shard: Shard, sample: int | None = None
) -> Core[tuple[list[tuple[Slice, int]], int] | None]:
    """Return the slices that count with their bits that are 1, and the number of tombstones."""
    size, key = descriptor.size, shard.key
    parts: Sequence[Slice] = [Slice(FIRST_BIT, size.shard_bits, size.num_hashes, 0.0, 0, 0)]
    if descriptor.slices:
        # A generation never returns. One that ended between start and length ends the headers too.
        start, length, time, later = yield from call(
            key,
            start_command(key),
            encode_command("STRLEN", key),
            encode_command("TIME"),
            header_command(key),
        )
        headers = {plain_header(start[:HEADER_BYTES]), plain_header(later)}
        if len(start) < FIRST_BYTE or headers != {shard.header}:
            return None
        now_us = int(time[0]) * 10**6 + int(time[1])
        parts = live_slices(descriptor.slices, descriptor.epoch_us, start, now_us)
        if descriptor.growth and (slices := slices_in(start)) > len(descriptor.slices):
            raise too_many_slices(key, slices)
        # A shard that grows between the two is longer than its start says, not shorter.
        if descriptor.growth and length < descriptor.string_bytes(slices):
            raise FilterMismatchError(
                f"a filter is damaged: its string {key!r} has {length} bytes, too few for {slices} "
                "slices; delete the filter to start again"
            )
    spans = [
        range(part.first_byte, part.first_byte + min(part.size, sample or part.size), PER_COMMAND)
        for part in parts
    ]
    commands = [
        encode_command("BITCOUNT", key, at, min(at + PER_COMMAND, span.stop) - 1)
        for span in spans
        for at in span
    ]
    cardinality = "ZCARD" if descriptor.window else "SCARD"
    commands += encode_command(cardinality, discards_key(key)), header_command(key)
    replies: list[Any] = []
    for trip in range(0, len(commands), COMMANDS_PER_TRIP):
        replies += yield from call(key, *commands[trip : trip + COMMANDS_PER_TRIP])
    *counts, members, start = replies
    if plain_header(start) != shard.header:
        return None
    numbers, found = iter(counts), []
    for part, span in zip(parts, spans, strict=True):
        counted = min(part.bits, 8 * (span.stop - span.start))
        found.append((part, sum(islice(numbers, len(span))) * part.bits // counted))
    # The sentinel is none; a set that is left of another generation says nothing.
    return found, max(0, members - 1) if has_discards(header_from_bytes(start)) else 0


def _count_native(descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
    counts = yield from in_parallel([_count_own(shard) for shard in shards])
    if None in counts:
        return None
    items, size = sum(number or 0 for number in counts), descriptor.size
    filled = -math.expm1(-size.num_hashes * items / size.num_bits)
    return Counted(items, round(filled * size.num_bits))


def _count_own(shard: Shard) -> Core[int | None]:
    own = native_key(shard.key, generation_of(shard.header))
    number, there, start = yield from call(
        shard.key,
        encode_command("BF.CARD", own),
        encode_command("EXISTS", own),
        header_command(shard.key),
    )
    return int(number) if there and plain_header(start) == shard.header else None


def set_header(key: str, header: int) -> bytes:
    return encode_command("SETRANGE", key, 0, header_bytes(header))


@dataclass(frozen=True, slots=True)
class View:
    """Everything that stays constant for one generation.

    Attributes:
        header: What every shard starts with.
        image_bytes: Length of all shards' strings together.
        discards: Whether this object has heard of discarded items.
        expected: The header of an answer that brings no news: with the flag if it has.
    """

    descriptor: Descriptor
    header: int
    hasher: Hasher
    shards: tuple[Shard, ...]
    image_bytes: int
    discards: bool
    expected: int

    @classmethod
    def of(cls, keys: FilterKeys, descriptor: Descriptor) -> View:
        header, hasher, bits = descriptor.header, descriptor.hasher(), descriptor.size.shard_bits
        state = SliceState(hasher, descriptor.epoch_us, descriptor.slices)
        shards = []
        for number in range(descriptor.size.shards):
            if descriptor.slices:
                state = SliceState(hasher, descriptor.epoch_us, descriptor.slices)
            shards.append(Shard(keys.bits(number), header, bits, state))
        whole = sum(map(image_bytes, shards))
        expected = header | DISCARDED if descriptor.discards else header
        discards = descriptor.discards
        return cls(descriptor, header, hasher, tuple(shards), whole, discards, expected)


def new_generation() -> int:
    """Return a generation that no other clear or creation will get; never 0."""
    return secrets.randbelow(2**GENERATION_BITS - 1) + 1
