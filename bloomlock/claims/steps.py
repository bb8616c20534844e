"""The steps of claims on a server: each one script, which does what model.py says.

A step is for several items of several shards, which are asked at once.
Every step may be repeated and is, where its reply is lost.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bloomlock.keys import ClaimKeys
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script, answer_of
from bloomlock.strategies.cells import Turns, packed_window

from .model import Answer, Offered, Outcome, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.effects import Core
    from bloomlock.strategies.base import Chain
    from bloomlock.windows import Window

    from .model import ClaimRequest, Held

T = TypeVar("T")

_OUTCOMES = tuple(Outcome)
_BEHIND = b"behind"
"""In place of a header: the clock is ahead of the slices of the shard; nothing was done."""
_GROWN = b"grown"
"""The same: the shard has not as many slices as was believed."""

ITEMS_PER_CALL = 64
"""Items of one script call: about a millisecond of the server's time."""

TAKE = Script("header", "cells", "claim_common", "claim_take")
COMMIT = Script("header", "cells", "claim_common", "claim_commit")
ABANDON = Script("header", "cells", "claim_common", "claim_abandon")
RENEW = Script("header", "cells", "claim_common", "claim_renew")
EXPIRED = Script("header", "cells", "claim_common", "claim_expired")
RETRY = Script("header", "cells", "claim_common", "claim_retry")
DROP = Script("header", "cells", "claim_common", "claim_drop")


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


def take(calls: Sequence[tuple[Place, Sequence[ClaimRequest]]]) -> Core[list[Answer | None]]:
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


def commit(calls: Sequence[tuple[Place, Sequence[Held]]]) -> Core[list[bool | bytes | None]]:
    """Set the bits of items and end their claims; answers as `take`.

    False: another worker claimed the item since. A version: the item has that one, and its places
    are of another; nothing was done for it.
    """

    def arguments(place: Place, held: Sequence[Held]) -> list[bytes | int]:
        words: list[bytes | int] = []
        for one in held:
            words += (one.id, one.token, place.packed(one.places))
        return words

    return (yield from _run(COMMIT, calls, arguments, _read_commit))


def abandon(
    calls: Sequence[tuple[Place, Sequence[Held]]],
    error: str | None = None,
    *,
    offered: Offered = Offered.NEVER,
) -> Core[list[bool | None]]:
    """Give items back; answers as `take`. See model.abandon."""
    text = b"" if error is None else b"+" + error.encode(errors="backslashreplace")

    def arguments(_: Place, held: Sequence[Held]) -> list[bytes | int]:
        words: list[bytes | int] = [int(offered)]
        for one in held:
            words += (one.id, one.token, text)
        return words

    return (yield from _run(ABANDON, calls, arguments, bool))


def renew(calls: Sequence[tuple[Place, Sequence[tuple[Held, int]]]]) -> Core[list[bool | None]]:
    """Let claims live for a number of milliseconds at least; answers as `take`."""

    def arguments(_: Place, held: Sequence[tuple[Held, int]]) -> list[bytes | int]:
        words: list[bytes | int] = []
        for one, lease_ms in held:
            words += (one.id, one.token, lease_ms)
        return words

    return (yield from _run(RENEW, calls, arguments, bool))


def retry(calls: Sequence[tuple[Place, Sequence[bytes]]]) -> Core[list[bool | None]]:
    """Offer items that failed, or whose claims are over, by their ids; answers as `take`."""
    return (yield from _run(RETRY, calls, lambda _, ids: ids, bool))


def drop(calls: Sequence[tuple[Place, Sequence[bytes]]]) -> Core[list[bool | None]]:
    """Forget items that failed, or whose claims are over, by their ids; answers as `take`."""
    return (yield from _run(DROP, calls, lambda _, ids: ids, bool))


def find_expired(place: Place, count: int) -> Core[list[tuple[bytes, Record]] | None]:
    """Return the claims of a shard that have been over for longest; None as `take`."""
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
