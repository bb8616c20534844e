"""A generation that is filled beside what has the filter's name, and then put in its place.

Each shard is prepared at a key that carries the generation, so clients that prepare at the same
time, or go on after they were given up, do not meet. What has the name stays in use until the
switch. Prepared keys have a time-out, so what a killed process leaves goes by itself.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.commands import encode_command
from bloomlock.delivery import ask, check, deliver
from bloomlock.descriptor import (
    DISCARDED,
    HEADER_BYTES,
    PLACING,
    Descriptor,
    has_discards,
    unflagged,
)
from bloomlock.effects import ConnectionLost, Core, Request
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError
from bloomlock.keys import PREPARED_SECONDS, discards_key, prepared_key
from bloomlock.parallel import in_parallel
from bloomlock.strategies.base import header_command, header_from_bytes

from .file_format import RECORD_BYTES
from .generation import new_generation
from .kinds import kind_of, lengthen, set_header
from .placing import PLACED_SECONDS, NotPreparedError, discard_prepared
from .room import check_room
from .stored_filter import look
from .switch import PLACED_BYTES, put, retried, settle
from .tombstones import has_set, write_set

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys


class Prepared:
    """A generation that is being prepared.

    Args:
        keys: The filter's keys.
        model: The filter's parameters.
        origin: "copy", "import" or "rebuild".
        may_replace: Whether a filter that is there is replaced, or else an error.
        what: What prepares it, for messages.

    Attributes:
        target: Its descriptor.
        keys: The filter's keys.
        expected: The closed filter that is replaced; None: whatever is there.
    """

    expected: Descriptor | None = None

    def __init__(
        self, keys: FilterKeys, model: Descriptor, origin: str, *, may_replace: bool, what: str
    ) -> None:
        self.target = model.with_generation(0, PLACING, origin=origin)
        self.keys = keys
        self._kind = kind_of(self.target)
        self._may_replace = may_replace
        self._what = what

    def begin(self, *, refused: int = 0, slices: int = 1) -> Core[None]:
        """Take the memory.

        Args:
            refused: The header of a filter that may not be replaced, as it is the source.
            slices: The most slices that a shard will have, if it grows.

        Raises:
            ConfigurationError: If the name is taken, or the server has not the memory.

        Cost: four round trips; the server's memory for the full capacity is taken.
        """
        self._refuse_taken((yield from look(self.keys)).descriptor, refused)
        yield from check_room(self.keys, self.target, replaces=False, slices=slices)
        most = max(1, PLACED_BYTES // self._kind.string_bytes(self.target))
        yield from retried(self.keys, lambda: self._prepare_all(most))

    def _prepare_all(self, most: int) -> Core[None]:
        """Prepare all shards of a new generation."""
        made = self.target.with_generation(new_generation(), PLACING, origin=self.target.origin)
        self.target = made
        try:
            yield from in_parallel([self._prepare(n) for n in range(made.size.shards)], most)
        except (RedisError, BloomlockError, ConnectionLost):
            yield from self.give_up()
            raise

    def key(self, shard: int) -> str:
        """Return the key at which a shard is prepared."""
        return prepared_key(self.keys.bits(shard), self.target.generation)

    def lengthen(self, shard: int, slices: int) -> Core[None]:
        """Give a shard of a filter that grows the length of that many slices; may be repeated."""
        yield from lengthen(self.key(shard), self._kind.string_bytes(self.target, slices))

    def write(self, shard: int, start: int, data: bytes | memoryview) -> Core[None]:
        """Write bytes of a shard's string; may be repeated."""
        skipped = max(0, HEADER_BYTES - start)
        if skipped < len(data):
            key = self.key(shard)
            yield from ask(
                key,
                encode_command("SETRANGE", key, start + skipped, bytes(data[skipped:])),
                encode_command("EXPIRE", key, PREPARED_SECONDS),
            )

    def read(self, shard: int, start: int, size: int) -> Core[bytes]:
        """Return bytes of a shard's string as they are prepared, with its header as in a file."""
        key = self.key(shard)
        (data,) = yield from ask(key, encode_command("GETRANGE", key, start, start + size - 1))
        if start:
            return bytes(data)
        return bytes(HEADER_BYTES) + bytes(data[HEADER_BYTES:])

    def write_table(self, shard: int, start: int, data: bytes | memoryview) -> Core[None]:
        """Write a part of the tombstones of a shard, whose string is whole; may be repeated.

        The shard gets the flag of discards.
        """
        key = self.key(shard)
        if not start:
            (found,) = yield from ask(key, header_command(key))
            yield from ask(key, set_header(key, header_from_bytes(found) | DISCARDED))
        records, is_sorted = _records(start, data), self._kind.is_sorted
        yield from write_set(key, self.target.header, records, is_sorted=is_sorted)

    def table_is_as_written(self, shard: int, start: int, data: bytes | memoryview) -> Core[bool]:
        """Return whether a part of a table that was written is still there as it was written."""
        records, is_sorted = _records(start, data), self._kind.is_sorted
        return has_set(self.key(shard), self.target.header, records, is_sorted=is_sorted)

    def switch(self) -> Core[None]:
        """Make the generation the filter's.

        Raises:
            FilterLostError: If what was prepared is gone, or the closed filter is not there.
            ConfigurationError: If the name was taken by another client.

        Cost: three round trips, seven if there are several shards.
        """
        shards = range(self.target.size.shards)
        kept = yield from in_parallel([self._keep(shard) for shard in shards])
        try:
            yield from retried(self.keys, lambda: self._put(discards=kept[0]))
        except NotPreparedError:
            raise self._lost() from None

    def _put(self, *, discards: bool) -> Core[None]:
        found = yield from look(self.keys)
        stored, expected = found.descriptor, self.expected
        if stored is not None and stored.generation == self.target.generation:
            # An earlier try was carried out, and its reply was lost.
            if (yield from settle(self.keys, found)).gone is not None:
                raise NotPreparedError
            return
        root = 0
        if expected is not None:
            if not expected.is_same(stored):
                raise FilterLostError(
                    f"filter {self.keys.name!r} was deleted or replaced while it was filled by "
                    f"{self._what}"
                )
            root = expected.root
        else:
            found = yield from settle(self.keys, found)
            self._refuse_taken(found.descriptor, 0)
        target = self.target
        planned = target.with_generation(target.generation, origin=target.origin, root=root)
        yield from put(self.keys, found, replace(planned, discards=discards))

    def give_up(self) -> Core[None]:
        """Delete what was prepared; what fails goes by itself later."""
        with suppress(RedisError, BloomlockError):
            yield from discard_prepared(self.keys, self.target)

    def _refuse_taken(self, stored: Descriptor | None, refused: int) -> None:
        if stored is not None and stored.header == refused:
            raise ConfigurationError(f"filter {self.keys.name!r} cannot take the place of itself")
        if stored is not None and not self._may_replace:
            raise ConfigurationError(f"name {self.keys.name!r} is taken by another filter")

    def _prepare(self, shard: int) -> Core[None]:
        """Make a shard of zeros, and then give it its header, by a request that is sent once.

        Nothing is written before. If the server loses the key after that, later writes make one
        without a header.
        """
        key, size = self.key(shard), self._kind.string_bytes(self.target)
        expiry = encode_command("EXPIRE", key, PREPARED_SECONDS)
        yield from ask(key, encode_command("SETRANGE", key, size - 1, b"\0"), expiry)
        header = set_header(key, self.target.header)
        try:
            check((yield from deliver(Request(key, [header, expiry]), repeatable=False)))
        except ConnectionLost as lost:
            # See `switch`: a second header might be written when the generation is in use.
            (start,) = yield from ask(key, header_command(key))
            if not lost.sent or header_from_bytes(start) != self.target.header:
                raise

    def _keep(self, shard: int) -> Core[bool]:
        """Compare a shard's header, which a key that was lost meanwhile has not, and keep it."""
        key = self.key(shard)
        start, length, _, is_set_there = yield from ask(
            key,
            header_command(key),
            encode_command("STRLEN", key),
            encode_command("EXPIRE", key, PLACED_SECONDS),
            # 0 if there is none.
            encode_command("EXPIRE", discards_key(key), PLACED_SECONDS),
        )
        header = header_from_bytes(start)
        whole = self.target.has_header(unflagged(header))
        whole = whole and length >= self._kind.string_bytes(self.target)
        if not whole or (has_discards(header) and not is_set_there):
            raise self._lost()
        return has_discards(header)

    def _lost(self) -> FilterLostError:
        return FilterLostError(
            f"filter {self.keys.name!r}: what {self._what} had prepared is gone from the server "
            "(evicted, deleted or flushed)"
        )


def _records(start: int, data: bytes | memoryview) -> list[bytes]:
    """Return what a part of a table has; the first record is their number."""
    first = 0 if start else RECORD_BYTES
    return [bytes(data[at : at + RECORD_BYTES]) for at in range(first, len(data), RECORD_BYTES)]
