"""The union of two filters with the same bits, in place.

The bits are combined at the server if both filters are there, and it is not a node of a cluster,
where the shards of two filters lie in different slots. Else they travel through this client.

A union only sets bits, so it is made while others add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from bloomlock.arrays import np
from bloomlock.commands import encode_command
from bloomlock.delivery import ask, deliver, elsewhere
from bloomlock.descriptor import DISCARDED
from bloomlock.effects import ConnectionLost
from bloomlock.effects import Request as Asked
from bloomlock.errors import ConfigurationError, FilterLostError
from bloomlock.parallel import in_parallel
from bloomlock.strategies.base import header_command, header_from_bytes
from bloomlock.strategies.bitmap import image_bytes, merge_part

from . import combining
from .combining import DONE, FIRST, SECOND, TARGET, Piece, Target
from .state import TRIES, FilterState, follow
from .support import FROM_FILTER, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core

    from .generation import View


Progress: TypeAlias = "Callable[[int, int], None]"
"""Called with how much is done, and of how much."""


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
        changed = yield from _merge(pair, progress)
        if changed == DONE:
            yield from state.fill.look_after_add(pair.view)
        return changed

    yield from _in_generations(state, other, work)


def _in_generations(
    state: FilterState, other: Other, work: Callable[[Pair], Core[int]]
) -> Core[None]:
    """Do the work in the generations attached to, or in the next where they may be followed."""
    view = yield from state.current()
    theirs = yield from elsewhere(other.run, other.state.current())
    for _ in range(TRIES):
        for one, of in ((view, state), (theirs, other.state)):
            discards = one.discards
            check_support(FROM_FILTER, of.strategy.name, one.descriptor, discards=discards)
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
            theirs = yield from elsewhere(other.run, _follow(other.state, theirs))
        else:
            view = yield from _follow(state, view)
    raise _changed(changed, state, other)


def _follow(state: FilterState, view: View) -> Core[View]:
    yield from _refuse_discards(state, view)
    return (yield from follow(state, view))


def _refuse_discards(state: FilterState, view: View) -> Core[None]:
    """Raise ConfigurationError if items of a generation were discarded, as a shard says."""
    asked = [ask(shard.key, header_command(shard.key)) for shard in view.shards]
    for (start,) in (yield from in_parallel(asked)):
        if header_from_bytes(start) == view.header | DISCARDED:
            check_support(FROM_FILTER, state.strategy.name, discards=True)


def _changed(changed: int, state: FilterState, other: Other) -> FilterLostError:
    lost = other.state if changed == SECOND else state
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


def _merge(pair: Pair, progress: Progress | None) -> Core[int]:
    """Set the bits of the other filter in this one; stop where a shard is of another generation."""
    groups = pair.groups()
    total = sum(piece.num_bytes for group in groups for piece in group)
    done = 0
    for group in groups:
        changed = yield from _merge_group(pair, group)
        if changed != DONE:
            return changed
        done += sum(piece.num_bytes for piece in group)
        if progress is not None:
            progress(done, total)
    return DONE


def _merge_group(pair: Pair, group: list[Piece]) -> Core[int]:
    mine, theirs = pair.view.shards, pair.theirs.shards
    if pair.at_server:
        steps = [
            combining.combine(
                Target(mine[p.shard].key, mine[p.shard].header),
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
            flagged=False,
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
