"""What a shard holds beside its header: a bitmap in the same string, or a filter of the server's.

A filter that the server has itself (BF.*) is a key of its own beside a string of the header alone.
The key carries the generation. It is written, and deleted, in the same transaction as the header.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from bloomlock.arrays import np
from bloomlock.descriptor import (
    FORGETTING,
    GENERATION_BITS,
    HEADER_BYTES,
    generation_of,
    slices_of,
)
from bloomlock.effects import Core, Request, ask, check, encode_command, is_missing
from bloomlock.errors import ConfigurationError
from bloomlock.growth import compound_error_rate
from bloomlock.keys import forgotten_key, native_key
from bloomlock.native import EXPANSION
from bloomlock.parallel import in_parallel
from bloomlock.sizing import (
    error_rate_at_fill,
    estimate_count,
    shard_capacity,
    whole_collisions,
)
from bloomlock.strategies.base import header_command, header_from_bytes, plain_header
from bloomlock.strategies.native import is_no_key
from bloomlock.windows import STATE_BYTES, State

from . import combining

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.strategies import Shard

COUNTED_BYTES_PER_COMMAND = 16 * 1024 * 1024
"""About 2 ms of the server's time."""

COMMANDS_PER_TRIP = 8
SAMPLED_BYTES = 64 * 1024
COPIED_BYTES_PER_TRIP = 1024 * 1024
VERSIONS_PER_TRIP = 1000
COPIED_SECONDS = 24 * 3600
"""How long versions that are copied outlive a client that dies before they are in their place."""


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


class Contents(ABC):
    """What the shards of a filter are.

    Attributes:
        is_counted: Whether the server keeps count of the items.
    """

    is_counted = False

    @abstractmethod
    def string_bytes(self, descriptor: Descriptor, header: int = 0) -> int:
        """Return the length of a shard's string with this header; 0: that has not grown."""

    @abstractmethod
    def empty_shard(self, key: str, descriptor: Descriptor) -> list[bytes]:
        """Return the commands that replace a shard by an empty one."""

    @abstractmethod
    def keys(self, key: str, header: int) -> tuple[str, ...]:
        """Return the keys of a shard with this header, beside its string."""

    @abstractmethod
    def is_there(self, key: str, header: int, *, hold: bool) -> Core[bool | None]:
        """Return whether a shard has what its header says; None if the header has changed.

        Args:
            key: Of its string.
            header: As it was just read.
            hold: Whether the connection is held, and is to be held on.
        """

    @abstractmethod
    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """Count the items; None if the filter changed meanwhile."""

    @abstractmethod
    def copy(self, source: Shard, prepared: str, key: str, target: Descriptor) -> Core[bool]:
        """Copy a shard; False if it changed meanwhile. What is copied again is the same.

        Args:
            source: The shard.
            prepared: Where the string of the copy is until it has all; it has its header.
            key: Where that string will be.
            target: Of the copy.
        """

    def check_may_copy(self, shard: Shard) -> Core[None]:  # noqa: ARG002 - strings can be copied
        """Raise ConfigurationError if the server cannot give out what a shard holds."""
        yield from ()

    def check_may_rename(self) -> None:  # noqa: B027 - what is one string may
        """Raise ConfigurationError if a filter cannot get another name."""

    def check_has_bits(self, method: str) -> None:  # noqa: B027 - a bitmap has bits
        """Raise ConfigurationError if a method that needs the bits cannot be had."""


class Bitmap(Contents):
    """A bitmap behind the header, in the same string."""

    def string_bytes(self, descriptor: Descriptor, header: int = 0) -> int:
        """See Contents.string_bytes."""
        return descriptor.string_bytes_with(header)

    def empty_shard(self, key: str, descriptor: Descriptor) -> list[bytes]:
        """See Contents.empty_shard.

        The full length is taken at once, so a server without the memory says so now and not later.
        """
        last = self.string_bytes(descriptor) - 1
        return [encode_command("SETRANGE", key, last, b"\0"), set_header(key, descriptor)]

    def keys(self, key: str, header: int) -> tuple[str, ...]:  # noqa: ARG002 - all is in the string
        """See Contents.keys."""
        return ()

    def is_there(
        self,
        key: str,  # noqa: ARG002 - the bitmap is there if its header is
        header: int,  # noqa: ARG002
        *,
        hold: bool,  # noqa: ARG002
    ) -> Core[bool | None]:
        """See Contents.is_there."""
        yield from ()
        return True

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Contents.count.

        Cost: all bitmaps are read by the server, at most 16 MiB in one command; one round trip for
        each 128 MiB.
        """
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

    def copy(
        self,
        source: Shard,
        prepared: str,
        key: str,  # noqa: ARG002 - all is prepared beside the string
        target: Descriptor,
    ) -> Core[bool]:
        """See Contents.copy; what was forgotten before is forgotten in the copy."""
        if (yield from self._copy_bits(source, prepared, target)):
            return True
        flagged = source._replace(header=source.header | FORGETTING)
        (start,) = yield from ask(source.key, header_command(source.key))
        if header_from_bytes(start) != flagged.header:
            return False
        # Bits that are read after the versions have all that these stand for.
        yield from _copy_versions(source, prepared)
        if not (yield from self._copy_bits(flagged, prepared, target)):
            return False
        flags = (FORGETTING >> GENERATION_BITS).to_bytes(1, "big")
        yield from ask(prepared, encode_command("SETRANGE", prepared, 1, flags))
        return True

    def _copy_bits(self, source: Shard, prepared: str, target: Descriptor) -> Core[bool]:
        """Copy the bits of a shard that has exactly this header; False if it has another."""
        size = self.string_bytes(target)
        copied = combining.Target(prepared, target.header)
        for piece in chain.from_iterable(combining.pieces(1, size, travels=False)):
            done = yield from combining.combine(copied, "OR", (source,), piece)
            if done is None:
                return (yield from self._copy_through_client(source, prepared, size))
            if done != combining.DONE:
                return False
        return True

    def _copy_through_client(self, source: Shard, prepared: str, size: int) -> Core[bool]:
        """Copy a shard where the server runs no scripts, or the keys lie in different slots."""
        for start in range(HEADER_BYTES, size, COPIED_BYTES_PER_TRIP):
            end = min(start + COPIED_BYTES_PER_TRIP, size) - 1
            chunk, header = yield from ask(
                source.key,
                encode_command("GETRANGE", source.key, start, end),
                header_command(source.key),
            )
            if header_from_bytes(header) != source.header:
                return False
            yield from ask(prepared, encode_command("SETRANGE", prepared, start, chunk))
        return True


class Cells(Bitmap):
    """Cells of slices behind header and state, for a time window."""

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Contents.count; what was added in two slices counts twice.

        Cost: at most 64 KiB of each shard are read; one round trip.
        """
        most = max(1, COUNTED_BYTES_PER_COMMAND // SAMPLED_BYTES)
        counts = yield from in_parallel([self.sample(descriptor, one) for one in shards], most)
        if None in counts:
            return None
        return _sum_of_slices(descriptor, [one for one in counts if one is not None])

    def sample(self, descriptor: Descriptor, shard: Shard) -> Core[list[float] | None]:
        """Return for each live slice the part of its bits that is set, from some of the cells."""
        window, key = descriptor.window, shard.key
        assert window is not None  # noqa: S101 - for the type checker
        start, first = HEADER_BYTES, HEADER_BYTES + STATE_BYTES
        head, some, time = yield from ask(
            key,
            encode_command("GETRANGE", key, 0, start + STATE_BYTES - 1),
            encode_command("GETRANGE", key, first, first + SAMPLED_BYTES - 1),
            encode_command("TIME"),
        )
        if header_from_bytes(head[:start]) != shard.header or not some:
            return None
        turned_to = State.of(int.from_bytes(head[start:], "big")).epoch
        now = window.epoch_at(int(time[0]) * 10**6 + int(time[1]))
        cells = np.frombuffer(some, f">u{window.cell_bits // 8}")
        live = window.live_mask(turned_to, now)
        return [
            np.count_nonzero(cells & (1 << number)) / len(cells)
            for number in range(window.cell_bits)
            if live >> number & 1
        ]

    def check_may_copy(self, shard: Shard) -> Core[None]:  # noqa: ARG002
        """See Contents.check_may_copy."""
        yield from ()
        raise ConfigurationError("copy() is not possible with window=")

    def check_has_bits(self, method: str) -> None:
        """See Contents.check_has_bits."""
        raise ConfigurationError(f"{method} is not possible with window=")


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


class Slices(Bitmap):
    """The slices of a filter that grows, one behind the other in the same string."""

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Contents.count. An item is in one slice, so those of all slices are added up."""
        asked = [_count_slices(descriptor, shard) for shard in shards]
        found = yield from in_parallel(asked)
        items = rate = 0.0
        bits_set = num_bits = most = 0
        for counts in found:
            if counts is None:
                return None
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
        return Counted(round(items), bits_set, rate, num_bits=num_bits, slices=most)

    def check_may_copy(self, shard: Shard) -> Core[None]:  # noqa: ARG002 - no shard can be copied
        """See Contents.check_may_copy."""
        yield from ()
        self.check_has_bits("copy()")

    def check_may_rename(self) -> None:
        """See Contents.check_may_rename."""
        self.check_has_bits("rename()")

    def check_has_bits(self, method: str) -> None:
        """See Contents.check_has_bits."""
        raise ConfigurationError(
            f"{method} is not possible with a filter that grows (on_full='grow'), whose slices "
            "differ in size"
        )


class ServersOwn(Contents):
    """A Bloom filter that the server has itself, at a key of its own for each generation."""

    is_counted = True

    def string_bytes(
        self,
        descriptor: Descriptor,  # noqa: ARG002 - the header alone
        header: int = 0,  # noqa: ARG002
    ) -> int:
        """See Contents.string_bytes."""
        return HEADER_BYTES

    def empty_shard(self, key: str, descriptor: Descriptor) -> list[bytes]:
        """See Contents.empty_shard."""
        items = shard_capacity(descriptor.capacity, descriptor.size.shards)
        own = native_key(key, descriptor.generation)
        rate = repr(descriptor.error_rate)
        reserve = encode_command("BF.RESERVE", own, rate, items, "EXPANSION", EXPANSION)
        return [encode_command("UNLINK", own), reserve, set_header(key, descriptor)]

    def keys(self, key: str, header: int) -> tuple[str, ...]:
        """See Contents.keys."""
        return (native_key(key, generation_of(header)),)

    def is_there(self, key: str, header: int, *, hold: bool) -> Core[bool | None]:
        """See Contents.is_there."""
        own = native_key(key, generation_of(header))
        commands = [encode_command("EXISTS", own), header_command(key)]
        if hold:
            # Sent once: on another connection there would be no WATCH.
            there, start = check((yield Request(key, commands, hold=True)))
        else:
            there, start = yield from ask(key, *commands)
        return bool(there) if plain_header(start) == header else None

    def count(self, descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
        """See Contents.count. Cost: one round trip."""
        counts = yield from in_parallel([_count_own(shard) for shard in shards])
        if None in counts:
            return None
        items, size = sum(count or 0 for count in counts), descriptor.size
        filled = -math.expm1(-size.num_hashes * items / size.num_bits)
        return Counted(items, round(filled * size.num_bits))

    def copy(
        self,
        source: Shard,
        prepared: str,  # noqa: ARG002 - the header is all of the string
        key: str,
        target: Descriptor,
    ) -> Core[bool]:
        """See Contents.copy; the key carries the generation, so no client takes it for a whole."""
        own = native_key(source.key, generation_of(source.header))
        copied = native_key(key, target.generation)
        # A try that was cut off may have left the first chunk, which is refused where one is.
        loads = [encode_command("UNLINK", copied)]
        cursor = 0
        while True:
            try:
                (cursor, chunk), header = yield from ask(
                    source.key,
                    encode_command("BF.SCANDUMP", own, cursor),
                    header_command(source.key),
                )
            except ResponseError as error:
                if not is_no_key(error):
                    raise
                return False
            if plain_header(header) != source.header:
                return False
            if not cursor:
                return True
            loads.append(encode_command("BF.LOADCHUNK", copied, cursor, chunk))
            yield from ask(copied, *loads)
            loads = []

    def check_may_copy(self, shard: Shard) -> Core[None]:
        """See Contents.check_may_copy."""
        own = native_key(shard.key, generation_of(shard.header))
        try:
            yield from ask(own, encode_command("BF.SCANDUMP", own, 0))
        except ResponseError as error:
            if is_missing(error):
                raise ConfigurationError(
                    "copy() with strategy 'native' needs BF.SCANDUMP and BF.LOADCHUNK, which the "
                    f"server refuses ({error})"
                ) from None

    def check_has_bits(self, method: str) -> None:
        """See Contents.check_has_bits."""
        raise ConfigurationError(
            f"{method} is not possible with strategy 'native': the server does not say where it "
            "puts the bits of an item"
        )


def _copy_versions(source: Shard, prepared: str) -> Core[None]:
    """Copy the versions of forgotten items beside the shard that is prepared at a key."""
    table, copied, cursor = forgotten_key(source.key), forgotten_key(prepared), 0
    yield from ask(copied, encode_command("UNLINK", copied))
    while True:
        ((cursor, found),) = yield from ask(
            table, encode_command("HSCAN", table, cursor, "COUNT", VERSIONS_PER_TRIP)
        )
        if found:
            expiry = encode_command("EXPIRE", copied, COPIED_SECONDS)
            yield from ask(copied, encode_command("HSET", copied, *found), expiry)
        if not int(cursor):
            return


def _count_slices(descriptor: Descriptor, shard: Shard) -> Core[list[int] | None]:
    """Return the bits set in each slice of a shard; None if it is of another generation."""
    (start,) = yield from ask(shard.key, header_command(shard.key))
    header = header_from_bytes(start)
    if not descriptor.has_header(header):
        return None
    counts = []
    for part in descriptor.slices[: slices_of(header)]:
        found = yield from _count_bits(shard, part.end_byte - part.first_byte, part.first_byte)
        if found is None:
            return None
        counts.append(found[0])
    return counts


def _count_bits(
    shard: Shard, length: int, first: int = HEADER_BYTES
) -> Core[tuple[int, int] | None]:
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


def _count_own(shard: Shard) -> Core[int | None]:
    own = native_key(shard.key, generation_of(shard.header))
    number, there, start = yield from ask(
        shard.key,
        encode_command("BF.CARD", own),
        encode_command("EXISTS", own),
        header_command(shard.key),
    )
    return int(number) if there and plain_header(start) == shard.header else None


def set_header(key: str, descriptor: Descriptor) -> bytes:
    """Return the command that writes the header of a shard."""
    return encode_command("SETRANGE", key, 0, descriptor.header.to_bytes(HEADER_BYTES, "big"))


BITMAP, CELLS, SLICES, SERVERS_OWN = Bitmap(), Cells(), Slices(), ServersOwn()


def contents_of(descriptor: Descriptor) -> Contents:
    """Return what the shards of a filter are."""
    if descriptor.window is not None:
        return CELLS
    if descriptor.slices:
        return SLICES
    return SERVERS_OWN if descriptor.is_native else BITMAP
