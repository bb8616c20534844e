"""Another name for a filter.

On one server all its keys get their new names by one script: a client finds the filter under the
one name or under the other.

In a cluster the keys of the new name lie in other slots, and what is stored has to be copied. No
update may be answered meanwhile, or what it added might be left behind:

1. The descriptor notes the new name and the generation that the filter will have.
2. A descriptor of that generation is stored under the new name, its state "copying".
3. The old descriptor gets the state "renaming" and that generation, and so do all shards. From here
   on objects that are attached find the filter lost, and no client attaches to either name.
4. Shards and claims are copied, and the filter is opened under its new name.
5. What is left under the old name is deleted.

Each step may be repeated, so a rename that was interrupted is finished by calling it again. Until
step 4 all that was added is under the old name, and afterwards under the new one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from bloomlock.commands import encode_command
from bloomlock.delivery import ask, check
from bloomlock.descriptor import (
    COPYING,
    HEADER_BYTES,
    READY,
    RENAMING,
    Descriptor,
    header_of,
    unflagged,
)
from bloomlock.effects import Core, Request
from bloomlock.errors import ConfigurationError, FilterLostError, FilterNotFoundError
from bloomlock.keys import ClaimKeys, FilterKeys, forgotten_key, prepared_key
from bloomlock.parallel import in_parallel
from bloomlock.refusals import is_missing
from bloomlock.scripts import Script, answer_of
from bloomlock.strategies.base import header_command, header_from_bytes

from .combining import is_not_possible
from .contents import contents_of, set_header
from .expiry import set_expiry, time_left
from .generation import View, new_generation
from .lifecycle import delete, repeated
from .room import check_room
from .stored_filter import look, look_at_shard, most_slices
from .writing import Changed, mark_ready, store_command, write_watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stored_filter import Found

    Progress = Callable[[int, int], None]

_RENAME, _FENCE = Script("header", "rename"), Script("header", "fence")
_TO, _FROM, _NEXT = "to", "from_generation", "to_generation"

DONE, CHANGED, TAKEN = range(3)
NEEDS = "rename needs"


class Plan(NamedTuple):
    """A filter on its way to another name.

    Attributes:
        old: Where it is.
        new: Where it will be.
        before: As it was under the old name.
        after: As it will be.
    """

    old: FilterKeys
    new: FilterKeys
    before: Descriptor
    after: Descriptor

    @property
    def shards(self) -> range:
        """The numbers of its shards."""
        return range(self.before.size.shards)

    @property
    def placed_old(self) -> FilterKeys:
        """The keys of its shards."""
        return self.before.place(self.old)

    @property
    def placed_new(self) -> FilterKeys:
        """Those under the new name."""
        return self.before.place(self.new)

    def prepared(self, shard: int) -> str:
        """Return the key at which a shard is copied to."""
        return prepared_key(self.placed_new.bits(shard), self.after.generation)


def rename(
    old: FilterKeys, new: FilterKeys, header: int | None = None, progress: Progress | None = None
) -> Core[None]:
    """Give a filter another name, or finish doing so.

    Args:
        old: Its keys.
        new: Those it will have.
        header: That of the generation that is meant; None: whatever is there.
        progress: Called with how many shards are done, and of how many, where they are copied.
    """
    if old.name == new.name:
        raise ConfigurationError(f"the new name must not be {new.name!r}, the one that it has")
    found = yield from look(old)
    there = yield from look(new)
    current = found.descriptor
    if current is not None and current.state == RENAMING:
        yield from _resume(old, new, current, progress)
        return
    current = _as_it_is(old, found)
    if header is not None and current.header != header:
        raise _lost(old)
    noted = yield from _noted(old)
    if noted is not None and noted[0] == new.name and noted[1] == current.generation:
        generation = noted[2]
    elif there.descriptor is not None or there.header:
        raise _taken(new)
    else:
        generation = new_generation()
    after = current.with_generation(generation, READY, cleared=current.cleared)
    plan = Plan(old, new, current, after)
    done = yield from _rename_at_server(plan)
    if done == CHANGED:
        raise _lost(old)
    if done == TAKEN:
        raise _taken(new)
    if done is None:
        yield from _begin(plan)
        yield from _move(plan, progress)


def _taken(keys: FilterKeys) -> ConfigurationError:
    return ConfigurationError(f"name {keys.name!r} is taken by another filter")


def _lost(keys: FilterKeys) -> FilterLostError:
    return FilterLostError(
        f"filter {keys.name!r} was cleared, replaced or lost; it was not renamed"
    )


def _rename_at_server(plan: Plan) -> Core[int | None]:
    """Rename all keys in one step; None if they lie in several slots of a cluster."""
    old, new = plan.placed_old, plan.placed_new
    contents = contents_of(plan.before)
    bits = [(old.bits(n), new.bits(n)) for n in plan.shards]
    claims = [(ClaimKeys.of(one), ClaimKeys.of(two)) for one, two in bits]
    pairs = [(plan.old.meta, plan.new.meta), *bits, *((a.counts, b.counts) for a, b in claims)]
    for one, two in claims:
        pairs += zip(one.of_generation[1:], two.of_generation[1:], strict=True)
        theirs = contents.keys(one.bits, plan.before.header)
        pairs += zip(theirs, contents.keys(two.bits, plan.after.header), strict=True)
    keys = [key for pair in pairs for key in pair]
    headers = [d.header.to_bytes(HEADER_BYTES, "big") for d in (plan.before, plan.after)]
    numbers = plan.after.generation, len(plan.shards)
    (reply,) = yield from _RENAME.call([(keys, (*headers, *numbers))], repeatable=True)
    if isinstance(reply, ResponseError) and not is_missing(reply) and is_not_possible(reply):
        return None
    return int(answer_of(reply, NEEDS))


def _noted(old: FilterKeys) -> Core[tuple[str, int, int] | None]:
    """Return the new name, the generation and the one to come that a descriptor notes."""
    (values,) = yield from ask(old.meta, encode_command("HMGET", old.meta, _TO, _FROM, _NEXT))
    if None in values:
        return None
    return values[0].decode(errors="replace"), int(values[1]), int(values[2])


def _begin(plan: Plan) -> Core[None]:
    """Steps 1 to 3."""
    slices = yield from most_slices(plan.old, plan.before)
    yield from check_room(plan.new, plan.after, replaces=False, slices=slices)
    copying = replace(plan.after, state=COPYING)
    note = encode_command(
        "HSET", plan.old.meta, _TO, plan.new.name,
        _FROM, plan.before.generation, _NEXT, plan.after.generation,
    )  # fmt: skip
    yield from _write(plan, [note])
    yield from _reserve(plan, copying)
    fields = ("state", RENAMING, "generation", plan.after.generation)
    yield from _write(plan, [encode_command("HSET", plan.old.meta, *fields)])


def _reserve(plan: Plan, copying: Descriptor) -> Core[None]:
    """Store the descriptor under the new name, or find that a try that was cut off did."""
    keys = plan.new
    bits = keys.bits(0)
    unlink = encode_command("UNLINK", bits, forgotten_key(bits))

    def decide(found: Found) -> list[bytes]:
        if found.descriptor == copying:
            return []
        if found.descriptor is not None or found.header:
            raise _taken(keys)
        return [unlink, store_command(keys, copying)]

    yield from repeated(partial(write_watched, keys, decide))


def _write(plan: Plan, commands: list[bytes]) -> Core[None]:
    """Write to the old descriptor if it still is the one from before."""

    def decide(found: Found) -> list[bytes]:
        current = found.descriptor
        if current is not None and current.generation == plan.after.generation:
            return []
        if current != plan.before:
            raise _lost(plan.old)
        return commands

    yield from repeated(partial(write_watched, plan.old, decide))


def _resume(
    old: FilterKeys, new: FilterKeys, current: Descriptor, progress: Progress | None
) -> Core[None]:
    """Finish what a client began that is gone."""
    noted = yield from _noted(old)
    if noted is None or noted[0] != new.name or noted[2] != current.generation:
        name = "another name" if noted is None else repr(noted[0])
        raise ConfigurationError(f"filter {old.name!r} is being renamed to {name} already")
    before = current.with_generation(noted[1], READY, cleared=current.cleared)
    after = current.with_generation(noted[2], READY, cleared=current.cleared)
    yield from _move(Plan(old, new, before, after), progress)


def _move(plan: Plan, progress: Progress | None) -> Core[None]:
    """Steps 3, for the shards, to 5."""
    there = yield from look(plan.new)
    is_open = there.descriptor == plan.after and plan.after.has_header(there.header)
    if not is_open:
        copying = replace(plan.after, state=COPYING)
        if there.descriptor is None or there.descriptor != copying:
            yield from _reserve(plan, copying)
        yield from in_parallel([_fence(plan, shard) for shard in plan.shards])
        view = View.of(plan.old, _placing(plan.after), set())
        left_ms = yield from time_left(plan.old, view)
        for shard in plan.shards:
            yield from _copy_shard(plan, view, shard)
            if progress is not None:
                progress(shard + 1, len(plan.shards))
        try:
            yield from in_parallel(
                [repeated(partial(_put_in_place, plan, shard)) for shard in plan.shards]
            )
            if left_ms is not None and left_ms >= 0:
                moved = View.of(plan.new, _placing(plan.after), set())
                yield from set_expiry(plan.new, moved, max(left_ms, 1))
            yield from repeated(partial(_open, plan))
        except Changed:
            raise FilterLostError(
                f"filter {plan.new.name!r} was deleted or replaced while it got that name; "
                f"rename {plan.old.name!r} again"
            ) from None
    yield from delete(plan.old)


def _as_it_is(keys: FilterKeys, found: Found) -> Descriptor:
    """Return the parameters of a filter that may be renamed."""
    current = found.descriptor
    if current is None or not current.has_header(found.header):
        raise FilterNotFoundError(f"there is no filter named {keys.name!r}, or not all of it")
    if current.state != READY:
        raise ConfigurationError(f"filter {keys.name!r} is {current.state}, and cannot be renamed")
    return current


def _placing(descriptor: Descriptor) -> Descriptor:
    """Return the same without its key: nothing is placed here."""
    return replace(descriptor, key=None)


def _put_in_place(plan: Plan, shard: int) -> Core[None]:
    """Give a copied shard its name, unless a try that was cut off did."""
    header, _ = yield from look_at_shard(plan.placed_new, shard)
    if plan.after.has_header(header):
        return
    key, prepared = plan.placed_new.bits(shard), plan.prepared(shard)
    (start,) = yield from ask(prepared, header_command(prepared))
    if not plan.after.has_header(unflagged(header_from_bytes(start))):
        raise Changed
    (reply,) = yield Request(key, [encode_command("RENAME", prepared, key)])
    if isinstance(reply, ResponseError) and "no such key" in str(reply):
        raise Changed
    check([reply])


def _open(plan: Plan) -> Core[None]:
    """Open the filter, whose shards are in place, unless a try that was cut off did."""
    found = yield from look(plan.new)
    if found.descriptor != plan.after:
        yield from mark_ready(plan.new, replace(plan.after, state=COPYING))


def _fence(plan: Plan, shard: int) -> Core[None]:
    key = plan.placed_old.bits(shard)
    length = contents_of(plan.before).string_bytes(plan.before)
    headers = [d.header.to_bytes(HEADER_BYTES, "big") for d in (plan.before, plan.after)]
    (reply,) = yield from _FENCE.call([((key,), (*headers, length))], repeatable=True)
    if not answer_of(reply, NEEDS):
        raise _lost(plan.old)


def _copy_shard(plan: Plan, view: View, shard: int) -> Core[None]:
    """Copy bits and claims of a shard, unless they are in their place."""
    key = plan.placed_new.bits(shard)
    header, _ = yield from look_at_shard(plan.placed_new, shard)
    if plan.after.has_header(header):
        return
    yield from _copy_claims(plan, view.shards[shard].key, key)
    prepared = plan.prepared(shard)
    for left in (prepared, forgotten_key(prepared)):
        # Each by itself: of commands that go together a slot that moves may hold up the first.
        yield from ask(left, encode_command("UNLINK", left))
    yield from ask(prepared, set_header(prepared, plan.after.header))
    copied = yield from view.contents.copy(view.shards[shard], prepared, key, plan.after)
    # The versions of forgotten items are copied with the claims.
    yield from ask(key, encode_command("UNLINK", forgotten_key(prepared)))
    if not copied:
        raise _lost(plan.old)


def _copy_claims(plan: Plan, old: str, new: str) -> Core[None]:
    """Copy the keys of claims, and say that they are of the new generation."""
    olds, news = ClaimKeys.of(old), ClaimKeys.of(new)
    for one, two in zip(olds[1:], news[1:], strict=True):
        dumped, left_ms = yield from ask(
            one, encode_command("DUMP", one), encode_command("PTTL", one)
        )
        if dumped is None:
            yield from ask(two, encode_command("UNLINK", two))
            continue
        # 0 is for ever there.
        ttl_ms = max(left_ms, 1) if left_ms >= 0 else 0
        restore = encode_command("RESTORE", two, ttl_ms, bytes(dumped), "REPLACE")
        yield from ask(two, restore)
    (known,) = yield from ask(news.counts, encode_command("HGET", news.counts, "header"))
    if known == header_of(plan.before.generation).to_bytes(HEADER_BYTES, "big"):
        header = plan.after.header.to_bytes(HEADER_BYTES, "big")
        yield from ask(news.counts, encode_command("HSET", news.counts, "header", header))
