"""A generation that is prepared beside what has the filter's name, and put in its place as a whole.

Each shard is prepared at a key that carries the generation, so clients that prepare at the same
time, or go on after they were given up, do not meet. Where the name is free it is reserved by a
descriptor in the state "preparing", which other clients refuse. Where a filter is to be replaced,
that stays in use meanwhile.

The switch is one transaction in the slot of the first shard: the new descriptor, in the state
"placing", and the first shard. From then on the generation is the filter's, and any client that
attaches can rename the shards that are left. Prepared keys have a time-out, so what a killed
process leaves goes by itself.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.commands import EXEC, MULTI, UNWATCH, encode_command
from bloomlock.delivery import ask, check
from bloomlock.descriptor import (
    CLOSED,
    FORGETTING,
    HEADER_BYTES,
    PLACING,
    PREPARING,
    READY,
    Descriptor,
    says_forgotten,
    unflagged,
    with_slices,
)
from bloomlock.effects import Core, Request
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError
from bloomlock.keys import forgotten_key, prepared_key
from bloomlock.parallel import in_parallel
from bloomlock.slot_moves import through_moves
from bloomlock.strategies.base import header_command, header_from_bytes, plain_header

from .contents import SERVERS_OWN, contents_of, lengthen, set_header
from .file_format import image_start
from .lifecycle import ATTEMPTS, repeated
from .room import check_room
from .stored_filter import Found, look, look_and_watch
from .versions import PREPARED_SECONDS, is_as_written, write_table
from .writing import (
    EMPTIED_BYTES,
    Changed,
    complete,
    executed,
    place_commands,
    store_command,
    write_watched,
)

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys

PLACED_SECONDS = 7 * 24 * 3600
"""How long what is prepared lives once its generation is the filter's, until it is in its place."""


class Prepared:
    """A generation that is being prepared.

    Args:
        keys: The filter's keys.
        model: The filter's parameters.
        generation: The generation.
        may_replace: Whether a filter that is there is replaced, or else an error.
        what: What prepares it, for messages.

    Attributes:
        target: Its descriptor.
        keys: The filter's keys.
        expected: The header of the closed filter that is replaced; 0: whatever is there.
    """

    expected = 0

    def __init__(
        self,
        keys: FilterKeys,
        model: Descriptor,
        generation: int,
        *,
        may_replace: bool,
        what: str,
    ) -> None:
        self.target = model.with_generation(generation, PREPARING)
        self.keys = keys
        self._contents = contents_of(self.target)
        self._may_replace = may_replace
        self._is_reserved = False
        self._what = what
        self._broken: set[int] = set()

    def begin(self, *, reserve: bool = True, refused: int = 0, slices: int = 1) -> Core[None]:
        """Take the memory, and the name where it is free.

        Args:
            reserve: Whether a free name is taken; else the filter must be there.
            refused: The header of a filter that may not be replaced, as it is the source.
            slices: The most slices that a shard will have, if it grows.

        Raises:
            ConfigurationError: If the name is taken, or the server has not the memory.

        Cost: four round trips; the server's memory for the full capacity is taken.
        """
        yield from check_room(self.keys, self.target, replaces=False, slices=slices)
        if reserve:
            yield from self._reserve(refused)
        size = self._contents.string_bytes(self.target)
        shards = range(self.target.size.shards)
        most = max(1, EMPTIED_BYTES // size)
        yield from in_parallel([self._prepare(shard) for shard in shards], most)

    def key(self, shard: int) -> str:
        """Return the key at which a shard is prepared."""
        return prepared_key(self.keys.bits(shard), self.target.generation)

    def lengthen(self, shard: int, slices: int) -> Core[None]:
        """Give a shard of a filter that grows the length of that many slices; may be repeated."""
        header = with_slices(self.target.header, slices)
        size = self._contents.string_bytes(self.target, header)
        key = self.key(shard)
        yield from ask(key, *lengthen(key, header, size))

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
        return image_start(header_from_bytes(data[:HEADER_BYTES])) + bytes(data[HEADER_BYTES:])

    def write_table(self, shard: int, start: int, data: bytes | memoryview) -> Core[None]:
        """Write a part of the table of a shard, whose string is whole; may be repeated.

        The shard gets the flag of forgetting.
        """
        key = self.key(shard)
        if not start:
            (found,) = yield from ask(key, header_command(key))
            yield from ask(key, set_header(key, header_from_bytes(found) | FORGETTING))
        yield from write_table(key, start, data)

    def table_is_as_written(self, shard: int, start: int, data: bytes | memoryview) -> Core[bool]:
        """Return whether a part of a table that was written is still there as it was written."""
        return is_as_written(self.key(shard), start, data)

    def switch(self) -> Core[None]:
        """Make the generation the filter's.

        Raises:
            FilterLostError: If what was prepared is gone, or the name was taken by another client.

        Cost: three round trips, five if there are several shards.
        """
        shards = range(self.target.size.shards)
        yield from in_parallel([self._keep(shard) for shard in shards])
        for _ in range(ATTEMPTS):
            try:
                yield from repeated(self._place)
            except Changed as change:
                if change.broken:
                    raise self._lost() from None
            else:
                return
        raise BloomlockError(f"filter {self.keys.name!r} is changed by others all the time")

    def give_up(self) -> Core[None]:
        """Delete what was prepared, and give back the name; what fails goes by itself later."""
        with suppress(RedisError, BloomlockError):
            yield from in_parallel([self._unlink(n) for n in range(self.target.size.shards)])
            if self._is_reserved:
                yield from repeated(partial(write_watched, self.keys, self._give_back))

    def _reserve(self, refused: int) -> Core[None]:
        given_up: list[Descriptor] = []

        def decide(found: Found) -> list[bytes]:
            stored = found.descriptor
            if stored == self.target:
                return []  # by a try that was cut off
            given_up[:] = [stored] if stored and stored.state == PREPARING else []
            self._is_reserved = bool(given_up) or (stored is None and not found.header)
            if not self._is_reserved:
                self._refuse_taken(stored, refused)
                return []
            delete = encode_command("DEL", self.keys.meta)
            return [delete, store_command(self.keys, self.target)]

        yield from repeated(partial(write_watched, self.keys, decide))
        for stored in given_up:
            # What an import or a copy that is given up by this has prepared.
            gone = [self.keys.bits(shard) for shard in range(stored.size.shards)]
            yield from in_parallel([_unlink(key, stored) for key in gone])

    def _refuse_taken(self, stored: Descriptor | None, refused: int) -> None:
        if stored is not None and stored.header == refused:
            raise ConfigurationError(f"filter {self.keys.name!r} cannot take the place of itself")
        if not self._may_replace:
            raise ConfigurationError(f"name {self.keys.name!r} is taken by another filter")

    def _prepare(self, shard: int) -> Core[None]:
        key = self.key(shard)
        size = self._contents.string_bytes(self.target)
        yield from ask(
            key,
            encode_command("UNLINK", key),
            *lengthen(key, self.target.header, size),
            encode_command("EXPIRE", key, PREPARED_SECONDS),
        )

    def _keep(self, shard: int) -> Core[None]:
        """Compare a shard's header, which a key that was lost meanwhile has not, and keep it."""
        key, place = self.key(shard), self.keys.bits(shard)
        start, length, _, has_table, there = yield from ask(
            key,
            header_command(key),
            encode_command("STRLEN", key),
            encode_command("EXPIRE", key, PLACED_SECONDS),
            # 0 if there is none.
            encode_command("EXPIRE", forgotten_key(key), PLACED_SECONDS),
            header_command(place),
        )
        header = header_from_bytes(start)
        whole = self.target.has_header(unflagged(header))
        whole = whole and length >= self._contents.string_bytes(self.target, header)
        if says_forgotten(header):
            whole = whole and bool(has_table)
        if not whole and not self.target.has_header(plain_header(there)):
            raise self._lost()

    def _lost(self) -> FilterLostError:
        return FilterLostError(
            f"filter {self.keys.name!r}: what {self._what} had prepared is gone from the server "
            "(evicted, deleted or flushed)"
        )

    def _place(self) -> Core[None]:
        yield from through_moves(self.keys.meta, self._place_first)
        stored = (yield from look(self.keys)).descriptor
        # Another client may have cleared or replaced it since.
        if stored is not None and stored.header == self.target.header and stored.state == PLACING:
            yield from complete(self.keys, stored)

    def _place_first(self) -> Core[None]:
        """Store the descriptor and put the first shard in its place, unless that was done."""
        found = yield from look_and_watch(self.keys)
        stored = found.descriptor
        if stored is not None and stored.header == self.target.header and stored.state != PREPARING:
            yield Request(self.keys.meta, [UNWATCH])
            return
        if stored is not None and stored.state == PLACING and not self._broken:
            # What it replaces has to be deleted before it is replaced itself.
            yield Request(self.keys.meta, [UNWATCH])
            try:
                yield from complete(self.keys, stored)
            except Changed as change:
                self._broken |= change.broken
            raise Changed
        first = self.keys.bits(0)
        prepared = prepared_key(first, self.target.generation)
        watch = [encode_command("WATCH", prepared), header_command(prepared)]
        _, start = check((yield Request(self.keys.meta, watch, hold=True)))
        why = None
        if not self._may_take_place_of(stored):
            why = FilterLostError(
                f"filter {self.keys.name!r} was deleted or replaced while it was filled by "
                f"{self._what}"
            )
        elif not self.target.has_header(plain_header(start)):
            why = self._lost()
        if why is not None:
            yield Request(self.keys.meta, [UNWATCH])
            raise why
        commands = [
            MULTI,
            encode_command("DEL", self.keys.meta),
            store_command(self.keys, self._placed(stored)),
            *self._unlink_own(first, found),
            *place_commands(first, self.target, header_from_bytes(start)),
            EXEC,
        ]
        if not executed((yield Request(self.keys.meta, commands))):
            raise Changed

    def _may_take_place_of(self, stored: Descriptor | None) -> bool:
        if self.expected:
            found = None if stored is None else (stored.header, stored.state)
            return found == (self.expected, CLOSED)
        return stored == self.target or (self._may_replace and not self._is_reserved)

    def _placed(self, stored: Descriptor | None) -> Descriptor:
        """Return the descriptor from the switch on."""
        target = self.target.with_generation(self.target.generation, PLACING)
        if stored is not None and stored.state != PREPARING:
            if self.expected:
                target = target.successor_of(stored)
            if stored.size.shards > target.size.shards:
                return replace(target, replaces=stored.as_replaced)
        if target.size.shards > 1:
            return target
        return replace(target, state=READY)

    def _unlink_own(self, key: str, found: Found) -> list[bytes]:
        """Return the command that deletes what the server itself had for the shard before."""
        old = found.headers - {self.target.header}
        own = {name for header in old for name in SERVERS_OWN.keys(key, header)}
        return [encode_command("UNLINK", *own)] if own else []

    def _unlink(self, shard: int) -> Core[None]:
        yield from _unlink(self.keys.bits(shard), self.target)

    def _give_back(self, found: Found) -> list[bytes]:
        is_mine = found.descriptor == self.target
        return [encode_command("UNLINK", self.keys.meta)] if is_mine else []


def _unlink(key: str, descriptor: Descriptor) -> Core[None]:
    """Delete what was prepared for a shard."""
    prepared = prepared_key(key, descriptor.generation)
    gone = [prepared, forgotten_key(prepared)]
    if descriptor.is_native:
        gone += SERVERS_OWN.keys(key, descriptor.header)
    yield from ask(key, encode_command("UNLINK", *gone))
