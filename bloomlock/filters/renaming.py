"""Another name for a filter.

One script renames all keys: a client finds the filter under the one name or under the other. In a
cluster they lie in several slots, which no script reaches.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bloomlock.descriptor import HEADER_BYTES, Descriptor
from bloomlock.errors import ConfigurationError, FilterNotFoundError
from bloomlock.keys import ClaimKeys
from bloomlock.scripts import Script, answer_of

from .generation import new_generation
from .kinds import kind_of
from .placing import Changed
from .state import in_one_generation
from .stored_filter import look
from .switch import retried, settle

if TYPE_CHECKING:
    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys

    from .state import FilterState

_RENAME = Script("header", "rename")
_ACROSS_SLOTS = re.compile("crossslot|same slot", re.IGNORECASE)

DONE, CHANGED, TAKEN = range(3)


def rename_object(state: FilterState, keys: FilterKeys) -> Core[None]:
    """Give the filter of an object another name; the object has lost it then."""
    try:
        yield from in_one_generation(state, lambda view: rename(state.keys, keys, view.header))
    finally:
        state.forget()


def rename(old: FilterKeys, new: FilterKeys, header: int | None = None) -> Core[bool | None]:
    """Give a filter another name.

    Args:
        old: Its keys.
        new: Those it will have.
        header: That of the generation that is meant; None: whatever is there.

    Returns:
        None if the filter is of another generation.
    """
    if old.name == new.name:
        raise ConfigurationError(f"the new name must not be {new.name!r}, the one that it has")

    def step() -> Core[bool | None]:
        found = yield from look(old)
        if found.descriptor is not None:
            found = yield from settle(old, found)
        before, there = found.descriptor, (yield from look(new))
        if before is None or not before.has_header(found.header) or found.gone is not None:
            if header is not None:
                return None
            raise FilterNotFoundError(f"there is no filter named {old.name!r}, or not all of it")
        if header not in (None, before.header):
            return None
        done = TAKEN
        if there.descriptor is None and not there.header:
            done = yield from _rename_keys(old, new, before)
        if done == TAKEN:
            raise ConfigurationError(f"name {new.name!r} is taken by another filter")
        if done == CHANGED and header is None:
            raise Changed
        return True if done == DONE else None

    return (yield from retried(old, step))


def _rename_keys(old: FilterKeys, new: FilterKeys, before: Descriptor) -> Core[int]:
    """Rename all keys in one step, as a new generation."""
    after = before.with_generation(new_generation(), origin=before.origin)
    kind, shards = kind_of(before), range(before.size.shards)
    bits = [(old.bits(n), new.bits(n)) for n in shards]
    claims = [(ClaimKeys.of(one), ClaimKeys.of(two)) for one, two in bits]
    pairs = [(old.meta, new.meta), *bits, *((a.counts, b.counts) for a, b in claims)]
    pairs += ((a.discarded, b.discarded) for a, b in claims)
    for one, two in claims:
        # The shard and its tombstones are there already.
        pairs += zip(one.of_generation[1:-1], two.of_generation[1:-1], strict=True)
        theirs = kind.keys(one.bits, before.header)
        pairs += zip(theirs, kind.keys(two.bits, after.header), strict=True)
    keys = [key for pair in pairs for key in pair]
    mine, its = (d.header.to_bytes(HEADER_BYTES, "big") for d in (before, after))
    call = (keys, (mine, its, after.generation, len(shards)))
    (reply,) = yield from _RENAME.call([call], repeatable=True)
    if isinstance(reply, ResponseError) and _ACROSS_SLOTS.search(str(reply)):
        raise ConfigurationError(
            f"filter {old.name!r} cannot be renamed in a cluster, where its keys lie in several "
            "slots; copy it by copy_to, then delete it"
        )
    return int(answer_of(reply, "rename needs"))
