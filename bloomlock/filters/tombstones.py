"""The tombstones of discarded items: how items are tested beside them, and their sets.

Bits are never unset: a discarded item has a tombstone, its identity in a set beside its shard,
whose header has a flag then. Without the sentinel, the header of its generation without flags, a
set says nothing: it is of another one, or it was evicted, and the generation is broken.
docs/internals/protocols.md has the proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from bloomlock.arrays import np
from bloomlock.commands import call, encode_command, in_parallel
from bloomlock.descriptor import header_bytes
from bloomlock.effects import ConnectionLost, Request
from bloomlock.hash_keys import DIGEST_BYTES
from bloomlock.hashing import pick
from bloomlock.keys import discards_key

from .files import EPOCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core, Replies
    from bloomlock.strategies import AtomicStrategy, Segment, Shard, Strategy
    from bloomlock.strategies.base import Answered

    from .generation import View
    from .state import FilterState

IDENTITIES_PER_COMMAND = 1000

UNKNOWN = -1
"""In place of an answer about an item, or of whether it has a tombstone."""


def ask_one(state: FilterState, view: View, data: bytes, *, write: bool) -> Core[Segment]:
    """Ask for an item of a filter with discarded ones; a flag in the answer is no news."""
    shard = view.shards[view.hasher.shard_of(data)]
    # Of the strategies without a script only "atomic" meets discarded items; see support.py.
    strategy = cast("AtomicStrategy", state.strategy)
    commands = _look_commands(shard, [data])
    replies, segment = yield from strategy.one_beside(commands, view.shards, data, write=write)
    looked = _read_looks(replies)
    if segment.header != view.expected or segment.missing is None or segment.missing[0]:
        return segment
    if looked is not None and not (write and looked[0]):
        return segment._replace(missing=[bool(looked[0])])
    (segment,) = yield from state.tombstones.ask_shard(shard, [data], write=write)
    return segment


def ask_beside(
    view: View, strategy: Strategy, items: Sequence[bytes], *, write: bool
) -> Core[tuple[Answered, npt.NDArray[np.int8]]]:
    """Return what `strategy` answers, and for each item whether it has a tombstone."""
    by_shard = view.hasher.by_shard(view.hasher.digests(items))
    cores: list[Core[Any]] = []
    for number, indices in by_shard.items():
        shard, mine = view.shards[number], pick(items, indices.tolist())
        cores.append(_look_up(shard, mine))
        cores.append(strategy.ask_shard(shard, mine, write=write))
    most = strategy.shards_at_once(view.shards[0])
    replies = yield from in_parallel(cores, most and 2 * most)
    looked = np.full(len(items), UNKNOWN, np.int8)
    for indices, found in zip(by_shard.values(), replies[::2], strict=True):
        if found is not None:
            looked[indices] = found
    return list(zip(by_shard.values(), replies[1::2], strict=True)), looked


def _look_up(shard: Shard, items: Sequence[bytes]) -> Core[list[int] | None]:
    """Return which items have a tombstone; None: the set says nothing of this generation."""
    try:
        replies = yield Request(shard.key, _look_commands(shard, items))
    except ConnectionLost:
        return None
    return _read_looks(replies)


def _look_commands(shard: Shard, items: Sequence[bytes]) -> list[bytes]:
    key, mark = discards_key(shard.key), header_bytes(shard.header)
    identities = list(map(shard.hasher.identify, items))
    return [
        encode_command("SMISMEMBER", key, mark, *identities[start : start + IDENTITIES_PER_COMMAND])
        for start in range(0, len(items), IDENTITIES_PER_COMMAND)
    ]


def _read_looks(replies: Replies) -> list[int] | None:
    found: list[int] = []
    for reply in replies:
        if not isinstance(reply, list) or not reply[0]:
            return None
        found += reply[1:]
    return found


def read_set(key: str, descriptor: Descriptor) -> Core[list[bytes] | None]:
    """Return the tombstones of the shard at a key: for each an identity and 8 bytes of its epoch.

    None if the set is not of the generation of the descriptor.
    """
    table, is_sorted = discards_key(key), descriptor.window is not None
    found: dict[bytes, int] = {}
    cursor = 0
    while True:
        scan = encode_command(
            "ZSCAN" if is_sorted else "SSCAN", table, cursor, "COUNT", IDENTITIES_PER_COMMAND
        )
        ((next_cursor, some),) = yield from call(table, scan)
        members, epochs = (some[::2], some[1::2]) if is_sorted else (some, [b"0"] * len(some))
        for member, epoch in zip(members, epochs, strict=True):
            if len(member) == DIGEST_BYTES:
                found[member] = int(float(epoch))
        cursor = int(next_cursor)
        if not cursor:
            break
    # Read last: a set that has it now was that of the generation before too.
    (is_whole,) = yield from call(table, sentinel_command(key, descriptor))
    if not is_whole:
        return None
    return [member + epoch.to_bytes(EPOCH_BYTES, "big") for member, epoch in found.items()]


def sentinel_command(key: str, descriptor: Descriptor) -> bytes:
    """Return the command that says whether the set of the shard at a key has its sentinel."""
    name = "ZSCORE" if descriptor.window else "SISMEMBER"
    return encode_command(name, discards_key(key), header_bytes(descriptor.header))


def add_sentinel(key: str, descriptor: Descriptor) -> bytes:
    return _add(key, descriptor, [(header_bytes(descriptor.header), "+inf")])


def add_records(key: str, descriptor: Descriptor, records: Sequence[bytes]) -> list[bytes]:
    """Return the commands that put records, as `read_set` returns them, in the set of a shard.

    The set has its sentinel before. One that was evicted since gets none by these commands.
    """
    members = [(one[:DIGEST_BYTES], int.from_bytes(one[DIGEST_BYTES:], "big")) for one in records]
    starts = range(0, len(members), IDENTITIES_PER_COMMAND)
    return [_add(key, descriptor, members[at : at + IDENTITIES_PER_COMMAND]) for at in starts]


def _add(key: str, descriptor: Descriptor, members: Sequence[tuple[bytes, int | str]]) -> bytes:
    if descriptor.window:
        words = [word for member, epoch in members for word in (epoch, member)]
        return encode_command("ZADD", discards_key(key), *words)
    return encode_command("SADD", discards_key(key), *(member for member, _ in members))
