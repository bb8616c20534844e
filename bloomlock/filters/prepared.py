"""A generation that is filled beside what has the filter's name, and then put in its place.

Each shard is prepared at a key that carries the generation, so clients that prepare at the same
time, or go on after they were given up, do not meet. What has the name stays in use until the
switch. Prepared keys have a time-out, so what a killed process leaves goes by itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import (
    DISCARDED,
    HEADER_BYTES,
    PLACING,
    Descriptor,
    has_discards,
    unflagged,
)
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError
from bloomlock.keys import PREPARED_SECONDS, discards_key, prepared_key
from bloomlock.parallel import in_parallel
from bloomlock.strategies.base import header_command, header_from_bytes

from .files import RECORD_BYTES, SHARD_BYTES, Layout
from .generation import kind_of, new_generation, set_header
from .placing import PLACED_SECONDS, discard_prepared, prepare
from .stored_filter import check_room, look
from .switch import put, retried, settle
from .tombstones import write_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys

    from .files import Part


class Prepared:
    """A generation that is being prepared; `what` prepares it, for messages."""

    expected: Descriptor | None = None
    """The closed filter that is replaced; None: whatever is there."""

    def __init__(
        self, keys: FilterKeys, model: Descriptor, origin: str, *, may_replace: bool, what: str
    ) -> None:
        self.target = model.with_generation(0, PLACING, origin=origin)
        self.keys = keys
        self._is_sorted = kind_of(model).is_sorted
        self._may_replace = may_replace
        self._what = what

    def begin(self, layout: Layout, *, refused: int = 0) -> Core[None]:
        """Take the memory; `refused` is the header of a filter that may not be replaced."""
        self._layout = layout
        self._refuse_taken((yield from look(self.keys)).descriptor, refused)
        yield from check_room(self.keys, self.target, self.target.shard_bytes(layout.slices))

        def step() -> Core[None]:
            target = self.target
            self.target = target.with_generation(new_generation(), PLACING, origin=target.origin)
            yield from prepare(self.keys, self.target, layout.image)

        yield from retried(self.keys, step)

    def _key(self, shard: int) -> str:
        return prepared_key(self.keys.bits(shard), self.target.generation)

    def write(self, parts: Sequence[Part]) -> Core[None]:
        writes = []
        for part in parts:
            if part.shard < self._layout.shards:
                writes.append(self._write_bits(part))
            else:
                writes += [self._write_set(*one) for one in _by_shard(part.data).items()]
        yield from in_parallel(writes)

    def _write_bits(self, part: Part) -> Core[None]:
        key, skipped = self._key(part.shard), max(0, HEADER_BYTES - part.start)
        yield from ask(
            key,
            encode_command("SETRANGE", key, part.start + skipped, bytes(part.data[skipped:])),
            encode_command("EXPIRE", key, PREPARED_SECONDS),
        )

    def _write_set(self, shard: int, records: Sequence[bytes]) -> Core[None]:
        key = self._key(shard)
        (found,) = yield from ask(key, header_command(key))
        yield from ask(key, set_header(key, header_from_bytes(found) | DISCARDED))
        yield from write_set(key, self.target.header, records, is_sorted=self._is_sorted)

    def switch(self) -> Core[None]:
        yield from retried(self.keys, self._put)

    def _put(self) -> Core[None]:
        found = yield from look(self.keys)
        stored, expected, target = found.descriptor, self.expected, self.target
        if stored is not None and stored.generation == target.generation:
            # An earlier try was carried out, and its reply was lost.
            if (yield from settle(self.keys, found)).gone is not None:
                raise self._lost()
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
        # Only after the look: a helper may have placed these shards since the last try, and another
        # client may have put a later generation in their place.
        yield from in_parallel([self._keep(shard) for shard in range(self._layout.shards)])
        planned = target.with_generation(target.generation, origin=target.origin, root=root)
        yield from put(self.keys, found, planned)

    def _keep(self, shard: int) -> Core[None]:
        """Compare a shard's header, which a key that was lost since has not, and keep it."""
        key = self._key(shard)
        start, length, _, is_set_there = yield from ask(
            key,
            header_command(key),
            encode_command("STRLEN", key),
            encode_command("EXPIRE", key, PLACED_SECONDS),
            # 0 if there is none.
            encode_command("EXPIRE", discards_key(key), PLACED_SECONDS),
        )
        header = header_from_bytes(start)
        is_whole = self.target.has_header(unflagged(header)) and length >= self._layout.image
        if not is_whole or (has_discards(header) and not is_set_there):
            raise self._lost()

    def give_up(self) -> Core[None]:
        """Delete what was prepared; what fails goes by itself later."""
        with suppress(RedisError, BloomlockError):
            yield from discard_prepared(self.keys, self.target)

    def _refuse_taken(self, stored: Descriptor | None, refused: int) -> None:
        if stored is not None and stored.header == refused:
            raise ConfigurationError(f"filter {self.keys.name!r} cannot take the place of itself")
        if stored is not None and not self._may_replace:
            raise ConfigurationError(f"name {self.keys.name!r} is taken by another filter")

    def _lost(self) -> FilterLostError:
        return FilterLostError(
            f"filter {self.keys.name!r}: what {self._what} had prepared is gone from the server "
            "(evicted, deleted or flushed)"
        )


def _by_shard(data: bytes | memoryview) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for at in range(0, len(data), RECORD_BYTES):
        record = bytes(data[at : at + RECORD_BYTES])
        number = int.from_bytes(record[:SHARD_BYTES], "big")
        found.setdefault(number, []).append(record[SHARD_BYTES:])
    return found
