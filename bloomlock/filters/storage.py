"""What the server holds under a filter's name: reading it, and writing it shard by shard.

One slot of the server holds the descriptor and the first shard; both are read together, and written
together in one transaction. A client that writes a filter of several shards leaves the state
"creating" until all are written, and a client that finds that state helps: each step is done only
if it was not done yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from bloomlock.descriptor import (
    CREATING,
    HEADER_BYTES,
    PLACING,
    READY,
    Descriptor,
    Replaced,
    is_header,
    unflagged,
    without_slices,
)
from bloomlock.effects import (
    EXEC,
    MULTI,
    UNWATCH,
    ConnectionLost,
    Core,
    Replies,
    Request,
    check,
    deliver,
    encode_command,
    is_slot_refusal,
    through_moves,
)
from bloomlock.errors import BloomlockError, FilterMismatchError
from bloomlock.keys import (
    NUMBERED_SHARDS,
    PLACES,
    ClaimKeys,
    forgotten_key,
    prepared_key,
    stripe_fence,
)
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script
from bloomlock.stored_descriptor import (
    FIELDS,
    REPLACES,
    decode,
    encode,
    refuse_newer_format,
    refuse_unknown_flags,
)
from bloomlock.strategies.base import header_command, header_from_bytes

from .contents import SERVERS_OWN, contents_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.keys import FilterKeys

    Fields = list[bytes | None]

WATCHED_TRIES = 100
EMPTIED_BYTES = 16 * 1024 * 1024
"""Shards that are emptied at once: about 5 ms of the server's time."""
CHANGED = -2
REFUSED = -1
"""What initialise.lua answers where it leaves a shard alone."""

_SCRIPT = Script("initialise")


@dataclass(frozen=True, slots=True)
class Found:
    """What the server holds under a filter's name.

    Attributes:
        descriptor: The stored parameters; None if there are none.
        header: The header of the first shard, without flags.
        length: Bytes of the first shard's string.
    """

    descriptor: Descriptor | None
    header: int
    length: int

    @property
    def is_whole(self) -> bool:
        """Whether the first shard has the header that the stored parameters say."""
        return self.descriptor is not None and self.descriptor.has_header(self.header)

    def has(self, header: int, state: str) -> bool:
        """Return whether the stored parameters are those of a generation, in a state."""
        found = self.descriptor
        return found is not None and (found.header, found.state) == (header, state)

    @property
    def headers(self) -> set[int]:
        """Those that the first shard has or should have."""
        stored = self.descriptor.header if self.descriptor is not None else 0
        return {self.header, stored} - {0}


def look(keys: FilterKeys) -> Core[Found]:
    """Read descriptor and first header in one round trip.

    Raises:
        FilterMismatchError: If the keys hold something that is no filter of this version.
    """
    while True:
        found = _found(keys, *(yield from _read(keys)))
        if (looked := (yield from _with_contents(keys, found, hold=False))) is not None:
            return looked


def look_and_watch(keys: FilterKeys) -> Core[Found]:
    """Do the same under WATCH, and hold the connection for the transaction to come.

    Only the descriptor is watched, which every creation and clear writes. Adds to the bitmap, of
    which there may be thousands a second, must not keep a client from clearing.

    Raises:
        ConnectionLost: If the server cannot be reached; the WATCH is gone then.
    """
    while True:
        found = _found(keys, *(yield from _read(keys, watch=True)))
        if (looked := (yield from _with_contents(keys, found, hold=True))) is not None:
            return looked


def write_watched(keys: FilterKeys, decide: Callable[[Found], list[bytes]]) -> Core[None]:
    """Carry out a transaction that follows from what is found; again if that changes meanwhile.

    Args:
        keys: The filter's keys.
        decide: Returns the commands; none: there is nothing to do. What it raises passes through.

    Raises:
        BloomlockError: If another client is faster each time.
        ConnectionLost: If the server cannot be reached; the step may be repeated.
    """
    yield from through_moves(keys.meta, partial(_write_watched, keys, decide))


def _write_watched(keys: FilterKeys, decide: Callable[[Found], list[bytes]]) -> Core[None]:
    # A slot that has moved away and back has touched the key, and changed nothing.
    for _ in range(WATCHED_TRIES):
        found = yield from look_and_watch(keys)
        try:
            commands = decide(found)
        except Exception:
            yield Request(keys.meta, [UNWATCH])
            raise
        if not commands:
            yield Request(keys.meta, [UNWATCH])
            return
        if executed((yield Request(keys.meta, [MULTI, *commands, EXEC]))):
            return
    raise BloomlockError(f"filter {keys.name!r} is changed by others all the time; try again")


def _found(keys: FilterKeys, values: Fields, header: int, length: int) -> Found:
    descriptor = decode(keys.name, values)
    if descriptor is not None and unflagged(header) == descriptor.header != header:
        descriptor = replace(descriptor, forgets=True)
    return Found(descriptor, unflagged(header), length)


def _with_contents(keys: FilterKeys, found: Found, *, hold: bool) -> Core[Found | None]:
    """Return what was found, with header 0 if the contents are gone; None: it has changed."""
    descriptor = found.descriptor
    refuse_unknown_flags(keys.name, found.header, descriptor)
    if descriptor is None or not found.is_whole:
        return found
    contents = contents_of(descriptor)
    there = yield from contents.is_there(keys.bits(0), found.header, hold=hold)
    return None if there is None else found if there else replace(found, header=0)


class Remains(NamedTuple):
    """What may be there of a filter.

    Attributes:
        further: The keys and numbers that further shards may have.
        are_there: Whether anything is.
        are_native: Whether its shards have keys of the server's own filters beside them.
        header: The header that the shards should have; 0 if that is not known.
        replaced: The shards of a filter in whose place it was being put.
    """

    further: Sequence[tuple[FilterKeys, int]]
    are_there: bool
    are_native: bool
    header: int = 0
    replaced: Sequence[tuple[FilterKeys, int]] = ()


def look_for_remains(keys: FilterKeys) -> Core[Remains]:
    """Return what there is of a filter.

    A descriptor that is damaged is no hindrance; it may have had any number of shards.

    Raises:
        FilterMismatchError: If the keys hold something that is no filter, or a newer one.
    """
    values, header, length = yield from _read(keys)
    are_native = length == HEADER_BYTES
    try:
        descriptor = decode(keys.name, values)
    except FilterMismatchError:
        refuse_newer_format(keys.name, values)
        further = [(keys, shard) for shard in range(1, NUMBERED_SHARDS)]
        spread = keys.spread(PLACES)
        further += [(spread, place) for place in range(1, PLACES)]
        return Remains(further, True, are_native)
    if descriptor is not None:
        placed = descriptor.place(keys)
        further = [(placed, shard) for shard in range(1, descriptor.size.shards)]
        old = descriptor.replaces
        replaced = [(old.place(keys), n) for n in range(1, old.shards)] if old else ()
        return Remains(further, True, descriptor.is_native, descriptor.header, replaced)
    return Remains((), header != 0, are_native)


def look_at_shard(keys: FilterKeys, shard: int) -> Core[tuple[int, int]]:
    """Return header, without flags, and length in bytes of a shard; one round trip.

    Raises:
        FilterMismatchError: If the key holds something that is no shard of this version.
    """
    key = keys.bits(shard)
    header, length = _read_shard(keys, shard, (yield from _ask(key, _shard_commands(key))))
    return unflagged(header), length


def look_at_shard_and_watch(keys: FilterKeys, shard: int) -> Core[tuple[int, int]]:
    """Do the same under WATCH of the shard, as `look_and_watch`."""
    key = keys.bits(shard)
    commands = [encode_command("WATCH", key), *_shard_commands(key)]
    watched, *replies = yield from deliver(Request(key, commands, hold=True), repeatable=True)
    check([watched])
    header, length = _read_shard(keys, shard, replies)
    return unflagged(header), length


def unlink_with_contents(keys: FilterKeys, shard: int, gone: Sequence[str]) -> Core[None]:
    """Unlink keys of a shard, and the server's filter that its header names.

    Raises:
        ConnectionLost: If the server cannot be reached; the step may be repeated.
    """
    key = keys.bits(shard)
    while True:
        header, _length = yield from look_at_shard_and_watch(keys, shard)
        own = SERVERS_OWN.keys(key, header)
        if executed((yield Request(key, [MULTI, encode_command("UNLINK", *gone, *own), EXEC]))):
            return


def refuse_wrong_length(
    keys: FilterKeys, shard: int, found: tuple[int, int], descriptor: Descriptor
) -> None:
    """Raise FilterMismatchError if a shard of that generation is not as long as its parameters say.

    A string of the right generation has its full length from the start. That of a filter that was
    rebuilt may be longer: an object that was attached to the larger one before has added to it.
    `found` is its header and its length.
    """
    header, length = found
    expected = contents_of(descriptor).string_bytes(descriptor, header)
    if length < expected or (length > expected and not descriptor.follows):
        raise FilterMismatchError(
            f"filter {keys.name!r} is damaged: its string {keys.bits(shard)!r} has {length} bytes, "
            f"and its parameters give {expected}; delete the filter to start again"
        )


def _ask(key: str, commands: list[bytes]) -> Core[Replies]:
    try:
        return (yield from deliver(Request(key, commands), repeatable=True))
    except ConnectionLost as lost:
        raise lost.cause from None


def _read(keys: FilterKeys, *, watch: bool = False) -> Core[tuple[Fields, int, int]]:
    """Return the descriptor's fields, and header and length of the first shard, of one moment.

    Another client may clear, delete or create between two commands of a request. Each writes the
    header, and no header returns: if it is the same before and after, all is of one generation.
    """
    commands = [
        header_command(keys.bits(0)),
        encode_command("HMGET", keys.meta, *FIELDS),
        encode_command("EXISTS", keys.meta),
        *_shard_commands(keys.bits(0)),
    ]
    watched: Replies = []
    while True:
        if watch:
            sent = [encode_command("WATCH", keys.meta), *commands]
            request = Request(keys.meta, sent, hold=True)
            *watched, before, values, there, length, after = yield from deliver(
                request, repeatable=True
            )
        else:
            before, values, there, length, after = yield from _ask(keys.meta, commands)
        check(watched)
        checked = _checked(keys, [before, values, there, length, after])
        if before == after:
            return checked


def _shard_commands(key: str) -> list[bytes]:
    """Return what reads a shard: a header that is right says that the length before it was."""
    return [encode_command("STRLEN", key), header_command(key)]


def _checked(keys: FilterKeys, replies: Replies) -> tuple[Fields, int, int]:
    _, values, there, *shard = _refuse_other_types(keys, 0, replies)
    header, length = _read_shard(keys, 0, shard)
    # A hash with none of a descriptor's fields belongs to another program, and so does a string
    # that begins otherwise than with a header or with as many zeros.
    foreign = there or 0 < length < HEADER_BYTES or (header != 0 and not is_header(header))
    if foreign and all(value is None for value in values):
        raise _foreign(keys, 0)
    return values, header, length


def _read_shard(keys: FilterKeys, shard: int, replies: Replies) -> tuple[int, int]:
    length, start = _refuse_other_types(keys, shard, replies)
    header = header_from_bytes(start)
    refuse_unknown_flags(keys.name, header)
    return header, length


def _refuse_other_types(keys: FilterKeys, shard: int, replies: Replies) -> Replies:
    try:
        return check(replies)
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        raise _foreign(keys, shard) from None


def _foreign(keys: FilterKeys, shard: int) -> FilterMismatchError:
    return FilterMismatchError(
        f"the keys of filter {keys.name!r} ({keys.meta!r}, {keys.bits(shard)!r}) hold something "
        "that is no filter; nothing was changed; choose another name or prefix"
    )


class Changed(Exception):  # noqa: N818 - an event for the loop that looks again, not an error
    """Another client changed the filter meanwhile, or a generation was found broken."""

    def __init__(self, broken: Iterable[int] = ()) -> None:
        super().__init__()
        self.broken = set(broken)


def write(keys: FilterKeys, planned: Descriptor, found: Found) -> Core[Descriptor | None]:
    """Write descriptor and first shard under the WATCH of the held connection.

    Args:
        keys: The filter's keys.
        planned: What is written.
        found: What was there when the WATCH began.

    Returns:
        What was written; None if another client was faster and nothing was written.
    """
    if planned.size.shards > 1:
        planned = replace(planned, state=CREATING)
    commands = [
        MULTI,
        encode_command("DEL", keys.meta),
        store_command(keys, planned),
        *_empty_shard(keys.bits(0), planned, found.headers),
        *idle_commands(keys, planned),
        EXEC,
    ]
    replies = yield Request(keys.meta, commands)
    try:
        return planned if executed(replies) else None
    except ResponseError as error:
        if not is_slot_refusal(error):
            yield from _withdraw(keys, planned)
        raise


def idle_commands(keys: FilterKeys, planned: Descriptor) -> list[bytes]:
    """Return what lets a filter go that nothing uses after its creation.

    Who creates it says the same of its further shards, when it has attached.
    """
    if planned.idle_ms is None:
        return []
    key = keys.bits(0)
    expiring = [keys.meta, key, *contents_of(planned).keys(key, planned.header)]
    return [encode_command("PEXPIRE", each, planned.idle_ms) for each in expiring]


def _withdraw(keys: FilterKeys, planned: Descriptor) -> Core[None]:
    """Delete what was written of a filter whose contents the server refused."""
    bits = keys.bits(0)
    own = SERVERS_OWN.keys(bits, planned.header)
    unlink = encode_command("UNLINK", keys.meta, bits, forgotten_key(bits), *own)

    def decide(found: Found) -> list[bytes]:
        stored = found.descriptor
        return [unlink] if stored and stored.generation == planned.generation else []

    yield from write_watched(keys, decide)


def store_command(keys: FilterKeys, descriptor: Descriptor) -> bytes:
    """Return the command that stores the descriptor."""
    fields = [part for pair in encode(descriptor).items() for part in pair]
    return encode_command("HSET", keys.meta, *fields)


def _empty_shard(key: str, descriptor: Descriptor, before: Iterable[int]) -> list[bytes]:
    """Return the commands that replace a shard, which had one of some headers, by an empty one."""
    old = {own for header in before for own in SERVERS_OWN.keys(key, header)}
    return [
        encode_command("UNLINK", *ClaimKeys.of(key).of_generation, *old),
        *contents_of(descriptor).empty_shard(key, descriptor),
    ]


def executed(replies: Replies) -> bool:
    """Return whether EXEC, the last of the replies, ran; raise what the server refused."""
    # The reason stands in the reply to the refused command, EXEC only says that it aborted.
    check(replies)
    if isinstance(replies[-1], list):
        check(replies[-1])
    return replies[-1] is not None


def complete(keys: FilterKeys, descriptor: Descriptor) -> Core[Descriptor]:
    """Bring the further shards to the descriptor's generation, or check that they are there."""
    keys = descriptor.place(keys)
    shards = range(1, descriptor.size.shards)
    found = yield from in_parallel([look_at_shard(keys, shard) for shard in shards])
    if descriptor.state == CREATING:
        # In this order: a shard is emptied only if it still has the header that it had before the
        # descriptor said so, and headers never return. A helper that sleeps in between empties no
        # shard that is in use since.
        refuse_change((yield from look(keys)), descriptor)
        started = [
            _initialise(keys, shard, descriptor, before)
            for shard, (before, _) in zip(shards, found, strict=True)
            if not descriptor.has_header(before)
        ]
        size = contents_of(descriptor).string_bytes(descriptor)
        yield from in_parallel(started, max(1, EMPTIED_BYTES // size))
        yield from mark_ready(keys, descriptor)
        return replace(descriptor, state=READY)
    if descriptor.state == PLACING:
        yield from in_parallel([place_shard(keys, shard, descriptor) for shard in shards])
        if descriptor.replaces is not None:
            yield from _remove_replaced(keys, descriptor, descriptor.replaces)
        yield from mark_ready(keys, descriptor)
        return replace(descriptor, state=READY, replaces=None)
    contents = contents_of(descriptor)
    there = yield from in_parallel(
        [contents.is_there(keys.bits(n), descriptor.header, hold=False) for n in shards]
    )
    for shard, (header, length), is_there in zip(shards, found, there, strict=True):
        refuse_unknown_flags(keys.name, header, descriptor)
        if not descriptor.has_header(header) or not is_there:
            raise Changed(broken={descriptor.generation})
        refuse_wrong_length(keys, shard, (header, length), descriptor)
    return descriptor


def mark_ready(keys: FilterKeys, descriptor: Descriptor) -> Core[None]:
    """Open a filter whose shards are all written.

    Raises:
        Changed: If another client replaced it meanwhile.
    """
    ready = encode_command("HSET", keys.meta, "state", READY)
    done = encode_command("HDEL", keys.meta, REPLACES)

    def decide(found: Found) -> list[bytes]:
        refuse_change(found, descriptor)
        return [ready, *([done] if descriptor.replaces else ())]

    yield from write_watched(keys, decide)


def place_commands(key: str, descriptor: Descriptor, header: int) -> list[bytes]:
    """Return the commands that put a prepared shard in its place, for a transaction.

    The prepared key is known to be there, with a header that says whether items were forgotten.
    What belongs to the generation before goes.
    """
    _, *claims = ClaimKeys.of(key).of_generation
    prepared = prepared_key(key, descriptor.generation)
    commands = [
        encode_command("UNLINK", *claims),
        encode_command("RENAME", prepared, key),
        encode_command("PERSIST", key),
    ]
    if header != descriptor.header:
        table = forgotten_key(key)
        commands += [
            encode_command("RENAME", forgotten_key(prepared), table),
            encode_command("PERSIST", table),
        ]
    return commands


def place_shard(keys: FilterKeys, shard: int, descriptor: Descriptor) -> Core[None]:
    """Put a further shard in its place, unless that was done.

    A prepared key is there until it is renamed, and its header is that of its generation alone. So
    a helper that sleeps in between changes nothing of a later generation.

    Raises:
        Changed: If it is neither prepared nor in its place.
    """
    key = keys.bits(shard)
    yield from through_moves(key, partial(_place_shard, key, descriptor))


def _place_shard(key: str, descriptor: Descriptor) -> Core[None]:
    prepared = prepared_key(key, descriptor.generation)
    commands = [
        encode_command("WATCH", prepared),
        header_command(prepared),
        header_command(key),
    ]
    for _ in range(WATCHED_TRIES):
        request = Request(key, commands, hold=True)
        _, *starts = check((yield from deliver(request, repeatable=True)))
        waiting, there = map(header_from_bytes, starts)
        is_there = unflagged(there) == descriptor.header
        if is_there or unflagged(waiting) != descriptor.header:
            yield Request(key, [UNWATCH])
            if is_there:
                return
            raise Changed(broken={descriptor.generation})
        placing = [MULTI, *place_commands(key, descriptor, waiting), EXEC]
        if executed((yield Request(key, placing))):
            return
    raise Changed


def _remove_replaced(keys: FilterKeys, descriptor: Descriptor, old: Replaced) -> Core[None]:
    """Delete the shards of the filter that was there, as far as they lie elsewhere."""
    places = old.place(keys)
    mine = {keys.bits(shard) for shard in range(descriptor.size.shards)}
    gone = [key for key in map(places.bits, range(old.shards)) if key not in mine]
    steps = [partial(_remove_shard, key, old.header) for key in gone]
    yield from in_parallel([through_moves(*one) for one in zip(gone, steps, strict=True)])


def _remove_shard(key: str, header: int) -> Core[None]:
    """Delete a shard if it still has that header."""
    while True:
        commands = [encode_command("WATCH", key), header_command(key)]
        request = Request(key, commands, hold=True)
        _, start = check((yield from deliver(request, repeatable=True)))
        if without_slices(unflagged(header_from_bytes(start))) != header:
            yield Request(key, [UNWATCH])
            return
        own = SERVERS_OWN.keys(key, header)
        gone = encode_command("UNLINK", *ClaimKeys.of(key), stripe_fence(key), *own)
        if executed((yield Request(key, [MULTI, gone, EXEC]))):
            return


def refuse_change(found: Found, descriptor: Descriptor) -> None:
    """Raise Changed if what was found is not that generation, in that state."""
    current = found.descriptor
    known = (descriptor.generation, descriptor.state)
    if current is None or (current.generation, current.state) != known:
        raise Changed


def _initialise(keys: FilterKeys, shard: int, descriptor: Descriptor, before: int) -> Core[None]:
    """Empty one further shard that has the header `before`, unless a helper already did."""
    key = keys.bits(shard)
    watched = partial(_initialise_watched, keys, shard, descriptor, before)
    if descriptor.is_native:
        # No update writes to the string, so the WATCH is cut off by helpers alone.
        yield from through_moves(key, watched)
        return
    arguments: list[str | bytes | int] = [
        descriptor.header.to_bytes(HEADER_BYTES, "big"),
        contents_of(descriptor).string_bytes(descriptor) - 1,
        before.to_bytes(HEADER_BYTES, "big"),
    ]
    gone = ClaimKeys.of(key).of_generation
    (reply,) = yield from _SCRIPT.call([(gone, arguments)], repeatable=True)
    if isinstance(reply, NoPermissionError):
        yield from through_moves(key, watched)
    elif reply == CHANGED:
        raise Changed
    elif reply == REFUSED or (isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply)):
        # This look raises the reason, unless another client has changed the shard since.
        yield from look_at_shard(keys, shard)
        raise Changed
    elif isinstance(reply, Exception):
        raise reply


def _initialise_watched(
    keys: FilterKeys, shard: int, descriptor: Descriptor, before: int
) -> Core[None]:
    """Do the same where EVAL is forbidden; adds to the old generation may come between."""
    key = keys.bits(shard)
    for _ in range(WATCHED_TRIES):
        header, _length = yield from look_at_shard_and_watch(keys, shard)
        if descriptor.has_header(header):
            yield Request(key, [UNWATCH])
            return
        if header != before:
            yield Request(key, [UNWATCH])
            raise Changed
        commands = [MULTI, *_empty_shard(key, descriptor, {before} - {0}), EXEC]
        if executed((yield Request(key, commands))):
            return
    raise Changed
