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

from .keys import ClaimKeys
from .parallel import in_parallel
from .scripts import Script, answer_of
from .strategies.cells import Turns, packed_window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .effects import Core
    from .strategies.base import Chain
    from .windows import Window

T = TypeVar("T")

_BEHIND = b"behind"
"""In place of a header: the clock is ahead of the slices of the shard; nothing was done."""
_GROWN = b"grown"
"""In place of a header: the shard has not as many slices as was believed; nothing was done."""

ITEMS_PER_CALL = 64
"""Items of one script call: about a millisecond of the server's time."""

TAKE = Script("header", "cells", "claim_common", "claim_take")
COMMIT = Script("header", "cells", "claim_common", "claim_commit")
ABANDON = Script("header", "cells", "claim_common", "claim_abandon")
RENEW = Script("header", "cells", "claim_common", "claim_renew")
EXPIRED = Script("header", "cells", "claim_common", "claim_expired")
RETRY = Script("header", "cells", "claim_common", "claim_retry")
DROP = Script("header", "cells", "claim_common", "claim_drop")

COUNTERS = ("claimed", "committed", "abandoned", "failed", "expired")
"""Each claim that is granted counts as claimed, and once more as what became of it."""

_RECORD = struct.Struct(">QIIB")
_FAILURE = struct.Struct(">IIIB")


class Outcome(IntEnum):
    """What a claim is answered by.

    GONE only where nothing but an expired claim was wanted; OTHER only by a server, for an item
    that was forgotten since its places were computed.
    """

    GONE = 0
    NEW = 1
    SEEN = 2
    BUSY = 3
    FAILED = 4
    OTHER = 5


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
        places: The offsets of the item's bits, four bytes each, and behind them its version if it
            was forgotten. They depend on how many slices the shard has where the filter grows: of
            such a one the item itself, or identity and version, behind the length of the version.
        lease_ms: How long the claim lives without renewal.
        max_attempts: Attempts after which the item is given to no worker any more; 0: that of its
            earlier claims, if there is one.
        carried: What the client that takes the item over is given.
        channel: Where the end of another's claim is to be announced; empty: nowhere.
        only_expired: Whether only an item whose claim is over is wanted; `carried` stays.
        by_versions: Whether the places are those of the version that the item has if it was
            forgotten, as far as its worker knows.
    """

    id: bytes
    token: bytes
    places: bytes
    lease_ms: int
    max_attempts: int = 0
    carried: bytes = b""
    channel: bytes = b""
    only_expired: bool = False
    by_versions: bool = False


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
        version: OTHER: the version that the item has.
        at_us: SEEN: when that was, by the server's clock.
    """

    outcome: Outcome
    fence: int = 0
    attempts: int = 0
    remaining_ms: int = 0
    carried: bytes = b""
    version: bytes = b""
    at_us: int = 0


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
        window: The filter's; None: items are remembered for ever.
        chain: The slices of the shard of a filter that grows; None: it has one.
    """

    bits_key: str
    header: bytes
    window: Window | None = None
    chain: Chain | None = None

    @property
    def expected(self) -> bytes:
        """What the scripts are given of it."""
        if self.window is not None:
            return self.header + b"w" + packed_window(self.window)
        if self.chain is not None:
            return self.header + b"s" + bytes(self.chain.hasher.hashes[: self.chain.count])
        return self.header

    def packed(self, places: bytes) -> bytes:
        """Return the places of an item as the scripts take them; see ClaimRequest."""
        if self.chain is None:
            return places
        of_version, row = places[0], places[1:]
        offsets = self.chain.hasher.offsets(row, self.chain.count)
        version = row[-of_version:] if of_version else b""
        return struct.pack(f">{len(offsets)}I", *offsets) + version


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
            int(first.by_versions),
        ]
        for request in requests:
            places = place.packed(request.places)
            common += (request.id, request.token, places, request.carried)
        return common

    return (yield from _run(TAKE, calls, arguments, _read_answer))


def commit_claims(calls: Sequence[tuple[Place, Sequence[Held]]]) -> Core[list[bool | bytes | None]]:
    """Set the bits of items and end their claims; answers as `take_claims`.

    False: another worker claimed the item since. A version: the item has that one, and its places
    are of another; nothing was done for it.
    """

    def arguments(place: Place, held: Sequence[Held]) -> list[bytes | int]:
        words: list[bytes | int] = []
        for one in held:
            words += (one.id, one.token, place.packed(one.places))
        return words

    return (yield from _run(COMMIT, calls, arguments, _read_commit))


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

    return (yield from _run(ABANDON, calls, arguments, bool))


def renew_claims(
    calls: Sequence[tuple[Place, Sequence[tuple[Held, int]]]],
) -> Core[list[bool | None]]:
    """Let claims live for a number of milliseconds at least; answers as `take_claims`."""

    def arguments(_: Place, held: Sequence[tuple[Held, int]]) -> list[bytes | int]:
        words: list[bytes | int] = []
        for one, lease_ms in held:
            words += (one.id, one.token, lease_ms)
        return words

    return (yield from _run(RENEW, calls, arguments, bool))


def retry_claims(calls: Sequence[tuple[Place, Sequence[bytes]]]) -> Core[list[bool | None]]:
    """Offer items that failed, or whose claims are over, by their ids; answers as `take_claims`."""
    return (yield from _run(RETRY, calls, lambda _, ids: ids, bool))


def drop_claims(calls: Sequence[tuple[Place, Sequence[bytes]]]) -> Core[list[bool | None]]:
    """Forget items that failed, or whose claims are over, by their ids; see `retry_claims`."""
    return (yield from _run(DROP, calls, lambda _, ids: ids, bool))


def find_expired(place: Place, count: int) -> Core[list[tuple[bytes, Record]] | None]:
    """Return the claims of a shard that have been over for longest; None as `take_claims`."""
    ((header, *found),) = yield from _call(EXPIRED, place, [lambda: [count]])
    if header != place.header:
        return None
    return list(zip(found[::2], map(Record.decode, found[1::2]), strict=True))


def _run(
    script: Script,
    calls: Sequence[tuple[Place, Sequence[Any]]],
    arguments: Callable[[Place, Any], Sequence[bytes | int]],
    read: Callable[[Any], T],
) -> Core[list[T | None]]:
    parts = [
        [items[start : start + ITEMS_PER_CALL] for start in range(0, len(items), ITEMS_PER_CALL)]
        for _, items in calls
    ]
    wanted = [
        (place, [partial(arguments, place, items) for items in some])
        for (place, _), some in zip(calls, parts, strict=True)
    ]
    replies = yield from in_parallel([_call(script, place, some) for place, some in wanted])
    answers: list[T | None] = []
    for (place, items), of_place in zip(calls, replies, strict=True):
        same = all(header == place.header for header, *_ in of_place)
        found = [answer for _, *some in of_place for answer in some]
        answers += map(read, found) if same else [None] * len(items)
    return answers


def _call(
    script: Script, place: Place, calls: Sequence[Callable[[], Sequence[bytes | int]]]
) -> Core[list[list[Any]]]:
    """Run the script once for each call, whose arguments are asked for before each try.

    Raises:
        redis.exceptions.RedisError: What the server answered, or why it could not be reached; the
            step may have been carried out for some items then.
        ConfigurationError: If the server runs no scripts for this client.
    """
    keys = ClaimKeys.of(place.bits_key)
    answers: list[Any] = [None] * len(calls)
    todo = list(range(len(calls)))
    turns = Turns(place.window, "a commit")
    while True:
        asked = [(keys, (place.expected, *calls[index]())) for index in todo]
        replies = yield from script.call(asked, repeatable=True)
        for index, reply in zip(todo, replies, strict=True):
            answers[index] = answer_of(reply, "claims need")
        todo = [index for index in todo if answers[index][0] in (_BEHIND, _GROWN)]
        if not todo:
            return answers
        found, *slices = answers[todo[0]]
        if found == _BEHIND:
            yield from turns.make([place.bits_key], int.from_bytes(place.header, "big"))
        elif place.chain is not None:
            (place.chain.count,) = slices


def _read_commit(reply: Any) -> bool | bytes:
    return reply if isinstance(reply, bytes) else bool(reply)


def _read_answer(reply: list[Any]) -> Answer:
    outcome = _OUTCOMES[reply[0]]
    if outcome is Outcome.NEW:
        return Answer(outcome, int(reply[1]), reply[2])
    if outcome is Outcome.BUSY:
        return Answer(outcome, remaining_ms=reply[1], carried=reply[2])
    if outcome is Outcome.OTHER:
        return Answer(outcome, version=reply[1])
    if outcome is Outcome.SEEN:
        return Answer(outcome, at_us=int(reply[1]))
    return Answer(outcome, attempts=reply[1] if len(reply) > 1 else 0)
