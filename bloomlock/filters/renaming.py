"""Another name for a filter.

One script renames all keys: a client finds the filter under the one name or under the other. In a
cluster they lie in several slots, which no script reaches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bloomlock.descriptor import HEADER_BYTES, READY, Descriptor
from bloomlock.errors import ConfigurationError, FilterLostError, FilterNotFoundError
from bloomlock.keys import ClaimKeys
from bloomlock.refusals import is_missing
from bloomlock.scripts import Script, answer_of

from .combining import is_not_possible
from .contents import contents_of
from .generation import new_generation
from .stored_filter import look

if TYPE_CHECKING:
    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys

    from .stored_filter import Found

_RENAME = Script("header", "rename")

DONE, CHANGED, TAKEN = range(3)


def rename(old: FilterKeys, new: FilterKeys, header: int | None = None) -> Core[None]:
    """Give a filter another name.

    Args:
        old: Its keys.
        new: Those it will have.
        header: That of the generation that is meant; None: whatever is there.
    """
    if old.name == new.name:
        raise ConfigurationError(f"the new name must not be {new.name!r}, the one that it has")
    before = _as_it_is(old, (yield from look(old)))
    there = yield from look(new)
    if header is not None and before.header != header:
        raise _lost(old)
    if there.descriptor is not None or there.header:
        raise _taken(new)
    done = yield from _rename_keys(old, new, before)
    if done == CHANGED:
        raise _lost(old)
    if done == TAKEN:
        raise _taken(new)


def _taken(keys: FilterKeys) -> ConfigurationError:
    return ConfigurationError(f"name {keys.name!r} is taken by another filter")


def _lost(keys: FilterKeys) -> FilterLostError:
    return FilterLostError(
        f"filter {keys.name!r} was cleared, replaced or lost; it was not renamed"
    )


def _rename_keys(old: FilterKeys, new: FilterKeys, before: Descriptor) -> Core[int]:
    """Rename all keys in one step, as a new generation."""
    after = before.with_generation(new_generation(), READY, cleared=before.cleared)
    contents, shards = contents_of(before), range(before.size.shards)
    bits = [(old.bits(n), new.bits(n)) for n in shards]
    claims = [(ClaimKeys.of(one), ClaimKeys.of(two)) for one, two in bits]
    pairs = [(old.meta, new.meta), *bits, *((a.counts, b.counts) for a, b in claims)]
    for one, two in claims:
        pairs += zip(one.of_generation[1:], two.of_generation[1:], strict=True)
        theirs = contents.keys(one.bits, before.header)
        pairs += zip(theirs, contents.keys(two.bits, after.header), strict=True)
    keys = [key for pair in pairs for key in pair]
    mine, its = (d.header.to_bytes(HEADER_BYTES, "big") for d in (before, after))
    call = (keys, (mine, its, after.generation, len(shards)))
    (reply,) = yield from _RENAME.call([call], repeatable=True)
    if isinstance(reply, ResponseError) and not is_missing(reply) and is_not_possible(reply):
        raise ConfigurationError(
            f"filter {old.name!r} cannot be renamed in a cluster, where its keys lie in several "
            "slots; copy it by copy_to, then delete it"
        )
    return int(answer_of(reply, "rename needs"))


def _as_it_is(keys: FilterKeys, found: Found) -> Descriptor:
    """Return the parameters of a filter that may be renamed."""
    current = found.descriptor
    if current is None or not current.has_header(found.header):
        raise FilterNotFoundError(f"there is no filter named {keys.name!r}, or not all of it")
    if current.state != READY:
        raise ConfigurationError(f"filter {keys.name!r} is {current.state}, and cannot be renamed")
    return current
