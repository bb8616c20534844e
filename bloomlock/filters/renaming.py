"""Another name for a filter.

One script renames all keys: a client finds the filter under the one name or under the other. In a
cluster they lie in several slots, which no script reaches.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bloomlock.errors import ConfigurationError, FilterNotFoundError
from bloomlock.keys import ClaimKeys
from bloomlock.scripts import Script, answer_of

from .generation import kind_of, new_generation
from .placing import Changed, bytes_of
from .state import in_one_generation
from .stored_filter import look
from .switch import retried, settle

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys

    from .state import FilterState

_RENAME = Script("header", "rename")
_ACROSS_SLOTS = re.compile("crossslot|same slot", re.IGNORECASE)


def rename_object(state: FilterState, keys: FilterKeys) -> Core[None]:
    try:
        yield from in_one_generation(state, lambda view: rename(state.keys, keys, view.header))
    finally:
        state.forget()


def rename(old: FilterKeys, new: FilterKeys, header: int | None = None) -> Core[bool | None]:
    """Give the filter of a generation another name; None: it is of another generation.

    Without a header it is whatever is there.
    """
    if old.name == new.name:
        raise ConfigurationError(f"the new name must not be {new.name!r}, the one that it has")

    def step() -> Core[bool | None]:
        found = yield from look(old)
        if found.descriptor is not None:
            found = yield from settle(old, found)
        before, there = found.descriptor, (yield from look(new))
        is_whole = before is not None and before.has_header(found.header) and found.gone is None
        if header is None and not is_whole:
            raise FilterNotFoundError(f"there is no filter named {old.name!r}, or not all of it")
        if before is None or not is_whole or header not in (None, before.header):
            return None
        answer = b"taken"
        if there.descriptor is None and not there.header:
            answer = yield from _rename_keys(old, new, before)
        if answer == b"taken":
            raise ConfigurationError(f"name {new.name!r} is taken by another filter")
        if answer == b"changed" and header is None:
            raise Changed
        return True if answer == b"done" else None

    return (yield from retried(old, step))


def _rename_keys(old: FilterKeys, new: FilterKeys, before: Descriptor) -> Core[bytes]:
    after = before.with_generation(new_generation(), origin=before.origin)
    keys = [old.meta, new.meta]
    for shard in range(before.size.shards):
        pairs = zip(_keys_of(old, shard, before), _keys_of(new, shard, after), strict=True)
        keys += [key for pair in pairs for key in pair]
    of_shard = (len(keys) - 2) // before.size.shards
    call = (keys, (bytes_of(before.header), bytes_of(after.header), after.generation, of_shard))
    (reply,) = yield from _RENAME.call([call], repeatable=True)
    if isinstance(reply, ResponseError) and _ACROSS_SLOTS.search(str(reply)):
        raise ConfigurationError(
            f"filter {old.name!r} cannot be renamed in a cluster, where its keys lie in several "
            "slots; copy it by copy_to, then delete it"
        )
    answer: bytes = answer_of(reply, "rename needs")
    return answer


def _keys_of(keys: FilterKeys, shard: int, descriptor: Descriptor) -> list[str]:
    ours = ClaimKeys.of(keys.bits(shard))
    first = [ours.bits, ours.discarded, ours.counts]
    rest = [key for key in ours if key not in first]
    return [*first, *rest, *kind_of(descriptor).keys(ours.bits, descriptor.header)]
