"""How one generation takes the place of another: nothing, ready(g) -> placing(h) -> ready(h).

A client prepares a key for each shard (S1), lets the descriptor say "placing" (S2), places the
shards (S3), and lets it say "ready" (S4). Any client that finds "placing" goes on from there. S1 to
S8, and what goes wrong without each: docs/internals/protocols.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from bloomlock.commands import RETRY_PAUSES, Script, answer_of, call, encode_command, in_parallel
from bloomlock.descriptor import (
    CLEAR,
    CLOSED,
    CREATE,
    HEADER_BYTES,
    PLACING,
    READY,
    REBUILD,
    Descriptor,
    Replaced,
    has_discards,
    header_bytes,
    header_from_bytes,
    unflagged,
)
from bloomlock.effects import ConnectionLost, Core, Pause
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError
from bloomlock.keys import PREPARED_SECONDS, discards_key, prepared_key
from bloomlock.sizing import MAX_SHARDS
from bloomlock.spec import DamagedDescriptorError
from bloomlock.strategies.base import header_command

from .files import RECORD_BYTES, SHARD_BYTES, Layout
from .generation import new_generation
from .placing import (
    PLACED_SECONDS,
    PREPARED_BYTES,
    Changed,
    compare_and_set,
    discard_prepared,
    drop,
    expire_commands,
    keys_of_shard,
    place,
    prepare,
    store_commands,
)
from .stored_filter import (
    LOST_BITMAP,
    LOST_DESCRIPTOR,
    LOST_SHARD,
    Found,
    check_room,
    is_whole,
    look,
    look_at_shard,
    refuse_wrong_length,
)
from .tombstones import add_records, sentinel_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import FilterKeys

    from .files import Part

T = TypeVar("T")

ATTEMPTS = 100
LONGEST_PAUSE_S = 0.02
LOOKS = 300
LOOK_SECONDS = 0.1
"""How often, and after how long, a client that waits looks again before it opens the filter."""

_FENCE = Script("header", "fence")


def retried(keys: FilterKeys, step: Callable[[], Core[T]]) -> Core[T]:
    """Carry out a step that begins with a look, once more where it raises Changed.

    A step is also repeated where a reply was lost. The look finds what was done.
    """
    losses = 0
    for attempt in range(ATTEMPTS):
        try:
            return (yield from step())
        except Changed:
            # No jitter needed: of those that collide one always wins.
            yield Pause(min(0.001 * attempt, LONGEST_PAUSE_S))
        except ConnectionLost as lost:
            losses += 1
            if losses > len(RETRY_PAUSES) or not lost.sent:
                raise lost.cause from None
            yield Pause(RETRY_PAUSES[losses - 1])
    raise BloomlockError(f"filter {keys.name!r} is changed by others all the time; try again")


# -- delete ---------------------------------------------------------------------------------------


def delete(keys: FilterKeys, own: Descriptor | None = None) -> Core[bool]:
    """S7: delete every key of the filter; True if there was one.

    The first shard and the descriptor go last, so a crash before that can be repeated. If both were
    evicted, `own` says which further shards there may be.
    """
    was_there = False

    def step() -> Core[bool]:
        nonlocal was_there
        is_damaged = False
        try:
            found = yield from look(keys)
        except DamagedDescriptorError:
            found, is_damaged = Found(None, *(yield from look_at_shard(keys, 0))), True
        if found.descriptor is not None and found.descriptor.state == PLACING:
            found = yield from settle(keys, found)
        stored = found.descriptor
        was_there = was_there or stored is not None or found.header != 0
        if stored is not None:
            old = [Replaced(stored.size.shards, stored.header)]
            old += [stored.replaces] if stored.replaces is not None else []
        else:
            # Without a descriptor the number of shards is unknown.
            old = [Replaced(MAX_SHARDS if is_damaged or found.header else 1, found.header)]
            old += [Replaced(own.size.shards, own.header)] if own is not None else []
        further = [drop(keys, shard, one) for one in old for shard in range(1, one.shards)]
        yield from in_parallel(further)
        names = {name for one in old for name in keys_of_shard(keys, 0, one)}
        unlink = encode_command("UNLINK", keys.meta, *sorted(names))
        if is_damaged:
            yield from call(keys.meta, unlink)
            return True
        if not (yield from compare_and_set(keys, stored, [unlink])):
            # The generation is over, unless its descriptor was evicted, or a rebuild has put its
            # items into the next one.
            now = yield from look(keys)
            is_evicted = now.descriptor is None and now.header != 0
            if is_evicted or (now.descriptor is not None and now.descriptor.continues(stored)):
                raise Changed
        return was_there

    return (yield from retried(keys, step))


# -- the switch ----------------------------------------------------------------------------------


def put(keys: FilterKeys, found: Found, planned: Descriptor) -> Core[Descriptor]:
    """Put a generation in the place of what was found, and return it as it is stored then.

    With the origin "create" or "clear" it is empty, else all its shards are prepared. It takes six
    round trips, seven if there are several shards.
    """
    stored = found.descriptor
    placing = replace(planned, state=PLACING, replaces=_replaced(found, planned))
    is_empty = planned.origin in (CREATE, CLEAR)
    if is_empty:
        yield from prepare(keys, planned)
    if stored is not None and stored.state == PLACING:
        # No client may place a shard of it any more.
        yield from discard_prepared(keys, stored)
    # A new generation does not expire as yet.
    commands = [*store_commands(keys, placing), encode_command("PERSIST", keys.meta)]
    refusal: Exception | None = None
    try:
        if not (yield from compare_and_set(keys, stored, commands)):
            refusal = Changed()
    except RedisError as error:
        refusal = error
    if refusal is not None:
        # The descriptor does not name what is prepared, so no client needs it.
        if is_empty:
            yield from discard_prepared(keys, planned)
        raise refusal
    ready = yield from _finish(keys, placing)
    if ready is None:
        raise Changed
    return ready


def _replaced(found: Found, planned: Descriptor) -> Replaced | None:
    stored = found.descriptor
    if stored is None:
        return Replaced(planned.size.shards, found.header) if found.header else None
    old = Replaced(stored.size.shards, stored.header)
    if stored.state == PLACING and stored.replaces and stored.replaces.shards > old.shards:
        # It is broken, and further shards of the one before are left.
        return stored.replaces
    return old


def settle(keys: FilterKeys, found: Found, *, is_checked: bool = False) -> Core[Found]:
    """Finish, or wait for, what another client puts in place; `is_checked` looks at all shards."""
    stored = found.descriptor
    if stored is None:
        return found._replace(gone=LOST_DESCRIPTOR if found.header else None)
    if stored.state == CLOSED:
        if (yield from _wait(keys, stored)):
            raise Changed
        return found._replace(gone=LOST_SHARD)
    if stored.state == PLACING:
        done = yield from _finish(keys, stored)
        return found._replace(gone=LOST_SHARD) if done is None else Found(done, done.header, 0)
    if not is_checked:
        return found
    # The look has seen the header of the first shard already.
    is_first_there = stored.has_header(found.header)
    has_more = stored.discards or stored.native
    rest = range(0 if has_more else 1, stored.size.shards)
    looks = [is_whole(keys, stored, shard) for shard in rest]
    if is_first_there and all((yield from in_parallel(looks))):
        refuse_wrong_length(keys, 0, found.length, stored)
        return found
    # Another client may be clearing the filter.
    if not stored.is_same((yield from look(keys)).descriptor):
        raise Changed
    return found._replace(gone=LOST_SHARD if is_first_there else LOST_BITMAP)


def _finish(keys: FilterKeys, placing: Descriptor) -> Core[Descriptor | None]:
    # Who follows a switch looks at the first shard, so that comes first.
    is_first_there = yield from place(keys, 0, placing)
    most = max(1, PREPARED_BYTES // placing.string_bytes())
    further = [place(keys, shard, placing) for shard in range(1, placing.size.shards)]
    if not is_first_there or not all((yield from in_parallel(further, most))):
        if not placing.is_same((yield from look(keys)).descriptor):
            # Another client did, and the filter was changed again.
            raise Changed
        return None
    if (old := placing.replaces) is not None:
        rest = range(placing.size.shards, old.shards)
        yield from in_parallel([drop(keys, shard, old) for shard in rest])
    ready = replace(placing, state=READY, replaces=None)
    if not (yield from compare_and_set(keys, placing, store_commands(keys, ready))):
        # A helper that was faster has done the same, or it is over.
        raise Changed
    return ready


# -- filled beside --------------------------------------------------------------------------------


class Prepared:
    """A generation that is filled beside what has the filter's name; `what` does it, for messages.

    Each shard is prepared at a key that carries the generation, so clients that prepare at the same
    time, or go on after they were given up, do not meet. What has the name stays in use until the
    switch. Prepared keys have a time-out, so what a killed process leaves goes by itself.
    """

    def __init__(
        self, keys: FilterKeys, model: Descriptor, origin: str, *, may_replace: bool, what: str
    ) -> None:
        self.target = model.with_generation(0, origin)
        self.keys = keys
        self._may_replace = may_replace
        self._what = what

    def begin(self, layout: Layout, *, refused: int = 0) -> Core[None]:
        """Take the memory; `refused` is the header of a filter that may not be replaced."""
        self._layout = layout
        self._refuse_taken((yield from look(self.keys)).descriptor, refused)
        yield from check_room(self.keys, self.target, self.target.shard_bytes(layout.slices))

        def step() -> Core[None]:
            target = self.target.with_generation(new_generation(), self.target.origin)
            self.target = replace(target, discards=layout.discarded > 0)
            yield from prepare(self.keys, self.target, layout.image)

        yield from retried(self.keys, step)

    def _key(self, shard: int) -> str:
        return prepared_key(self.keys.bits(shard), self.target.generation)

    def write(self, parts: Sequence[Part]) -> Core[None]:
        writes: list[tuple[str, list[bytes]]] = []
        for number, start, data in parts:
            if number == self._layout.shards:
                for shard, records in _by_shard(data).items():
                    key = self._key(shard)
                    writes.append((key, add_records(key, self.target, records)))
            else:
                key, skipped = self._key(number), max(0, HEADER_BYTES - start)
                bits = bytes(data[skipped:])
                writes.append((key, [encode_command("SETRANGE", key, start + skipped, bits)]))
        expire = partial(expire_commands, seconds=PREPARED_SECONDS)
        yield from in_parallel([call(key, *some, *expire(key)) for key, some in writes])

    def switch(self, expected: Descriptor | None = None) -> Core[None]:
        """Put it in the place of a closed filter that is expected; None: of whatever is there."""
        yield from retried(self.keys, lambda: self._put(expected))

    def _put(self, expected: Descriptor | None) -> Core[None]:
        found = yield from look(self.keys)
        stored, target = found.descriptor, self.target
        if stored is not None and stored.generation == target.generation:
            # An earlier try was carried out, and its reply was lost.
            if (yield from settle(self.keys, found)).gone is not None:
                raise self._lost()
            return
        if expected is None:
            found = yield from settle(self.keys, found)
            self._refuse_taken(found.descriptor, 0)
        elif expected.is_same(stored):
            target = replace(target, root=expected.root)
        else:
            raise FilterLostError(
                f"filter {self.keys.name!r} was deleted or replaced while it was filled by "
                f"{self._what}"
            )
        # Only after the look: a helper may have placed these shards since the last try, and another
        # client may have put a later generation in their place.
        yield from in_parallel([self._keep(shard) for shard in range(self._layout.shards)])
        yield from put(self.keys, found, target)

    def _keep(self, shard: int) -> Core[None]:
        """Compare header and sentinel, which keys that were lost since have not, and keep them."""
        key = self._key(shard)
        start, length, has_sentinel, *_ = yield from call(
            key,
            header_command(key),
            encode_command("STRLEN", key),
            sentinel_command(key, self.target),
            *expire_commands(key, PLACED_SECONDS),
        )
        header = header_from_bytes(start)
        is_whole = self.target.has_header(unflagged(header)) and length >= self._layout.image
        if not is_whole or (has_discards(header) and not has_sentinel):
            raise self._lost()

    def give_up(self) -> Core[None]:
        """Delete what was prepared, unless the switch has begun: any client finishes it then."""
        stored = (yield from look(self.keys)).descriptor
        if stored is None or stored.generation != self.target.generation:
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


# -- closed --------------------------------------------------------------------------------------


def close(keys: FilterKeys, stored: Descriptor, generation: int) -> Core[Descriptor]:
    """Let the descriptor say that the filter is closed; its shards follow by `close_shards`."""
    old = Replaced(stored.size.shards, stored.header)
    closed = replace(stored, generation=generation, state=CLOSED, replaces=old)
    if not (yield from compare_and_set(keys, stored, store_commands(keys, closed))):
        raise Changed
    return closed


def close_shards(keys: FilterKeys, closed: Descriptor) -> Core[bool]:
    """Give all shards the header of the closed generation; False: one is of another.

    From then on no update of the generation before is answered any more. May be repeated.
    """
    old = closed.header if closed.replaces is None else closed.replaces.header
    arguments = (header_bytes(old), header_bytes(closed.header), closed.string_bytes())
    shards = map(keys.bits, range(closed.size.shards))
    calls = [((key, discards_key(key)), arguments) for key in shards]
    answers = yield from in_parallel([_FENCE.call([call], repeatable=True) for call in calls])
    return all(answer_of(reply, "rebuild() needs") for (reply,) in answers)


def reopen(keys: FilterKeys, closed: Descriptor) -> Core[bool]:
    """Open a filter again as it was closed, unless another client did; False: it is not whole."""
    if not (yield from close_shards(keys, closed)):
        return not closed.is_same((yield from look(keys)).descriptor)
    opened = replace(closed, state=READY, origin=REBUILD, replaces=None)
    yield from compare_and_set(keys, closed, store_commands(keys, opened))
    return True


def _wait(keys: FilterKeys, closed: Descriptor) -> Core[bool]:
    """Wait until a filter is not closed any more; False: it has lost something.

    S8: a client that has waited for 30 s opens it, as its client seems to be dead.
    """
    for _ in range(LOOKS):
        yield Pause(LOOK_SECONDS)
        if not closed.is_same((yield from look(keys)).descriptor):
            return True
    return (yield from reopen(keys, closed))
