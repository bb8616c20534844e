"""How a filter comes into being, how a client attaches to it, and how it is emptied and deleted.

Descriptor and first shard are written in one WATCH transaction: of two clients that create or clear
the same filter at the same instant one wins, and the other reads what it wrote. Further shards
follow one by one while the descriptor says "creating"; a client that finds that state finishes the
work, so a creator that died half-way leaves nothing broken.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bloomlock.commands import UNWATCH, encode_command
from bloomlock.delivery import RETRY_PAUSES, ask
from bloomlock.descriptor import (
    CLOSED,
    PLACING,
    PREPARING,
    READY,
    Descriptor,
    generation_of,
)
from bloomlock.effects import ConnectionLost, Core, IsCluster, Pause, Request
from bloomlock.errors import (
    BloomlockError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
)
from bloomlock.hash_keys import key_difference
from bloomlock.keys import ClaimKeys, prepared_key, stripe_fence, window_keys
from bloomlock.parallel import in_parallel
from bloomlock.slot_moves import through_moves

from . import closing
from .contents import SERVERS_OWN
from .room import check_room
from .stored_filter import (
    Found,
    Remains,
    look,
    look_and_watch,
    look_for_remains,
    refuse_wrong_length,
)
from .writing import Changed, complete, unlink_with_contents, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.hash_keys import HashKey
    from bloomlock.keys import FilterKeys
    from bloomlock.parameters import Wanted

    Decide = Callable[[Found, set[int]], Descriptor | None]

ATTEMPTS = 20


def attach(
    keys: FilterKeys,
    wanted: Wanted | None,
    generation: int,
    *,
    recreate: bool,
    key: HashKey | None = None,
    native: bool = False,
    before: int = 0,
    must_follow: bool = False,
) -> Core[Descriptor]:
    """Return the descriptor of the filter, creating the filter where it is missing.

    Without `wanted` it only attaches, to a filter with this `key`. A filter of which a part is gone
    is a FilterLostError, or starts anew (`recreate`). A filter that the server has itself is for
    `native` clients alone. A filter that follows the generation with the header `before` may have
    other parameters; with `must_follow` any other is a FilterLostError.

    Cost: one round trip if the filter is there, two if it has several shards.
    """

    def decide(found: Found, broken: set[int]) -> Descriptor | None:
        follows = found.descriptor is not None and found.descriptor.has_all_of(before)
        if must_follow and not follows:
            raise FilterLostError(
                f"filter {keys.name!r} was rebuilt, and then deleted or replaced, since this "
                "object attached to it; call reattach() to go on with what is there now"
            )
        if found.descriptor is not None:
            _refuse_other_contents(keys, native, found.descriptor)
            _refuse_other(keys, None if follows else wanted, key, found.descriptor)
        gone = _what_is_gone(found, broken)
        if gone is None and found.descriptor is not None:
            refuse_wrong_length(keys, 0, (found.header, found.length), found.descriptor)
            return None
        if gone is not None and not (recreate and (wanted or found.descriptor)):
            raise FilterLostError(
                f"filter {keys.name!r} has lost {gone} (evicted, or deleted by hand); delete it, "
                'or pass on_lost="recreate" to start it anew'
            )
        # What is stored says which shape and shards there may be, and is what was wanted.
        model = found.descriptor or (wanted.describe() if wanted else None)
        if model is None:
            raise FilterNotFoundError(f"there is no filter named {keys.name!r}")
        return model.with_generation(generation, READY)

    return (yield from _decide_and_write(keys, decide, adds_memory=True))


def renew(
    keys: FilterKeys, generation: int, key: HashKey | None, *, native: bool = False
) -> Core[Descriptor]:
    """Empty the filter: the same parameters, a new generation, all bits 0."""

    def decide(found: Found, broken: set[int]) -> Descriptor | None:  # noqa: ARG001 - all is emptied
        if found.descriptor is None:
            raise FilterNotFoundError(f"there is no filter named {keys.name!r}")
        _refuse_other_contents(keys, native, found.descriptor)
        _refuse_other_key(keys, key, found.descriptor)
        if found.descriptor.generation == generation:
            return None
        return found.descriptor.with_generation(generation, READY, cleared=True)

    return (yield from _decide_and_write(keys, decide, adds_memory=False))


def _decide_and_write(keys: FilterKeys, decide: Decide, *, adds_memory: bool) -> Core[Descriptor]:
    """Write what `decide` wants for what is found there, until nothing is left to write."""
    broken: set[int] = set()
    losses = 0
    for attempt in range(ATTEMPTS):
        try:
            found = yield from look(keys)
            current = found.descriptor
            if (yield from _settle(keys, found, broken)):
                continue
            planned = decide(found, broken)
            if planned is not None:
                if adds_memory:
                    replaces = found.descriptor is not None or found.header != 0
                    yield from check_room(keys, planned, replaces=replaces)
                else:
                    shards = range(1, planned.size.shards)
                    yield from _look_for_servers([keys.bits(n) for n in shards])
                current = yield from through_moves(
                    keys.meta, partial(_write_watched, keys, decide, broken)
                )
            if current is not None:
                return (yield from complete(keys, current))
        except Changed as change:
            broken |= change.broken
        except ConnectionLost as lost:
            losses += 1
            if losses > len(RETRY_PAUSES) or not lost.sent:
                raise lost.cause from None
        # No jitter needed: of those that collide one always wins.
        yield Pause(0.001 * attempt)
    raise BloomlockError(f"filter {keys.name!r} is changed by others all the time; try again")


def _look_for_servers(keys: Sequence[str]) -> Core[None]:
    """Raise, before anything is written, if a server of a cluster is down that has one of them."""
    if keys and (yield IsCluster()):
        yield from in_parallel([ask(key, encode_command("EXISTS", key)) for key in keys])


def _write_watched(keys: FilterKeys, decide: Decide, broken: set[int]) -> Core[Descriptor | None]:
    """Decide again under WATCH and write; None if there was nothing to write any more."""
    found = yield from look_and_watch(keys)
    planned = decide(found, broken)
    if planned is None:
        yield Request(keys.meta, [UNWATCH])
        return None
    return (yield from write(keys, planned, found))


def _what_is_gone(found: Found, broken: set[int]) -> str | None:
    if found.descriptor is None:
        return "its descriptor" if found.header else None
    if found.descriptor.generation in broken:
        return "one of its shards"
    if found.descriptor.state == PREPARING or found.is_whole:
        return None
    return "its bitmap"


def _settle(keys: FilterKeys, found: Found, broken: set[int]) -> Core[bool]:
    """Finish, or wait for, what another client does to put a filter in place; False: nothing."""
    stored = found.descriptor
    if stored is None or stored.generation in broken:
        return False
    if stored.state == PLACING:
        yield from complete(keys, stored)
    elif stored.state == CLOSED:
        yield from closing.wait(keys, stored)
    else:
        return False
    return True


def _refuse_other(
    keys: FilterKeys, wanted: Wanted | None, key: HashKey | None, stored: Descriptor
) -> None:
    if stored.state == PREPARING:
        raise FilterMismatchError(
            f"filter {keys.name!r} is still being filled by an import or a copy, or that import or "
            "copy was interrupted; import it again, or delete it"
        )
    if wanted is None:
        _refuse_other_key(keys, key, stored)
        return
    differences = wanted.differences(stored)
    if differences:
        raise FilterMismatchError(
            f"filter {keys.name!r} exists with other parameters ({'; '.join(differences)})"
        )


def _refuse_other_contents(keys: FilterKeys, native: bool, stored: Descriptor) -> None:
    if stored.is_native and not native:
        raise FilterMismatchError(
            f"filter {keys.name!r} was created with strategy 'native', and no other can read it"
        )
    if native and not stored.is_native:
        raise FilterMismatchError(
            f"filter {keys.name!r} is a bitmap, which strategy 'native' cannot read; attach to it "
            "with another strategy"
        )


def _refuse_other_key(keys: FilterKeys, key: HashKey | None, stored: Descriptor) -> None:
    difference = key_difference(stored.key, key, opens=True)
    if difference is not None:
        raise FilterMismatchError(
            f"filter {keys.name!r} exists with another key ({difference}); give the one it was "
            "created with"
        )


def delete(keys: FilterKeys) -> Core[bool]:
    """Delete every key of the filter; True if there was one. Objects attached to it find it lost.

    Cost: three round trips; two for one shard; in a cluster one more for several shards. One more
    if the descriptor is damaged.
    """
    remains = yield from look_for_remains(keys)
    if remains.further:
        yield from _look_for_servers([keys.bits(n) for n in remains.further])
    # Further shards first: while the descriptor stands, a crash here is found and can be repeated.
    shards = remains.further
    if not remains.header:
        # Without a descriptor that can be read these are thousands, and hardly any is there.
        shards = yield from _those_there(keys, shards, remains)
    yield from in_parallel([_unlink_shard(keys, shard, remains) for shard in shards])
    yield from _unlink_shard(keys, 0, remains)
    return remains.are_there


def _those_there(keys: FilterKeys, shards: Sequence[int], remains: Remains) -> Core[list[int]]:
    """Return the shards of which there is any key."""
    asked = [
        ask(keys.bits(shard), encode_command("EXISTS", *_keys_of_shard(keys, shard, remains)))
        for shard in shards
    ]
    replies = yield from in_parallel(asked)
    return [shard for shard, (count,) in zip(shards, replies, strict=True) if count]


def _keys_of_shard(keys: FilterKeys, shard: int, remains: Remains) -> list[str]:
    key = keys.bits(shard)
    found = [*ClaimKeys.of(key), stripe_fence(key), *window_keys(key)]
    found += [] if shard else [keys.meta]
    if remains.header:
        found.append(prepared_key(key, generation_of(remains.header)))
    if remains.are_native:
        found += SERVERS_OWN.keys(key, remains.header)
    return found


def _unlink_shard(keys: FilterKeys, shard: int, remains: Remains) -> Core[None]:
    key, gone = keys.bits(shard), _keys_of_shard(keys, shard, remains)
    if remains.are_native:
        unlink = partial(unlink_with_contents, keys, shard, gone)
        yield from repeated(partial(through_moves, key, unlink))
    else:
        yield from ask(key, encode_command("UNLINK", *gone))


def repeated(step: Callable[[], Core[None]]) -> Core[None]:
    """Run a step that may be repeated until it was not cut off by a lost connection."""
    losses = 0
    while True:
        try:
            yield from step()
        except ConnectionLost as lost:
            losses += 1
            if losses > len(RETRY_PAUSES) or not lost.sent:
                raise lost.cause from None
        else:
            return
