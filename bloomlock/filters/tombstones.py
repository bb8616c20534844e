"""The tombstones of discarded items: how items are asked for beside them, and their sets.

Bits are never unset, so an item is discarded by a tombstone: its identity (16 bytes) in a set
beside its shard. The header of the shard has a flag while there is such a set. While this object
knows of the flag, `exists` and `add` send SMISMEMBER and then their own command in one request.

    a bit was missing            not there, or new. Final: a tombstone is made only when all bits
                                 are set, and within a generation they stay set.
    all set, no flag             there, or seen.
    all set, flag, no tombstone  there, or seen.
    all set, flag, tombstone     not there. An add goes to readd.lua, where exactly one of several
                                 clients removes the tombstone, and so gets "new".

The set has one more member, the sentinel: the header of its generation without flags. It is made
by the script that sets the flag, and no script makes a set for a header that has the flag. So a set
without the sentinel is that of another generation, or it was evicted and had tombstones: then the
generation is broken, as if a shard were missing. What is read without the sentinel says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from bloomlock.arrays import np
from bloomlock.commands import encode_command
from bloomlock.delivery import ask as ask_server
from bloomlock.delivery import collect
from bloomlock.descriptor import DISCARDED, HEADER_BYTES, unflagged
from bloomlock.effects import ConnectionLost, Pipeline, Request
from bloomlock.hash_keys import DIGEST_BYTES
from bloomlock.hashing import pick
from bloomlock.keys import PREPARED_SECONDS, discards_key
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script, named_error
from bloomlock.strategies import Segment
from bloomlock.strategies.base import error_of, header_command, header_from_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock.commands import Replies
    from bloomlock.effects import Core, Step, Writes
    from bloomlock.strategies import Shard, Strategy
    from bloomlock.strategies.base import Answered

    from .generation import View

T = TypeVar("T")

IDENTITIES_PER_COMMAND = 1000
EPOCH_BYTES = 8

BROKEN = DISCARDED
"""In place of the header of a shard whose set was evicted; no shard has it."""

NEEDS = "discard needs"
_READD = Script("header", "readd")


def sentinel(header: int) -> bytes:
    """Return the member that says of which generation a set is."""
    return header.to_bytes(HEADER_BYTES, "big")


def ask_one(view: View, strategy: Strategy, data: bytes, *, write: bool) -> Core[Segment]:
    """Do what Strategy.one does, beside the tombstones."""
    core = strategy.one(view.shards, view.hasher, data, write=write)
    if view.descriptor.slices:
        return final(view, (yield from core))
    identity = view.hasher.identify(data)
    shard = view.shards[view.hasher.shard_of(data)]
    looked, segment = yield from _looked_up_first(shard, [identity], core)
    header, missing = segment.header, segment.missing
    if header == view.header | DISCARDED and missing is not None and looked is not None:
        # What settle does, without its costs.
        is_missing = bool(missing[0])
        if is_missing or not (write and looked[0]):
            return Segment(1, view.header, [is_missing or looked[0]])
    ((_, (answer,)),) = yield from settle(view, shard, [identity], [segment], looked, write=write)
    return answer


def ask(view: View, strategy: Strategy, items: Sequence[bytes], *, write: bool) -> Core[Answered]:
    """Do what Strategy.ask does for items of any shards, beside the tombstones."""
    if view.descriptor.slices:
        found = yield from strategy.ask(view.shards, view.hasher, items, write=write)
        return [
            (indices, [final(view, segment) for segment in segments]) for indices, segments in found
        ]
    by_shard = view.hasher.by_shard(items)
    steps = []
    for number, indices in by_shard.items():
        shard, mine = view.shards[number], pick(items, indices)
        core = strategy.ask_shard(shard, view.hasher, mine, write=write)
        identities = list(map(view.hasher.identify, mine))
        steps.append(_ask_shard(view, shard, identities, core, write=write))
    most = strategy.shards_at_once(view.shards[0], write=write)
    answered = yield from in_parallel(steps, most)
    return [
        ([indices[row] for row in some], segments)
        for indices, answers in zip(by_shard.values(), answered, strict=True)
        for some, segments in answers
    ]


def final(view: View, segment: Segment) -> Segment:
    """Return the answer of a script that has looked for tombstones, without the flag."""
    if segment.header == view.header | DISCARDED:
        return segment._replace(header=view.header)
    return segment


def settle_all_set(view: View, items: Sequence[bytes], *, write: bool) -> Core[Answered]:
    """Answer items whose bits are all set in this generation, as a reply with the flag has said."""
    by_shard = view.hasher.by_shard(items)
    steps = []
    for number, indices in by_shard.items():
        found = Segment(len(indices), view.header | DISCARDED, [False] * len(indices))
        mine = list(map(view.hasher.identify, pick(items, indices)))
        steps.append(settle(view, view.shards[number], mine, [found], None, write=write))
    answered = yield from in_parallel(steps)
    return [
        ([indices[row] for row in some], segments)
        for indices, answers in zip(by_shard.values(), answered, strict=True)
        for some, segments in answers
    ]


def _ask_shard(
    view: View, shard: Shard, identities: Sequence[bytes], core: Core[list[Segment]], *, write: bool
) -> Core[Answered]:
    looked, segments = yield from _looked_up_first(shard, identities, core)
    return (yield from settle(view, shard, identities, segments, looked, write=write))


def settle(
    view: View,
    shard: Shard,
    identities: Sequence[bytes],
    segments: Sequence[Segment],
    looked: Sequence[bool] | None,
    *,
    write: bool,
) -> Core[Answered]:
    """Turn what commands said of bits into answers; see the table above.

    Args:
        view: The generation.
        shard: Where the items are.
        identities: Of the items, one for each row.
        segments: What the strategy answered.
        looked: Which items have a tombstone, as it was just before; None: that is not known.
        write: Whether the bits were set as well.
    """
    answered: list[tuple[Sequence[int], list[Segment]]] = []
    all_set: list[int] = []
    start = 0
    for segment in segments:
        rows = range(start, start + segment.rows)
        start = rows.stop
        is_flagged = segment.header == view.header | DISCARDED
        if segment.error is not None or segment.missing is None or not is_flagged:
            answered.append((rows, [segment]))
            continue
        missing = np.asarray(segment.missing)
        if missing.any():
            final = rows.start + np.flatnonzero(missing)
            answered.append((final.tolist(), [_same(view, len(final), True)]))
        all_set += (rows.start + np.flatnonzero(~missing)).tolist()
    if not all_set:
        return answered
    if looked is None:
        found = yield from _look_up(view, shard, [identities[row] for row in all_set])
        if isinstance(found, Segment):
            return [*answered, (all_set, [found._replace(rows=len(all_set))])]
    else:
        found = [looked[row] for row in all_set]
    there = [row for row, is_dead in zip(all_set, found, strict=True) if not is_dead]
    dead = [row for row, is_dead in zip(all_set, found, strict=True) if is_dead]
    if there:
        answered.append((there, [_same(view, len(there), False)]))
    if dead and not write:
        answered.append((dead, [_same(view, len(dead), True)]))
    elif dead:
        segments = yield from _readd(view, shard, [identities[row] for row in dead])
        answered.append((dead, segments))
    return answered


def _same(view: View, rows: int, missing: bool) -> Segment:
    """Return an answer of the view's generation that is the same for some rows."""
    return Segment(rows, view.header, [missing] * rows)


def _look_up(view: View, shard: Shard, identities: Sequence[bytes]) -> Core[list[bool] | Segment]:
    """Return which items have a tombstone, or for all of them why that is not known.

    A reply had the flag before, so a set that has no sentinel was evicted if the shard still is of
    that generation afterwards.
    """
    commands = [*_look_up_commands(shard, identities), header_command(shard.key)]
    *replies, start = yield from collect(Request(shard.key, commands), repeatable=True)
    for reply in (*replies, start):
        if isinstance(reply, Exception):
            # The bits were all set before, so nothing was changed.
            cause = reply.cause if isinstance(reply, ConnectionLost) else reply
            return Segment(1, error=ConnectionLost(cause, sent=False, replies=[]))
    found = _read_look_up(replies, len(identities))
    if found is not None:
        return found
    header = header_from_bytes(start)
    return Segment(1, BROKEN if unflagged(header) == view.header else header)


def _readd(view: View, shard: Shard, identities: Sequence[bytes]) -> Core[list[Segment]]:
    """Remove the tombstones of items whose bits are all set; who removes one gets "new"."""
    parts = _in_parts(identities)
    keys = [shard.key, discards_key(shard.key)]
    calls = [(keys, [sentinel(view.header), b"".join(part)]) for part in parts]
    # Sent once: who repeats it gets "seen" of what it has added itself.
    replies = yield from _READD.call(calls, repeatable=False)
    segments = []
    for part, reply in zip(parts, replies, strict=True):
        if not isinstance(reply, list):
            error = named_error(error_of(reply), NEEDS)
            segments.append(Segment(len(part), error=error))
            continue
        start, *answers = reply
        header = unflagged(header_from_bytes(start))
        if answers == [b"lost"]:
            segments.append(Segment(len(part), BROKEN))
        elif not answers:
            segments.append(Segment(len(part), header))
        else:
            segments.append(Segment(len(part), header, [flag == ord("1") for flag in answers[0]]))
    return segments


def _in_parts(identities: Sequence[bytes]) -> list[Sequence[bytes]]:
    starts = range(0, len(identities), IDENTITIES_PER_COMMAND)
    return [identities[start : start + IDENTITIES_PER_COMMAND] for start in starts]


def _look_up_commands(shard: Shard, identities: Sequence[bytes]) -> list[bytes]:
    key, mark = discards_key(shard.key), sentinel(shard.header)
    return [encode_command("SMISMEMBER", key, mark, *some) for some in _in_parts(identities)]


def _read_look_up(replies: Replies, count: int) -> list[bool] | None:
    """Return which items have a tombstone; None if the set is not that of the generation."""
    found: list[bool] = []
    for reply in replies:
        if not isinstance(reply, list) or not reply[0]:
            return None
        found += map(bool, reply[1:])
    return found if len(found) == count else None


class _Preceded:
    """Writes with some commands before them."""

    def __init__(self, commands: Sequence[bytes], writes: Writes) -> None:
        self._commands = commands
        self._writes = writes

    def __len__(self) -> int:
        return len(self._commands) + len(self._writes)

    def __iter__(self) -> Iterator[Sequence[bytes]]:
        for command in self._commands:
            yield [command]
        yield from self._writes


def _looked_up_first(
    shard: Shard, identities: Sequence[bytes], core: Core[T]
) -> Core[tuple[list[bool] | None, T]]:
    """Carry out a core of a strategy, and look for tombstones in its first request before all else.

    Returns:
        Which items have one, None if that is not known; and the result of the core.
    """
    commands = _look_up_commands(shard, identities)
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
        found = None if read is None else _read_look_up(read, len(identities))
        return found, stop.value
    finally:
        core.close()


def _preceded(commands: Sequence[bytes], step: Step) -> Step:
    """Return a step with some commands before its own, if it has any."""
    if isinstance(step, Request):
        # Only what comes alone can be received into a place of its own.
        return step._replace(commands=[*commands, *step.commands], room=None)
    if isinstance(step, Pipeline):
        return step._replace(writes=_Preceded(commands, step.writes))
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


def read_set(key: str, header: int, *, is_sorted: bool) -> Core[list[bytes] | None]:
    """Return the records of the tombstones of the shard at a key; round trips of 1,000 items.

    Args:
        key: Of the shard.
        header: Of the generation, without flags.
        is_sorted: Whether the filter has a window.

    Returns:
        For each item its identity and 8 bytes of its epoch. None if it is not the set of that
        generation.
    """
    table = discards_key(key)
    found: dict[bytes, int] = {}
    cursor = 0
    while True:
        scan = encode_command(
            "ZSCAN" if is_sorted else "SSCAN", table, cursor, "COUNT", IDENTITIES_PER_COMMAND
        )
        ((next_cursor, some),) = yield from ask_server(table, scan)
        members, epochs = (some[::2], some[1::2]) if is_sorted else (some, [b"0"] * len(some))
        for member, epoch in zip(members, epochs, strict=True):
            if len(member) == DIGEST_BYTES:
                found[member] = int(float(epoch))
        cursor = int(next_cursor)
        if not cursor:
            break
    # Read last: a set that has it now was that of the generation before too.
    (is_whole,) = yield from ask_server(table, sentinel_command(key, header, is_sorted=is_sorted))
    if not is_whole:
        return None
    return [member + epoch.to_bytes(EPOCH_BYTES, "big") for member, epoch in found.items()]


def sentinel_command(key: str, header: int, *, is_sorted: bool) -> bytes:
    """Return the command that says whether the set of the shard at a key has its sentinel."""
    name = "ZSCORE" if is_sorted else "SISMEMBER"
    return encode_command(name, discards_key(key), sentinel(header))


def write_set(key: str, header: int, records: Sequence[bytes], *, is_sorted: bool) -> Core[None]:
    """Put records in the set of the shard that is prepared at a key; may be repeated."""
    table = discards_key(key)
    name, first = ("ZADD", ("+inf",)) if is_sorted else ("SADD", ())
    commands = [encode_command(name, table, *first, sentinel(header))]
    for some in _in_parts(records):
        words: list[bytes | int] = []
        for record in some:
            words += [_epoch_of(record)] if is_sorted else []
            words.append(record[:DIGEST_BYTES])
        commands.append(encode_command(name, table, *words))
    yield from ask_server(table, *commands, encode_command("EXPIRE", table, PREPARED_SECONDS))


def _epoch_of(record: bytes) -> int:
    return int.from_bytes(record[DIGEST_BYTES:], "big")
