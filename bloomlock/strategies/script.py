"""The script that tests, adds and discards items of a shard, in its slices and tombstones.

An add is sent once, because the outcome of an add whose reply is lost is unknown. The script does
nothing if the shard has more slices than the client knows, or if items were discarded and the call
has no identities. The client then asks again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

from bloomlock.commands import Script, encode_command, encode_opening, send_or_lost
from bloomlock.descriptor import DISCARDED, HEADER_BYTES, has_discards, header_from_bytes, unflagged
from bloomlock.effects import ConnectionLost, Request
from bloomlock.errors import ConfigurationError, FilterMismatchError
from bloomlock.keys import discards_key
from bloomlock.refusals import is_missing

from .base import Segment, Strategy, error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Core

    from .base import Segments, Shard

ITEMS = Script("header", "slices", "items")

BITS_PER_CALL = 1024
"""Bits of the items of one call: 1 to 2 ms of the server's time."""

TEST, ADD, RENEW, DISCARD = b"t", b"a", b"r", b"d"
LOST = b"lost"
BROKEN = DISCARDED
"""Stands for the header of a shard whose set was evicted; no shard has this header."""


class ScriptStrategy(Strategy):
    """One round trip by EVALSHA, and one more for each growth that the client does not know; exact.

    It is the only strategy that never writes to a lost filter, and the one of every filter with
    slices. In a window with `refresh` an add refreshes an item that is there.
    """

    name = "lua"
    bits_per_exchange = 2**18

    def __init__(
        self,
        name: str = "lua",
        *,
        has_slices: bool = False,
        refresh: bool = False,
        all_set: bool = False,
    ) -> None:
        self.name = name
        self._has_slices = has_slices
        self._add = RENEW if refresh else ADD
        self._all_set = all_set

    def check_server(self, key: str) -> Core[None]:
        if not self._has_slices:
            return
        request = Request(key, [encode_command("EVAL", "return 1", 0)])
        (reply,) = yield from send_or_lost(request, repeatable=True)
        if isinstance(reply, Exception) and is_missing(reply):
            raise ConfigurationError(
                "a filter that grows or has a time window needs a server that runs scripts for "
                f"this client; it answered {reply}"
            )

    def one(self, shards: Sequence[Shard], item: bytes, *, write: bool) -> Core[Segment]:
        shard = shards[shards[0].hasher.shard_of(item)]
        state, operation = shard.slices, self._add if write else TEST
        if not state.has_tombstones:
            places = state.hasher.packed([item], state.count)
            command = b"%b$%d\r\n%b\r\n" % (_opening(shard, operation), len(places), places)
            try:
                (reply,) = yield Request(shard.key, [command])
            except ConnectionLost as lost:
                if lost.sent and write:
                    return Segment(1, error=lost)
                reply = lost
            if not isinstance(reply, (ConnectionLost, NoScriptError)):
                segment = read_reply(shard, reply, 1)
                if segment is not None:
                    return segment
        # The script did nothing, and another call is needed.
        (segment,) = yield from ask_shard(shard, [item], operation)
        return segment

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        return ask_shard(shard, items, self._add if write else TEST, all_set=self._all_set)


def ask_shard(
    shard: Shard, items: Sequence[bytes], operation: bytes, *, all_set: bool = False
) -> Core[Segments]:
    """Carry out an operation for items of one shard; see Strategy.ask_shard.

    DISCARD without items sets the flag of discards. `all_set`: the bits of the items are all set
    in this generation, so only their tombstones count.
    """
    state = shard.slices
    expected = shard.header.to_bytes(HEADER_BYTES, "big")

    def arguments(some: range) -> list[bytes | int]:
        mine = items[some.start : some.stop]
        made: list[bytes | int] = [
            expected,
            operation,
            state.layout,
            b"" if all_set else state.hasher.packed(mine, state.count),
        ]
        if with_set:
            made.append(b"".join(map(state.hasher.identify, mine)))
        return made

    answered: dict[int, Segment] = {}
    todo = [range(len(items))]
    while todo:
        size = max(1, BITS_PER_CALL // state.num_offsets)
        parts = [some[at : at + size] for some in todo for at in range(0, max(1, len(some)), size)]
        makers = [partial(arguments, part) for part in parts]
        is_repeatable = operation == TEST or not items
        with_set = state.has_tombstones or operation == DISCARD or all_set
        # While a cluster moves a slot, it runs only scripts with one key.
        keys = [shard.key, discards_key(shard.key)] if with_set else [shard.key]
        replies = yield from ITEMS.call_each(keys, makers, repeatable=is_repeatable)
        todo = []
        for part, reply in zip(parts, replies, strict=True):
            segment = read_reply(shard, reply, len(part))
            if segment is None:
                todo.append(part)
            else:
                answered[part.start] = segment
    return [answered[start] for start in sorted(answered)]


def _opening(shard: Shard, operation: bytes) -> bytes:
    """Return a call of the script up to the places, for a shard without tombstones."""
    # The shards of a plain filter share one state.
    openings, place = shard.slices.openings, (shard.key, operation)
    if place not in openings:
        header = shard.header.to_bytes(HEADER_BYTES, "big")
        openings[place] = encode_opening(
            1, "EVALSHA", ITEMS.digest, 1, shard.key, header, operation, shard.slices.layout
        )
    return openings[place]


def read_reply(shard: Shard, reply: Any, count: int) -> Segment | None:
    """Return the answers of one call; None: repeat it, as `shard.slices` has learned from it."""
    if not isinstance(reply, list):
        return Segment(count, error=error_of(reply))
    start, *answers = reply
    header = header_from_bytes(start)
    if unflagged(header) != shard.header:
        return Segment(count, header, None)
    state = shard.slices
    # A flag stays as long as the generation; the shards of a plain filter share what is known.
    state.has_tombstones |= has_discards(header)
    if answers == [LOST]:
        return Segment(count, BROKEN, None)
    if answers and isinstance(answers[0], bytes):
        return Segment(count, header, [flag == ord("0") for flag in answers[0]])
    if answers and answers[0] > len(state.hasher.hashes):
        return Segment(count, error=too_many_slices(shard.key, answers[0]))
    if answers:
        state.learn(answers[0])
    return None


def too_many_slices(key: str, count: int) -> FilterMismatchError:
    return FilterMismatchError(
        f"a filter is damaged: its string {key!r} says that it has {count} slices, and its "
        "parameters give fewer; delete the filter to start again"
    )
