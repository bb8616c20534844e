"""The versions of forgotten items, and how items are asked for and added by them.

A bit cannot be unset without harm to other items. So an item that is forgotten gets a version, a
random number, and its bits lie from then on where a hash of item and version says. A table beside
each shard has the versions: a hash from identities (16 bytes) to versions (6 bytes). An item that
was never forgotten is not in it, and has its usual bits.

A step reads the table and then the bits, in one round trip. Two things make that exact without a
transaction. A version never returns. And an item is forgotten only when all bits of the version
that it has are set, which they stay. So

    an answer "not there" by a version that was in force once is about the version in force, as
    all bits of those before it are set;
    an answer "there" by the version that the table had just before says that the item was there
    between the two readings, or at the second;
    an answer "there" by another version says nothing, and has changed nothing. It is asked again.

With a time window bits of old versions are wiped. So "not there" too counts only by the version
that the table had just before, and an add reads the table in front of each of its commands that
sets bits; see strategies/held.py and adding.py.

An item is asked for by the version that this object knows of it, by none if it knows none. So one
round trip is enough but for items that other clients forgot, at the first time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bloomlock.arrays import np
from bloomlock.delivery import ask as deliver_all
from bloomlock.descriptor import unflagged
from bloomlock.effects import ConnectionLost, Pipeline, Request
from bloomlock.errors import BloomlockError
from bloomlock.parallel import in_parallel
from bloomlock.strategies import Segment
from bloomlock.strategies.adding import most_at_once
from bloomlock.strategies.held import Held, LateNew, Preceded, read_versions, versions_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock.commands import Replies
    from bloomlock.effects import Core, Step
    from bloomlock.strategies import Shard, Strategy
    from bloomlock.strategies.base import Answered, Rows

    from .generation import View
    from .versions import KnownVersions

T = TypeVar("T")

TRIES = 100
"""How often an item may be forgotten by other clients during one operation."""


class Placed(NamedTuple):
    """Some items of one shard, by the versions that they are asked for with.

    Attributes:
        identities: What stands for each in the table.
        versions: The version of each.
    """

    identities: Sequence[bytes]
    versions: Sequence[bytes]


def ask_one(view: View, strategy: Strategy, data: bytes, *, write: bool) -> Core[Segment]:
    """Do what Strategy.one does, by the version of the item."""
    hasher, known = view.hasher, _known(view)
    identity = hasher.identify(data)
    number, places = hasher.locate(data)
    shard = view.shards[number]
    for _ in range(TRIES):
        placed = Placed([identity], [known.version_of(identity)])
        if placed.versions[0]:
            places = hasher.relocate(identity, placed.versions[0])
        if view.descriptor.window is not None:
            held = Held(shard.key, *placed)
            core = strategy.one(shard._replace(held=held), places, write=write)
            (answer,) = _answers_held(view, placed, held, [(yield from core)])
        else:
            core = strategy.one(shard, places, write=write)
            read, segment = yield from _read_first(shard, placed.identities, core)
            (answer,) = _answers(view, placed, read, [segment])
        if isinstance(answer, Segment):
            return answer
        known.learn(identity, answer)
        if not answer:
            places = hasher.locate(data)[1]
    return Segment(1, error=_forgotten_all_the_time())


def ask(view: View, strategy: Strategy, items: Sequence[bytes], *, write: bool) -> Core[Answered]:
    """Do what Strategy.many does for items of any shards, by their versions."""
    hasher, known = view.hasher, _known(view)
    digests = hasher.digests(items)
    identities = hasher.identities(items, digests)
    numbers, rows = hasher.place(digests)
    shard_of: list[int] = numbers.tolist()
    usual: dict[int, Any] = {}
    versions = [b""] * len(items)
    found: list[Segment | None] = [None] * len(items)
    left = list(range(len(items)))
    for _ in range(TRIES):
        by_shard: dict[int, list[int]] = {}
        for index in left:
            by_shard.setdefault(shard_of[index], []).append(index)
            version = known.version_of(identities[index])
            if version != versions[index]:
                usual.setdefault(index, rows[index].copy())
                versions[index] = version
                rows[index] = (
                    hasher.relocated_row(identities[index], version) if version else usual[index]
                )
        parts = []
        for number, indices in by_shard.items():
            placed = Placed(
                [identities[index] for index in indices], [versions[index] for index in indices]
            )
            parts.append(_ask_shard(view, strategy, number, placed, rows[indices], write=write))
        most = strategy.shards_at_once(view.shards[0], write=write)
        answered = yield from in_parallel(parts, most)
        left = []
        for indices, answers in zip(by_shard.values(), answered, strict=True):
            for index, answer in zip(indices, answers, strict=True):
                if isinstance(answer, Segment):
                    found[index] = answer
                else:
                    known.learn(identities[index], answer)
                    left.append(index)
        if not left:
            break
    for index in left:
        found[index] = Segment(1, error=_forgotten_all_the_time())
    return _joined(view, found)


def _ask_shard(
    view: View, strategy: Strategy, number: int, placed: Placed, rows: Rows, *, write: bool
) -> Core[list[Segment | bytes]]:
    """Ask for items of one shard; return for each what `_answers` does."""
    shard = view.shards[number]
    if view.descriptor.window is None:
        core = strategy.any_number(shard, rows, write=write)
        read, segments = yield from _read_first(shard, placed.identities, core)
        return list(_answers(view, placed, read, segments))
    answers: list[Segment | bytes] = []
    most = most_at_once(view.descriptor.window)
    for start in range(0, len(rows), most):
        some = Placed(*(words[start : start + most] for words in placed))
        held = Held(shard.key, *some)
        core = strategy.any_number(
            shard._replace(held=held), rows[start : start + most], write=write
        )
        answers += _answers_held(view, some, held, (yield from core))
    return answers


def versions_of(view: View, items: Sequence[bytes]) -> Core[list[bytes]]:
    """Return the versions that items have; empty: none.

    Raises:
        redis.exceptions.RedisError: What the server answered, or why it could not be reached.
    """
    versions = []
    for item in items:
        key = view.shards[view.hasher.locate(item)[0]].key
        (reply,) = yield from deliver_all(key, *read_versions(key, [view.hasher.identify(item)]))
        versions.append(reply[0] or b"")
    return versions


def _known(view: View) -> KnownVersions:
    if view.forgotten is None:
        raise TypeError("the view does not go by what was forgotten")
    return view.forgotten


def _forgotten_all_the_time() -> BloomlockError:
    return BloomlockError("an item is forgotten by other clients all the time; try again")


def _joined(view: View, found: Sequence[Segment | None]) -> Answered:
    """Return the answers about the view's generation as one segment, and the others."""
    indices: list[int] = []
    missing: list[bool] = []
    others: list[tuple[Sequence[int], list[Segment]]] = []
    for index, segment in enumerate(found):
        if segment is None:
            continue
        if segment.error is None and segment.missing is not None and segment.header == view.header:
            indices.append(index)
            missing.append(bool(segment.missing[0]))
        else:
            others.append(([index], [segment]))
    if not indices:
        return others
    return [(indices, [Segment(len(indices), view.header, missing)]), *others]


def _answers(
    view: View, placed: Placed, read: Replies | None, segments: Sequence[Segment]
) -> Iterator[Segment | bytes]:
    """Yield for each item its answer, or the version by which it has to be asked for again.

    Args:
        view: The view that the items were asked for in.
        placed: The items.
        read: What the table had for them before, or errors; None: no answer came at all.
        segments: The answers by the versions they were asked for with.
    """
    count = len(placed.identities)
    versions = [b""] * count if read is None else versions_in(read, count)
    start = 0
    for segment in segments:
        missing: Sequence[bool | None] = [None] * segment.rows
        if segment.missing is not None:
            missing = np.asarray(segment.missing).tolist()
        for row in range(segment.rows):
            yield _answer(
                view,
                segment._replace(rows=1, missing=None),
                missing[row],
                placed.versions[start + row],
                versions[start + row],
            )
        start += segment.rows


def _answer(
    view: View, bare: Segment, missing: bool | None, asked: bytes, version: bytes | Exception
) -> Segment | bytes:
    if bare.error is not None:
        return bare
    if unflagged(bare.header) != view.header:
        # By a version the bits of another generation are those of no item. But where its table has
        # the same version it is the same filter, that had another name meanwhile: what was new to
        # it is reported, though it is asked for again and is there then.
        is_new = bool(missing and asked and version == asked)
        flags = None if missing is None or asked else [missing]
        return bare._replace(missing=flags, new_elsewhere=is_new)
    if missing is None:
        return bare
    if isinstance(version, Exception):
        # Nothing was changed if all bits were set.
        return (
            bare._replace(header=view.header, missing=[True])
            if missing
            else Segment(1, error=version)
        )
    if version != asked:
        return version
    return bare._replace(header=view.header, missing=[missing])


def _answers_held(
    view: View, placed: Placed, held: Held, segments: Sequence[Segment]
) -> Iterator[Segment | bytes]:
    """Yield for each item of a filter with a time window what `_answers` does."""
    flags: list[tuple[Segment, bool | None]] = []
    for segment in segments:
        missing: Sequence[bool | None] = [None] * segment.rows
        if segment.missing is not None:
            missing = np.asarray(segment.missing).tolist()
        bare = segment._replace(rows=1, missing=None)
        flags += [(bare, one) for one in missing]
    for row, (bare, flag) in enumerate(flags):
        asked, version = placed.versions[row], held.found(row)
        if asked and isinstance(bare.error, LateNew):
            # By a version the bits of another generation are those of no item.
            yield Segment(1, bare.error.header)
        elif row in held.settled:
            yield bare._replace(header=view.header, missing=[bool(flag)])
        elif (
            isinstance(version, Exception)
            and bare.error is None
            and flag is not None
            and unflagged(bare.header) == view.header
        ):
            # An answer by another version says nothing, not even that the item is not there.
            yield Segment(1, error=version)
        else:
            yield _answer(view, bare, flag, asked, version)


def _read_first(
    shard: Shard, identities: Sequence[bytes], core: Core[T]
) -> Core[tuple[Replies | None, T]]:
    """Carry out a core of a strategy, and read the table in its first request before all else.

    Returns:
        What the table has for the items, in replies of some each; None if that did not arrive, so
        that nothing else did. And the result of the core.
    """
    commands = read_versions(shard.key, identities)
    count = len(commands)
    read: Replies | None = None
    try:
        step: Step = next(core)
        while True:
            sent = step if read is not None else _preceded(commands, step)
            try:
                answer: Any = yield sent
            except ConnectionLost as lost:
                if sent is step:
                    step = core.throw(lost)
                else:
                    read = lost.replies[:count] if len(lost.replies) >= count else None
                    step = core.throw(_without_first(lost, count))
            else:
                if sent is not step:
                    read, answer = answer[:count], answer[count:]
                step = core.send(answer)
    except StopIteration as stop:
        return read, stop.value
    finally:
        core.close()


def _preceded(commands: Sequence[bytes], step: Step) -> Step:
    """Return a step with some commands before its own, if it has any."""
    if isinstance(step, Request):
        # Only what comes alone can be received into a place of its own.
        return step._replace(commands=[*commands, *step.commands], room=None)
    if isinstance(step, Pipeline):
        return step._replace(writes=Preceded(commands, step.writes))
    return step


def _without_first(lost: ConnectionLost, count: int) -> ConnectionLost:
    """Return what became of the commands that followed some others."""
    written = None if lost.written is None else max(0, lost.written - count)
    return ConnectionLost(
        lost.cause,
        sent=lost.sent and written != 0,
        replies=lost.replies[count:],
        written=written,
    )
