"""How a filter comes into being and how a client attaches to it.

One slot of the server holds the descriptor and the first shard, so both are read together, and
written together in one WATCH transaction: of two clients that create or clear the same filter at
the same instant one wins, and the other reads what it wrote. Further shards follow one by one
while the descriptor says "creating"; whoever finds that state finishes the work, so
a creator that died half-way leaves nothing broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.descriptor import COPYING, READY, Descriptor, Wanted
from bloomlock.effects import RETRY_PAUSES, UNWATCH, ConnectionLost, Core, Pause, Request
from bloomlock.errors import (
    BloomlockError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
)
from bloomlock.hashing import key_difference

from .room import check_room
from .stored import Found, look, look_and_watch, refuse_wrong_length
from .writing import Changed, complete, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from bloomlock.hashing import HashKey
    from bloomlock.keys import FilterKeys

    Decide = Callable[[Found, set[int]], Descriptor | None]

ATTEMPTS = 20


def attach(
    keys: FilterKeys,
    wanted: Wanted | None,
    generation: int,
    *,
    recreate: bool,
    key: HashKey | None = None,
) -> Core[Descriptor]:
    """Return the descriptor of the filter, creating the filter where it is missing.

    Args:
        keys: The filter's keys.
        wanted: Parameters of the filter; None only attaches to what is there.
        generation: The generation to give a filter that has to be created.
        recreate: Start anew where a filter was but its bitmap or descriptor is gone.
        key: The key of a filter that is only attached to.

    Raises:
        FilterNotFoundError: If `wanted` is None and there is nothing.
        FilterMismatchError: If something else than the wanted filter is stored there.
        FilterLostError: If part of the filter is gone and `recreate` is False.
        ConfigurationError: If it has to be created and the server has not the memory for it.

    Cost: one round trip if the filter is there (one more for each further shard).
    """

    def decide(found: Found, broken: set[int]) -> Descriptor | None:
        if found.descriptor is not None:
            _refuse_other(keys, wanted, key, found.descriptor)
        gone = _what_is_gone(found, broken)
        if gone is None and found.descriptor is not None:
            refuse_wrong_length(keys, 0, found.length, found.descriptor)
            return None
        if gone is not None and not (recreate and (wanted or found.descriptor)):
            raise FilterLostError(
                f"filter {keys.name!r} has lost {gone} (evicted, or deleted by hand); delete it, "
                'or pass on_lost="recreate" to start it anew'
            )
        model = wanted.describe() if wanted else found.descriptor
        if model is None:
            raise FilterNotFoundError(f"there is no filter named {keys.name!r}")
        return model.with_generation(generation, READY)

    return (yield from _decide_and_write(keys, decide, adds_memory=True))


def renew(keys: FilterKeys, generation: int, key: HashKey | None) -> Core[Descriptor]:
    """Empty the filter: the same parameters, a new generation, all bits 0.

    Raises:
        FilterNotFoundError: If there is no such filter.
        FilterMismatchError: If there is one with another key.
    """

    def decide(found: Found, broken: set[int]) -> Descriptor | None:  # noqa: ARG001 - all is emptied
        if found.descriptor is None:
            raise FilterNotFoundError(f"there is no filter named {keys.name!r}")
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
            planned = decide(found, broken)
            if planned is not None:
                if adds_memory:
                    replaces = found.descriptor is not None or found.header != 0
                    yield from check_room(keys, planned, replaces=replaces)
                current = yield from _write_watched(keys, decide, broken)
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


def _write_watched(keys: FilterKeys, decide: Decide, broken: set[int]) -> Core[Descriptor | None]:
    """Decide again under WATCH and write; None if there was nothing to write any more."""
    planned = decide((yield from look_and_watch(keys)), broken)
    if planned is None:
        yield Request(keys.meta, [UNWATCH])
        return None
    return (yield from write(keys, planned))


def _what_is_gone(found: Found, broken: set[int]) -> str | None:
    if found.descriptor is None:
        return "its descriptor" if found.header else None
    if found.descriptor.generation in broken:
        return "one of its shards"
    if found.descriptor.state == COPYING or found.header == found.descriptor.header:
        return None
    return "its bitmap"


def _refuse_other(
    keys: FilterKeys, wanted: Wanted | None, key: HashKey | None, stored: Descriptor
) -> None:
    if stored.state == COPYING:
        raise FilterMismatchError(
            f"filter {keys.name!r} is still being filled by a copy, or the copy was interrupted; "
            "delete it to start again"
        )
    if wanted is None:
        _refuse_other_key(keys, key, stored)
        return
    differences = wanted.differences(stored)
    if differences:
        raise FilterMismatchError(
            f"filter {keys.name!r} exists with other parameters ({'; '.join(differences)})"
        )


def _refuse_other_key(keys: FilterKeys, key: HashKey | None, stored: Descriptor) -> None:
    difference = key_difference(stored.key, key, opens=True)
    if difference is not None:
        raise FilterMismatchError(
            f"filter {keys.name!r} exists with another key ({difference}); give the one it was "
            "created with"
        )
