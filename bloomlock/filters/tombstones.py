"""The tombstones of discarded items: how items are asked for beside them, and their sets.

Bits are never unset, so an item is discarded by a tombstone: its identity (16 bytes) in a set
beside its shard. The header of the shard has a flag while there is such a set. While this object
knows of the flag, `exists` and `add` send SMISMEMBER and then their own command in one request.

    a bit was missing            not there, or new. Final: a tombstone is made only when all bits
                                 are set, and within a generation they stay set.
    all set, no flag             there, or seen.
    all set, flag, no tombstone  there, or seen.
    all set, flag, tombstone     not there. An add goes to items.lua, where exactly one of several
                                 clients removes the tombstone, and so gets "new".

The set has one more member, the sentinel: the header of its generation without flags. It is made
by the script that sets the flag, and no script makes a set for a header that has the flag. So a set
without the sentinel is that of another generation, or it was evicted and had tombstones: then the
generation is broken, as if a shard were missing. What is read without the sentinel says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock.arrays import np
from bloomlock.commands import encode_command
from bloomlock.delivery import ask as ask_server
from bloomlock.delivery import collect
from bloomlock.descriptor import DISCARDED, HEADER_BYTES, unflagged
from bloomlock.effects import ConnectionLost, Request
from bloomlock.hash_keys import DIGEST_BYTES
from bloomlock.hashing import pick
from bloomlock.keys import PREPARED_SECONDS, discards_key
from bloomlock.parallel import in_parallel
from bloomlock.scripts import named_error
from bloomlock.strategies import Segment
from bloomlock.strategies.base import header_command, header_from_bytes
from bloomlock.strategies.sliced import ADD, ask_shard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bloomlock.commands import Replies
    from bloomlock.effects import Core
    from bloomlock.strategies import Shard, Strategy
    from bloomlock.strategies.base import Answered

    from .generation import View

IDENTITIES_PER_COMMAND = 1000
EPOCH_BYTES = 8

BROKEN = DISCARDED
"""In place of the header of a shard whose set was evicted; no shard has it."""

NEEDS = "discard needs"


def sentinel(header: int) -> bytes:
    """Return the member that says of which generation a set is."""
    return header.to_bytes(HEADER_BYTES, "big")


def ask_one(view: View, strategy: Strategy, data: bytes, *, write: bool) -> Core[Segment]:
    core = strategy.one(view.shards, view.hasher, data, write=write)
    if view.descriptor.slices:
        return final(view, (yield from core))
    number = view.hasher.shard_of(data)
    both: list[Core[Any]] = [_look_first(view, number, [data]), core]
    looked, segment = yield from in_parallel(both)
    header, missing = segment.header, segment.missing
    if header == view.header | DISCARDED and missing is not None and looked is not None:
        # What _settle does, without its costs.
        is_missing = bool(missing[0])
        if is_missing or not (write and looked[0]):
            return Segment(1, view.header, [is_missing or looked[0]])
    ((_, (answer,)),) = yield from _settle(view, number, [data], [segment], looked, write=write)
    return answer


def ask(view: View, strategy: Strategy, items: Sequence[bytes], *, write: bool) -> Core[Answered]:
    if view.descriptor.slices:
        found = yield from strategy.ask(view.shards, view.hasher, items, write=write)
        return [
            (indices, [final(view, segment) for segment in segments]) for indices, segments in found
        ]
    by_shard = view.hasher.by_shard(items)
    cores: list[Core[Any]] = []
    for number, indices in by_shard.items():
        mine = pick(items, indices)
        cores.append(_look_first(view, number, mine))
        cores.append(strategy.ask_shard(view.shards[number], view.hasher, mine, write=write))
    most = strategy.shards_at_once(view.shards[0])
    replies = yield from in_parallel(cores, most and 2 * most)
    return (yield from _settle_each(view, items, by_shard, replies, write=write))


def settle_all_set(view: View, items: Sequence[bytes], *, write: bool) -> Core[Answered]:
    """Answer items whose bits are all set in this generation, as a reply with the flag has said."""
    by_shard = view.hasher.by_shard(items)
    replies: list[Any] = []
    for some in by_shard.values():
        replies += None, [Segment(len(some), view.header | DISCARDED, [False] * len(some))]
    return (yield from _settle_each(view, items, by_shard, replies, write=write))


def _settle_each(
    view: View,
    items: Sequence[bytes],
    by_shard: Mapping[int, Sequence[int]],
    replies: Sequence[Any],
    *,
    write: bool,
) -> Core[Answered]:
    """Settle the items of each shard; `replies`: for each shard what two cores returned."""
    steps = []
    for (number, indices), looked, segments in zip(
        by_shard.items(), replies[::2], replies[1::2], strict=True
    ):
        mine = pick(items, indices)
        steps.append(_settle(view, number, mine, segments, looked, write=write))
    answered = yield from in_parallel(steps)
    return [
        ([indices[row] for row in rows], found)
        for indices, of_shard in zip(by_shard.values(), answered, strict=True)
        for rows, found in of_shard
    ]


def final(view: View, segment: Segment) -> Segment:
    """Return the answer of a script that has looked for tombstones, without the flag."""
    if segment.header == view.header | DISCARDED:
        return segment._replace(header=view.header)
    return segment


def _look_first(view: View, number: int, items: Sequence[bytes]) -> Core[list[bool] | None]:
    """Return which items have a tombstone; None: that is not known, and is asked later.

    Beside the core of a strategy it is in the same request, before the first command of that.
    """
    shard = view.shards[number]
    try:
        replies = yield Request(shard.key, _look_up_commands(view, shard, items))
    except ConnectionLost:
        return None
    return _read_look_up(replies, len(items))


def _settle(
    view: View,
    number: int,
    items: Sequence[bytes],
    segments: Sequence[Segment],
    looked: Sequence[bool] | None,
    *,
    write: bool,
) -> Core[Answered]:
    """Turn what commands said of the bits of items of a shard into answers; see the table above.

    `looked`: which items had a tombstone just before; None: that is not known.
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
            new = rows.start + np.flatnonzero(missing)
            answered.append((new.tolist(), [_same(view, len(new), True)]))
        all_set += (rows.start + np.flatnonzero(~missing)).tolist()
    if not all_set:
        return answered
    if looked is None:
        found = yield from _look_up(view, view.shards[number], pick(items, all_set))
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
        answered.append((dead, (yield from _add_again(view, number, pick(items, dead)))))
    return answered


def _same(view: View, rows: int, missing: bool) -> Segment:
    return Segment(rows, view.header, [missing] * rows)


def _look_up(view: View, shard: Shard, items: Sequence[bytes]) -> Core[list[bool] | Segment]:
    """Return which items have a tombstone, or for all of them why that is not known.

    A reply had the flag before, so a set that has no sentinel was evicted if the shard still is of
    that generation afterwards.
    """
    commands = [*_look_up_commands(view, shard, items), header_command(shard.key)]
    *replies, start = yield from collect(Request(shard.key, commands), repeatable=True)
    for reply in (*replies, start):
        if isinstance(reply, Exception):
            # The bits were all set before, so nothing was changed.
            cause = reply.cause if isinstance(reply, ConnectionLost) else reply
            return Segment(1, error=ConnectionLost(cause, sent=False, replies=[]))
    found = _read_look_up(replies, len(items))
    if found is not None:
        return found
    header = header_from_bytes(start)
    return Segment(1, BROKEN if unflagged(header) == view.header else header)


def _add_again(view: View, number: int, items: Sequence[bytes]) -> Core[list[Segment]]:
    """Remove the tombstones of items whose bits are all set; who removes one gets "new"."""
    view.shards[number].slices.has_tombstones = True
    # Sent once: who repeats it gets "seen" of what it has added itself.
    segments = yield from ask_shard(view.shards[number], items, ADD)
    errors = [one.error and named_error(one.error, NEEDS) for one in segments]
    return [
        final(view, one._replace(error=error)) for one, error in zip(segments, errors, strict=True)
    ]


def _in_parts(identities: Sequence[bytes]) -> list[Sequence[bytes]]:
    starts = range(0, len(identities), IDENTITIES_PER_COMMAND)
    return [identities[start : start + IDENTITIES_PER_COMMAND] for start in starts]


def _look_up_commands(view: View, shard: Shard, items: Sequence[bytes]) -> list[bytes]:
    key, mark = discards_key(shard.key), sentinel(shard.header)
    identities = list(map(view.hasher.identify, items))
    return [encode_command("SMISMEMBER", key, mark, *some) for some in _in_parts(identities)]


def _read_look_up(replies: Replies, count: int) -> list[bool] | None:
    """Return which items have a tombstone; None: the set is not that of the generation."""
    found: list[bool] = []
    for reply in replies:
        if not isinstance(reply, list) or not reply[0]:
            return None
        found += map(bool, reply[1:])
    return found if len(found) == count else None


def read_set(key: str, header: int, *, is_sorted: bool) -> Core[list[bytes] | None]:
    """Return the tombstones of the shard at a key: for each an identity and 8 bytes of its epoch.

    None if it is not the set of that generation. `is_sorted`: whether the filter has a window.
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
