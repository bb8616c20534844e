"""Claims on the items of a shard: what is stored of them, and their steps on a server.

    leases    id -> server time (ms) at which the lease ends; by it what is over is found in order
    open      id -> the claim: token, fence, attempts, what it carries. An empty token: the claim
              was given back and the item is offered
    failed    id -> attempts and last error of an item whose work failed, or failed too often
    lost      token -> when its claim was taken over, retried or dropped
    waiting   id -> channels and tokens of those who wait for the end of a claim
    counts    the counters; `fence` is the last fence given out

An id is the 128-bit digest of an item. All of it belongs to one generation of the shard: what is
left of an earlier one goes at the first step in another, but for the fence.

Each step is one script (claim_*.lua), and atomic. It is for several items of several shards, which
are asked at once. A client repeats a step whose reply is lost, and gets the same answer.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .delivery import note_losses
from .descriptor import has_discards, unflagged
from .keys import ClaimKeys
from .parallel import in_parallel
from .scripts import Script, answer_of
from .slices import plain_layout
from .strategies.base import header_from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .effects import ConnectionLost, Core
    from .slices import SliceState

T = TypeVar("T")

_GROWN = b"grown"
"""In place of a header: the shard has another number of slices; nothing was done."""

ITEMS_PER_CALL = 64
"""Items of one script call: about a millisecond of the server's time."""

TAKE = Script("header", "slices", "claim_common", "claim_take")
COMMIT = Script("header", "slices", "claim_common", "claim_commit")
ABANDON = Script("header", "slices", "claim_common", "claim_abandon")
RENEW = Script("header", "slices", "claim_common", "claim_renew")
EXPIRED = Script("header", "slices", "claim_common", "claim_expired")
RETRY = Script("header", "slices", "claim_common", "claim_retry")
DROP = Script("header", "slices", "claim_common", "claim_drop")

COUNTERS = ("claimed", "committed", "abandoned", "failed", "expired")
"""Each claim that is granted counts as claimed, and once more as what became of it."""

_RECORD = struct.Struct(">QIIB")
_FAILURE = struct.Struct(">IIIB")


class Outcome(IntEnum):
    """What a claim is answered by; GONE only where nothing but an expired claim was wanted."""

    GONE = 0
    NEW = 1
    SEEN = 2
    BUSY = 3
    FAILED = 4


_OUTCOMES = tuple(Outcome)


class Offered(IntEnum):
    """When an item that is given back is found by `find_expired`.

    Attributes:
        NEVER: Its claim is gone.
        AFTER_LEASE: When the lease is over.
        AT_ONCE: Now.
    """

    NEVER = 0
    AFTER_LEASE = 1
    AT_ONCE = 2


class ClaimRequest(NamedTuple):
    """An item that a worker asks for.

    Attributes:
        id: Of the item.
        token: No other claim has it; fixed before the first byte is sent. Without spaces.
        places: The offsets of the item's bits, four bytes each. Where the shard has slices it is
            the item, as its offsets follow from how many there are.
        lease_ms: How long the claim lives without renewal.
        max_attempts: Attempts after which the item is given to no worker any more; 0: that of its
            earlier claims, if there is one.
        carried: What the client that takes the item over is given.
        channel: Where the end of another's claim is to be announced; empty: nowhere.
        only_expired: Whether only an item whose claim is over is wanted; `carried` stays.
    """

    id: bytes
    token: bytes
    places: bytes
    lease_ms: int
    max_attempts: int = 0
    carried: bytes = b""
    channel: bytes = b""
    only_expired: bool = False


class Held(NamedTuple):
    """A claim as its worker knows it; see ClaimRequest."""

    id: bytes
    token: bytes
    places: bytes


class Answer(NamedTuple):
    """The answer to a ClaimRequest.

    Attributes:
        outcome: What it is.
        fence: NEW: the number of the claim; it rises with each one.
        attempts: NEW, FAILED: how often the item was claimed since it was last committed, as far
            as the attempts did not end without an error.
        remaining_ms: BUSY: what is left of the other's lease.
        carried: BUSY: what the other claim carries.
        discards: Whether the shard has the flag of discarded items.
    """

    outcome: Outcome
    fence: int = 0
    attempts: int = 0
    remaining_ms: int = 0
    carried: bytes = b""
    discards: bool = False


class Record(NamedTuple):
    """An open claim."""

    token: bytes
    fence: int
    attempts: int
    max_attempts: int
    carried: bytes

    def encode(self) -> bytes:
        """Return the claim as it is stored."""
        numbers = _RECORD.pack(self.fence, self.attempts, self.max_attempts, len(self.token))
        return numbers + self.token + self.carried

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """Return what `encode` wrote.

        >>> Record.decode(Record(b"t1", 7, 1, 0, b"item").encode())
        Record(token=b't1', fence=7, attempts=1, max_attempts=0, carried=b'item')
        """
        fence, attempts, max_attempts, length = _RECORD.unpack_from(data)
        rest = data[_RECORD.size :]
        return cls(rest[:length], fence, attempts, max_attempts, rest[length:])


class Failure(NamedTuple):
    """What is known of an item whose work failed.

    The token is that of a claim whose lease ran out, and which may be committed yet; else empty.
    """

    attempts: int
    max_attempts: int
    error: bytes
    carried: bytes
    token: bytes = b""

    @property
    def is_final(self) -> bool:
        """Whether it failed as often as it may."""
        return 0 < self.max_attempts <= self.attempts

    def encode(self) -> bytes:
        """Return it as it is stored."""
        lengths = len(self.error), len(self.token)
        numbers = _FAILURE.pack(self.attempts, self.max_attempts, *lengths)
        return numbers + self.error + self.token + self.carried

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        """Return what `encode` wrote.

        >>> Failure.decode(Failure(3, 3, b"why", b"item").encode())
        Failure(attempts=3, max_attempts=3, error=b'why', carried=b'item', token=b'')
        """
        attempts, max_attempts, length, of_token = _FAILURE.unpack_from(data)
        rest = data[_FAILURE.size :]
        error, rest = rest[:length], rest[length:]
        return cls(attempts, max_attempts, error, rest[of_token:], rest[:of_token])


class Place(NamedTuple):
    """Where claims lie.

    Attributes:
        bits_key: The shard.
        header: The header it has in the generation of the claims, 8 bytes.
        num_hashes: Bits of an item, of a plain shard.
        slices: What is known of the slices of the shard; None: it is plain.
    """

    bits_key: str
    header: bytes
    num_hashes: int = 1
    slices: SliceState | None = None

    @property
    def expected(self) -> bytes:
        """What the scripts are given of it."""
        if self.slices is None:
            return self.header + plain_layout(self.num_hashes)
        return self.header + self.slices.layout

    def packed(self, places: bytes) -> bytes:
        """Return the places of an item as the scripts take them; see ClaimRequest."""
        if self.slices is None:
            return places
        return self.slices.hasher.packed([places], self.slices.count)


def take_claims(calls: Sequence[tuple[Place, Sequence[ClaimRequest]]]) -> Core[list[Answer | None]]:
    """Take items; the requests of one call differ in id, token, places and what they carry.

    Returns:
        An answer for each request in order; None where the shard is of another generation.
    """

    def arguments(place: Place, requests: Sequence[ClaimRequest]) -> list[bytes | int]:
        first = requests[0]
        common: list[bytes | int] = [
            first.lease_ms,
            first.max_attempts,
            first.channel,
            int(first.only_expired),
        ]
        for request in requests:
            places = place.packed(request.places)
            common += (request.id, request.token, places, request.carried)
        return common

    return (yield from _run(TAKE, calls, arguments, _read_answer))


def commit_claims(
    calls: Sequence[tuple[Place, Sequence[Held]]], repeated: set[bytes]
) -> Core[list[bool | None]]:
    """Set the bits of items and end their claims; answers as `take_claims`.

    False: another worker claimed the item since, or it was discarded after it was committed.

    Args:
        calls: What is committed.
        repeated: Gets the tokens of claims whose commit may have been carried out without an
            answer, also if this raises.
    """

    def arguments(place: Place, held: Sequence[Held]) -> list[bytes | int]:
        words: list[bytes | int] = []
        for one in held:
            words += (one.id, one.token, place.packed(one.places))
        return words

    def note(held: Sequence[Held]) -> None:
        repeated.update(one.token for one in held)

    return (yield from _run(COMMIT, calls, arguments, _read_flag, note))


def abandon_claims(
    calls: Sequence[tuple[Place, Sequence[Held]]],
    error: str | None = None,
    *,
    offered: Offered = Offered.NEVER,
) -> Core[list[bool | None]]:
    """Give items back; answers as `take_claims`."""
    text = b"" if error is None else b"+" + error.encode(errors="backslashreplace")

    def arguments(_: Place, held: Sequence[Held]) -> list[bytes | int]:
        words: list[bytes | int] = [int(offered)]
        for one in held:
            words += (one.id, one.token, text)
        return words

    return (yield from _run(ABANDON, calls, arguments, _read_flag))


def renew_claims(
    calls: Sequence[tuple[Place, Sequence[tuple[Held, int]]]],
) -> Core[list[bool | None]]:
    """Let claims live for a number of milliseconds at least; answers as `take_claims`."""

    def arguments(_: Place, held: Sequence[tuple[Held, int]]) -> list[bytes | int]:
        words: list[bytes | int] = []
        for one, lease_ms in held:
            words += (one.id, one.token, lease_ms)
        return words

    return (yield from _run(RENEW, calls, arguments, _read_flag))


def retry_claims(calls: Sequence[tuple[Place, Sequence[bytes]]]) -> Core[list[bool | None]]:
    """Offer items that failed, or whose claims are over, by their ids; answers as `take_claims`."""
    return (yield from _run(RETRY, calls, lambda _, ids: ids, _read_flag))


def drop_claims(calls: Sequence[tuple[Place, Sequence[bytes]]]) -> Core[list[bool | None]]:
    """Forget items that failed, or whose claims are over, by their ids; see `retry_claims`."""
    return (yield from _run(DROP, calls, lambda _, ids: ids, _read_flag))


def find_expired(place: Place, count: int) -> Core[list[tuple[bytes, Record]] | None]:
    """Return the claims of a shard that have been over for longest; None as `take_claims`."""
    ((header, *found),) = yield from _call(EXPIRED, place, [lambda: [count]], None)
    if not _is_of(place, header):
        return None
    return list(zip(found[::2], map(Record.decode, found[1::2]), strict=True))


def _run(
    script: Script,
    calls: Sequence[tuple[Place, Sequence[Any]]],
    arguments: Callable[[Place, Any], Sequence[bytes | int]],
    read: Callable[[Any, bool], T],
    note_lost: Callable[[Any], None] | None = None,
) -> Core[list[T | None]]:
    """Run a script for items of each place; `note_lost` gets those whose reply was lost once."""
    parts = [
        [items[start : start + ITEMS_PER_CALL] for start in range(0, len(items), ITEMS_PER_CALL)]
        for _, items in calls
    ]
    steps = []
    for (place, items), some in zip(calls, parts, strict=True):
        words = [partial(arguments, place, part) for part in some]
        lost = None if note_lost is None else partial(note_lost, items)
        steps.append(_call(script, place, words, lost))
    replies = yield from in_parallel(steps)
    answers: list[T | None] = []
    for (place, items), of_place in zip(calls, replies, strict=True):
        if not all(_is_of(place, header) for header, *_ in of_place):
            answers += [None] * len(items)
            continue
        for header, *some in of_place:
            discards = has_discards(header_from_bytes(header))
            answers += [read(answer, discards) for answer in some]
    return answers


def _call(
    script: Script,
    place: Place,
    calls: Sequence[Callable[[], Sequence[bytes | int]]],
    note_lost: Callable[[], None] | None,
) -> Core[list[list[Any]]]:
    """Run the script once for each call; again where the shard has more slices than was known.

    Raises:
        redis.exceptions.RedisError: What the server answered, or why it could not be reached; the
            step may have been carried out for some items then.
        ConfigurationError: If the server runs no scripts for this client.
    """
    keys = ClaimKeys.of(place.bits_key)
    answers: list[Any] = [None] * len(calls)
    todo: Sequence[int] = range(len(calls))
    while todo:
        asked = [(keys, (place.expected, *calls[index]())) for index in todo]
        lost: list[ConnectionLost] = []
        try:
            replies = yield from note_losses(script.call(asked, repeatable=True), lost)
        finally:
            if note_lost is not None and any(one.sent for one in lost):
                note_lost()
        for index, reply in zip(todo, replies, strict=True):
            answers[index] = answer_of(reply, "claims need")
        todo = [index for index in todo if answers[index][0] == _GROWN]
        if todo and place.slices is not None:
            place.slices.learn(answers[todo[0]][1])
    return answers


def _is_of(place: Place, header: bytes) -> bool:
    return unflagged(header_from_bytes(header)) == int.from_bytes(place.header, "big")


def _read_flag(reply: Any, _: bool) -> bool:
    return bool(reply)


def _read_answer(reply: list[Any], discards: bool) -> Answer:
    outcome = _OUTCOMES[reply[0]]
    if outcome is Outcome.NEW:
        return Answer(outcome, int(reply[1]), reply[2], discards=discards)
    if outcome is Outcome.BUSY:
        return Answer(outcome, remaining_ms=reply[1], carried=reply[2], discards=discards)
    return Answer(outcome, attempts=reply[1] if len(reply) > 1 else 0, discards=discards)
