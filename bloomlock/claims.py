"""Claims on the items of a shard: what is stored of them, and how a step reaches the server.

    claims    id -> server time (ms) at which the lease ends; by it what is over is found in order
    open      id -> the record of the claim. Without a token: it was given back and is offered
    failed    id -> the record of an item that failed
    lost      token -> when its claim was taken over, retried or dropped
    counts    the counters
    fence     the last fence given out

An id is the 128-bit digest of an item. All of it but the fence belongs to one generation of the
shard, and goes where another one takes its place.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from .commands import Script, answer_of, in_parallel
from .descriptor import HEADER_BYTES
from .effects import ConnectionLost
from .errors import ConfigurationError
from .hashing import encode_item
from .keys import ClaimKeys
from .slices import DONE_BESIDE_TOMBSTONES, GROWN, OTHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .effects import Core
    from .strategies import Shard

CLAIMS = Script("header", "slices", "claims")

COUNTERS = ("claimed", "committed", "abandoned", "failed", "expired")
"""Each claim that is granted counts as claimed, and once more as what became of it."""

ITEMS_PER_CALL = 64
"""Items of one script call: about a millisecond of the server's time."""

_OPTIONS = 3
_RECORD = struct.Struct(">QIIH")


class ClaimState(StrEnum):
    """What became of a request for an item.

    Attributes:
        NEW: It is this worker's.
        SEEN: It was committed, or added (or, at the error rate, looks like it).
        BUSY: Another claim of it is open.
        FAILED: It failed `max_attempts` times and is given to no worker.
    """

    NEW = "new"
    SEEN = "seen"
    BUSY = "busy"
    FAILED = "failed"


class Record(NamedTuple):
    """What claims.lua stores of an open claim, with its token, or a failed item, with the error."""

    fence: int
    attempts: int
    max_attempts: int
    text: bytes
    carried: bytes

    @classmethod
    def decode(cls, data: bytes) -> Record:
        fence, attempts, max_attempts, length = _RECORD.unpack_from(data)
        rest = data[_RECORD.size :]
        return cls(fence, attempts, max_attempts, rest[:length], rest[length:])


class Offer(NamedTuple):
    """An item that is claimed, its encoded form, and what the caller keeps with it."""

    item: str | bytes
    data: bytes
    payload: str | bytes | None

    def carried(self) -> bytes:
        kind = b"s" if isinstance(self.item, str) else b"b"
        item = b"%b%b%b" % (kind, struct.pack(">I", len(self.data)), self.data)
        if self.payload is None:
            return item + b"-"
        return item + (b"s" if isinstance(self.payload, str) else b"b") + encode_item(self.payload)

    @classmethod
    def of(cls, carried: bytes) -> Offer:
        """Return the offer again.

        >>> Offer.of(Offer("é", "é".encode(), b"more").carried()).payload
        b'more'
        """
        (length,) = struct.unpack_from(">I", carried, 1)
        data, kind, rest = carried[5 : 5 + length], carried[5 + length :][:1], carried[6 + length :]
        payload = None if kind == b"-" else _text_or_bytes(kind, rest)
        return cls(_text_or_bytes(carried[:1], data), data, payload)


def check_payload(payload: object) -> str | bytes | None:
    if payload is None or isinstance(payload, (str, bytes)):
        return payload
    raise ConfigurationError(f"payload must be str, bytes or None, not {type(payload).__name__}")


def _text_or_bytes(kind: bytes, data: bytes) -> str | bytes:
    return data.decode() if kind == b"s" else data


class Row(NamedTuple):
    """One item of a step; `word` is what else the step takes.

    `data`: the encoded item, whose offsets follow from how many slices there are. None: the step
    reads no bits.
    """

    shard: Shard
    id: bytes
    token: bytes = b""
    data: bytes | None = None
    word: bytes | int = b""

    @property
    def words(self) -> tuple[bytes | int, ...]:
        slices, places = self.shard.slices, b""
        if self.data is not None:
            places = slices.hasher.packed([self.data], slices.count)
        return self.id, self.token, places, self.word


def ask_claims(
    step: str,
    rows: Sequence[Row],
    options: Sequence[str | bytes | int] = (),
    repeated: set[bytes] | None = None,
) -> Core[list[Any]]:
    """Carry out a step of claims.lua for items of any shards, in one round trip.

    Return an answer for each item, None if its shard is of another generation. With `repeated` it
    is the exception that its shard raised, while the items of others are done; and `repeated` gets
    the tokens of rows for which the step may have been carried out without an answer.
    """
    by_shard: dict[Shard, list[int]] = {}
    for index, row in enumerate(rows):
        by_shard.setdefault(row.shard, []).append(index)

    def ask_one(shard: Shard, some: Sequence[Row]) -> Core[list[Any] | None]:
        try:
            return (yield from _ask_shard(shard, step, some, options, repeated))
        except Exception as error:
            if repeated is None:
                raise
            return [error] * len(some)

    cores = [ask_one(shard, [rows[i] for i in indices]) for shard, indices in by_shard.items()]
    each: list[Any] = [None] * len(rows)
    replies = yield from in_parallel(cores)
    for indices, found in zip(by_shard.values(), replies, strict=True):
        for index, answer in zip(indices, found or (), strict=found is not None):
            each[index] = answer
    return each


def find_expired(shard: Shard, count: int) -> Core[list[Record] | None]:
    """Return the claims that have been over for longest; None: it is of another generation."""
    found = yield from _ask_shard(shard, "expired", [], [count], None)
    return None if found is None else list(map(Record.decode, found))


def _ask_shard(
    shard: Shard,
    step: str,
    rows: Sequence[Row],
    options: Sequence[str | bytes | int],
    repeated: set[bytes] | None,
) -> Core[list[Any] | None]:
    """Call the script for parts of the rows; again where the shard has more slices than known.

    None: a part met another generation.
    """
    keys, header = ClaimKeys.of(shard.key), shard.header.to_bytes(HEADER_BYTES, "big")
    starts = range(0, len(rows) or 1, ITEMS_PER_CALL)
    parts = [rows[start : start + ITEMS_PER_CALL] for start in starts]
    answers: list[list[Any]] = [[]] * len(parts)
    todo: Sequence[int] = range(len(parts))
    filled = (*options, *[b""] * (_OPTIONS - len(options)))
    while todo:
        calls = []
        for index in todo:
            words = [word for row in parts[index] for word in row.words]
            calls.append((keys, (header, shard.slices.layout, step, *filled, *words)))
        replies = yield from CLAIMS.call(calls, repeatable=False)
        lost = next((one for one in replies if isinstance(one, ConnectionLost) and one.sent), None)
        if lost is not None:
            if repeated is not None:
                repeated.update(row.token for row in rows)
            replies = yield from CLAIMS.call(calls, repeatable=True, lost=lost)
        for index, reply in zip(todo, replies, strict=True):
            answers[index] = answer_of(reply, "claims need")
        todo = [index for index in todo if answers[index][0] == GROWN]
        if todo:
            shard.slices.learn(answers[todo[0]][1])
    found = {how for how, *_ in answers}
    shard.slices.has_tombstones |= DONE_BESIDE_TOMBSTONES in found
    return None if OTHER in found else [answer for _, *some in answers for answer in some]
