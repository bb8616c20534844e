"""Set algebra of two filters with the same bits: union, intersection, how much they share.

The bits are combined at the server if both filters are there, and it is not a node of a cluster,
where the shards of two filters lie in different slots. Else they travel through this client.

A union only sets bits, so it is made in place, while others add. An intersection unsets some, and
no answer that was kept or given may depend on these: so it is prepared beside
the bits, and replaces them as a new generation.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from redis.exceptions import RedisError

from bloomlock.arrays import np
from bloomlock.bitmaps import count_either
from bloomlock.commands import encode_command
from bloomlock.delivery import ask, deliver, elsewhere
from bloomlock.descriptor import FORGETTING, REPLACING, Descriptor
from bloomlock.effects import ConnectionLost
from bloomlock.effects import Request as Asked
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError
from bloomlock.keys import replacement_key
from bloomlock.parallel import in_parallel
from bloomlock.strategies.base import header_command, header_from_bytes
from bloomlock.strategies.bitmap import image_bytes, merge_part

from . import combining, replacement, transfer
from .combining import DONE, FIRST, SECOND, TARGET, Piece, Target
from .lifecycle import repeated
from .room import check_room
from .state import TRIES, FilterState, follow
from .writing import Changed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys

    from .generation import View


Progress: TypeAlias = "Callable[[int, int], None]"
"""Called with how much is done, and of how much."""

OR, AND = "OR", "AND"


class Other(NamedTuple):
    """The other filter of an operation.

    Attributes:
        state: What its object knows.
        run: Carries out a core over its client.
    """

    state: FilterState
    run: Callable[[Core[Any]], Any]


class Pair(NamedTuple):
    """Two filters with the same bits, each in one generation.

    Attributes:
        view: The filter whose method was called.
        theirs: The other one.
        other: Where that is.
        at_server: Whether one server has both in one database.
    """

    view: View
    theirs: View
    other: Other
    at_server: bool

    def groups(self) -> list[list[Piece]]:
        """Return the parts of a shard's string, grouped by what goes together."""
        shards = self.view.shards
        return combining.pieces(len(shards), image_bytes(shards[0]), travels=not self.at_server)

    def read_theirs(self, group: Sequence[Piece]) -> Core[list[bytes | None]]:
        """Return parts of the other filter; None where it has changed."""
        reads = [combining.read(self.theirs.shards[piece.shard], piece) for piece in group]
        return (yield from elsewhere(self.other.run, in_parallel(reads)))

    def read_mine(self, group: Sequence[Piece]) -> Core[list[bytes | None]]:
        """Return the same parts of this filter."""
        reads = [combining.read(self.view.shards[piece.shard], piece) for piece in group]
        return (yield from in_parallel(reads))


def differences(mine: Descriptor, theirs: Descriptor) -> list[str]:
    """Return "parameter: ... here, ... there" for each on which the bits of an item depend."""
    pairs = [
        ("num_bits", mine.size.num_bits, theirs.size.num_bits),
        ("num_hashes", mine.size.num_hashes, theirs.size.num_hashes),
        ("shards", mine.size.shards, theirs.size.shards),
        ("seeds", mine.seeds, theirs.seeds),
    ]
    found = [f"{what}: {one} here, {two} there" for what, one, two in pairs if one != two]
    if mine.key != theirs.key:
        kinds = ["none" if one is None else f"a {one.kind} one" for one in (mine.key, theirs.key)]
        same = ", which is another" if kinds[0] == kinds[1] else ""
        found.append(f"key: {kinds[0]} here, {kinds[1]} there{same}")
    return found


def update(state: FilterState, other: Other, progress: Progress | None = None) -> Core[None]:
    """Add everything that another filter holds; may be repeated."""

    def work(pair: Pair) -> Core[int]:
        changed = yield from _each_group(pair, partial(_merge_group, pair), progress)
        if changed == DONE:
            yield from state.fill.look_after_add(pair.view)
        return changed

    yield from _in_generations(state, other, "update() from another filter", work)


def join(
    state: FilterState,
    other: Other,
    keys: FilterKeys,
    operation: str,
    progress: Progress | None = None,
) -> Core[None]:
    """Make a new filter of two, under a name that is free; one that is not whole is deleted."""
    name = "union()" if operation == OR else "intersection()"

    def work(pair: Pair) -> Core[int]:
        def fill(prepared: Callable[[int], str], target: Descriptor) -> Core[None]:
            def shard(number: int) -> Target:
                return Target(prepared(number), target.header)

            core = partial(_combine_group, pair, operation, shard)
            changed = yield from _each_group(pair, core, progress)
            if changed != DONE:
                yield from _refuse_forgotten(state, pair.view, name)
                looked = _refuse_forgotten(other.state, pair.theirs, name)
                yield from elsewhere(other.run, looked)
                raise _changed(changed, state, other, keys.name)

        yield from transfer.make(pair.view, keys, fill)
        return DONE

    yield from _in_generations(state, other, name, work)


def intersect(state: FilterState, other: Other, progress: Progress | None = None) -> Core[None]:
    """Keep what another filter holds as well, as a new generation."""

    def work(pair: Pair) -> Core[int]:
        view, keys = pair.view, state.keys
        target = view.descriptor.with_generation(state.own_generation(), REPLACING, cleared=True)

        def shard(number: int) -> Target:
            key = replacement_key(view.shards[number].key, target.generation)
            return Target(key, target.header)

        yield from check_room(keys, target, replaces=False)
        try:
            made = [replacement.begin(shard(n).key, target) for n in range(len(view.shards))]
            yield from in_parallel(made)
            core = partial(_combine_group, pair, AND, shard)
            changed = yield from _each_group(pair, core, progress)
            _refuse_gone(changed, state)
            if changed == DONE:
                yield from repeated(lambda: replacement.store(keys, view.descriptor, target))
        except Changed:
            changed = FIRST
        except (BloomlockError, RedisError):
            with suppress(RedisError, BloomlockError):
                yield from replacement.withdraw(keys, target)
            raise
        finally:
            # Whatever the outcome, this object gives no answer from before.
            state.forget()
        if changed != DONE:
            yield from replacement.withdraw(keys, target)
            return changed
        # Attaching puts the prepared shards in place.
        yield from state.attach()
        return DONE

    yield from _in_generations(state, other, "intersection_update()", work)


def _refuse_gone(changed: int, state: FilterState) -> None:
    if changed == TARGET:
        raise BloomlockError(
            f"what was prepared to replace the bits of filter {state.keys.name!r} is gone; nothing "
            "was changed"
        )


def jaccard(state: FilterState, other: Other) -> Core[float]:
    """Return the estimated share of items in both filters among those in either."""
    counted = yield from _count(state, other, "jaccard()")
    descriptor = state.descriptor
    size, estimate = descriptor.size, descriptor.formulas.estimate_count
    mine, theirs, either = (estimate(bits, size.num_bits, size.num_hashes) for bits in counted)
    return min(1.0, max(0.0, (mine + theirs) / either - 1)) if either else 1.0


def isdisjoint(state: FilterState, other: Other) -> Core[bool]:
    """Return whether no bit is set in both filters, so that no item is in both."""
    mine, theirs, either = yield from _count(state, other, "isdisjoint()")
    return mine + theirs == either


def _count(state: FilterState, other: Other, method: str) -> Core[tuple[int, int, int]]:
    """Return how many bits are set in a filter, in another one, and in either."""
    counted: list[tuple[int, int, int]] = []

    def work(pair: Pair) -> Core[int]:
        counted.clear()
        return (yield from _each_group(pair, partial(_count_group, pair, counted), None))

    yield from _in_generations(state, other, method, work)
    mine, theirs, either = map(sum, zip(*counted, strict=True))
    return mine, theirs, either


def _in_generations(
    state: FilterState, other: Other, method: str, work: Callable[[Pair], Core[int]]
) -> Core[None]:
    """Do the work in the generations attached to, or in the next where they may be followed."""
    view = yield from state.current()
    theirs = yield from elsewhere(other.run, other.state.current())
    for _ in range(TRIES):
        for one, of in ((view, state), (theirs, other.state)):
            one.contents.check_has_bits(method)
            if one.forgotten is not None:
                raise _forgets(of, method)
        if found := differences(view.descriptor, theirs.descriptor):
            raise ConfigurationError(
                f"filters {state.keys.name!r} and {other.state.keys.name!r} cannot be combined: "
                f"the bits of an item are others ({'; '.join(found)})"
            )
        at_server = yield from _have_one_server(view, theirs, other)
        changed = yield from work(Pair(view, theirs, other, at_server))
        if changed == DONE:
            return
        if changed == SECOND:
            theirs = yield from elsewhere(other.run, _follow(other.state, theirs, method))
        else:
            view = yield from _follow(state, view, method)
    raise _changed(changed, state, other, state.keys.name)


def _follow(state: FilterState, view: View, method: str) -> Core[View]:
    yield from _refuse_forgotten(state, view, method)
    return (yield from follow(state, view))


def _refuse_forgotten(state: FilterState, view: View, method: str) -> Core[None]:
    """Raise ConfigurationError if items of a generation were forgotten, as a shard says."""
    asked = [ask(shard.key, header_command(shard.key)) for shard in view.shards]
    for (start,) in (yield from in_parallel(asked)):
        if header_from_bytes(start) == view.header | FORGETTING:
            raise _forgets(state, method)


def _forgets(state: FilterState, method: str) -> ConfigurationError:
    return ConfigurationError(
        f"{method} is not possible with filter {state.keys.name!r}, of which items were forgotten "
        "(discard): the bits of such items are others than in another filter; clear it, or make "
        "another one of the items"
    )


def _changed(changed: int, state: FilterState, other: Other, made: str) -> FilterLostError:
    lost = other.state if changed == SECOND else state
    if changed == TARGET:
        return FilterLostError(f"filter {made!r} was deleted or replaced while it was made")
    return FilterLostError(
        f"filter {lost.keys.name!r} was cleared, replaced or lost while it was combined with "
        "another one"
    )


def _have_one_server(view: View, theirs: View, other: Other) -> Core[bool]:
    """Return whether a script of one server reaches both filters."""
    mine = yield from _run_id(view.shards[0].key)
    if mine is None:
        return False
    key = theirs.shards[0].key
    if (yield from elsewhere(other.run, _run_id(key))) != mine:
        return False
    # A server has several databases: only if its header is seen from here it is in the same one.
    (start,) = yield from ask(view.shards[0].key, header_command(key))
    return header_from_bytes(start) == theirs.header


def _run_id(key: str) -> Core[str | None]:
    """Return which server has a key; None if it does not say, or is a node of a cluster."""
    request = Asked(key, [encode_command("INFO", "server")])
    try:
        (reply,) = yield from deliver(request, repeatable=True)
    except ConnectionLost as lost:
        raise lost.cause from None
    if isinstance(reply, Exception):
        return None
    lines = bytes(reply).decode(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "cluster" in (fields.get("redis_mode"), fields.get("server_mode")):
        return None
    return fields.get("run_id")


def _each_group(
    pair: Pair, step: Callable[[list[Piece]], Core[int]], progress: Progress | None
) -> Core[int]:
    """Take a step with each group; stop where a shard is of another generation."""
    groups = pair.groups()
    total = sum(piece.num_bytes for group in groups for piece in group)
    done = 0
    for group in groups:
        changed = yield from step(group)
        if changed != DONE:
            return changed
        done += sum(piece.num_bytes for piece in group)
        if progress is not None:
            progress(done, total)
    return DONE


def _merge_group(pair: Pair, group: list[Piece]) -> Core[int]:
    """Set the bits of the other filter in this one."""
    mine, theirs = pair.view.shards, pair.theirs.shards
    if pair.at_server:
        steps = [
            combining.combine(
                Target(mine[p.shard].key, mine[p.shard].header),
                OR,
                (mine[p.shard], theirs[p.shard]),
                p,
            )
            for p in group
        ]
        changed = _worst([_possible(one) for one in (yield from in_parallel(steps))])
        return FIRST if changed == TARGET else changed
    found = yield from pair.read_theirs(group)
    if None in found:
        return SECOND
    merges = [
        merge_part(
            mine[p.shard],
            p.first,
            np.frombuffer(bits or b"", np.uint8),
            answers=False,
            waits=True,
        )
        for p, bits in zip(group, found, strict=True)
    ]
    replies = yield from in_parallel(merges)
    for reply in replies:
        if isinstance(reply, ConnectionLost):
            raise reply.cause from None
        if isinstance(reply, Exception):
            raise reply
        if reply[0] != pair.view.header:
            return FIRST
    return DONE


def _combine_group(
    pair: Pair, operation: str, target: Callable[[int], Target], group: list[Piece]
) -> Core[int]:
    """Write parts of both filters, combined, to prepared shards."""
    mine, theirs = pair.view.shards, pair.theirs.shards
    if pair.at_server:
        steps = [
            combining.combine(target(p.shard), operation, (mine[p.shard], theirs[p.shard]), p)
            for p in group
        ]
        return _worst([_possible(one) for one in (yield from in_parallel(steps))])
    found = yield from pair.read_theirs(group)
    own = yield from pair.read_mine(group)
    if None in found or None in own:
        return SECOND if None in found else FIRST
    combined = np.bitwise_or if operation == OR else np.bitwise_and
    puts = []
    for piece, one, two in zip(group, own, found, strict=True):
        bits = combined(np.frombuffer(one or b"", np.uint8), np.frombuffer(two or b"", np.uint8))
        puts.append(combining.put(target(piece.shard), piece, bits.tobytes()))
    return DONE if all((yield from in_parallel(puts))) else TARGET


def _count_group(pair: Pair, counted: list[tuple[int, int, int]], group: list[Piece]) -> Core[int]:
    """Count the bits of parts of both filters."""
    mine, theirs = pair.view.shards, pair.theirs.shards
    if pair.at_server:
        steps = [combining.count(mine[p.shard], theirs[p.shard], p) for p in group]
        for reply in (yield from in_parallel(steps)):
            if reply is None:
                raise _refused()
            if reply[0] != DONE:
                return reply[0]
            counted.append((reply[1], reply[2], reply[3]))
        return DONE
    found = yield from pair.read_theirs(group)
    own = yield from pair.read_mine(group)
    if None in found or None in own:
        return SECOND if None in found else FIRST
    for one, two in zip(own, found, strict=True):
        counted.append(count_either(one or b"", two or b""))
    return DONE


def _possible(reply: int | None) -> int:
    if reply is None:
        raise _refused()
    return reply


def _refused() -> ConfigurationError:
    return ConfigurationError(
        "combining filters needs a server that runs scripts and BITOP for this client, which this "
        "one refuses"
    )


def _worst(replies: Sequence[int]) -> int:
    return next((reply for reply in replies if reply != DONE), DONE)
