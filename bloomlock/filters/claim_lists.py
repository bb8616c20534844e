"""What an operator sees of claims: those that are open, and items whose work failed.

Items that failed are offered once more, or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bloomlock.claims import Failure, Record, drop_claims, retry_claims
from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.hashing import encode_items
from bloomlock.keys import ClaimKeys
from bloomlock.parallel import in_parallel

from .claim_session import Offer, place_of
from .state import in_one_generation
from .support import CLAIMS, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.claims import Place
    from bloomlock.effects import Core

    from .generation import View
    from .state import FilterState

    Step = Callable[[Sequence[tuple[Place, Sequence[bytes]]]], Core[list[bool | None]]]


@dataclass(frozen=True, slots=True)
class OpenClaim:
    """A claim that is open, or whose lease is over and that no worker has taken over yet.

    Attributes:
        item: The item.
        payload: What was kept with it.
        attempts: How often work on it began and did not end well, this claim included.
        age: Seconds since it was claimed, by the server's clock.
        remaining: Seconds left of its lease; 0: it is over, and offered by `expired()`.
    """

    item: str | bytes
    payload: str | bytes | None
    attempts: int
    age: float
    remaining: float


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item whose work failed, under `max_attempts`.

    Attributes:
        item: The item.
        payload: What its last claim was given.
        attempts: How often it failed.
        error: The text of the last error.
        is_final: Whether it is given to no worker any more.
    """

    item: str | bytes
    payload: str | bytes | None
    attempts: int
    error: str
    is_final: bool


def open_claims(state: FilterState) -> Core[list[OpenClaim]]:
    """Return the open claims of all shards, the one that is over first in front."""
    view = yield from state.current()
    header = view.header.to_bytes(HEADER_BYTES, "big")
    asked = [
        ask(
            keys.counts,
            encode_command("HGET", keys.counts, "header"),
            encode_command("HGETALL", keys.open),
            encode_command("ZRANGE", keys.claims, 0, -1, "WITHSCORES"),
            encode_command("TIME"),
        )
        for keys in (ClaimKeys.of(shard.key) for shard in view.shards)
    ]
    found = []
    for stored, records, leases, (seconds, microseconds) in (yield from in_parallel(asked)):
        if stored != header:
            continue
        now_s = int(seconds) + int(microseconds) / 1e6
        ends = _pairs(leases)
        for item_id, data in _pairs(records).items():
            record = Record.decode(data)
            offer = Offer.of(record.carried)
            left = float(ends.get(item_id, 0)) / 1000 - now_s
            found.append(
                OpenClaim(
                    offer.item,
                    offer.payload,
                    record.attempts,
                    # A fence is the time of the claim, unless the clock was set back.
                    age=max(0.0, now_s - record.fence / 1e6),
                    remaining=max(0.0, left),
                )
            )
    return sorted(found, key=lambda claim: (claim.remaining, -claim.age))


def _pairs(reply: Any) -> dict[bytes, Any]:
    """Return what a server answers by RESP3 (a map, or a list of pairs) or by RESP2 (flat).

    >>> _pairs([b"a", 1]) == _pairs([[b"a", 1]]) == _pairs({b"a": 1}) == {b"a": 1}
    True
    """
    if isinstance(reply, dict):
        return reply
    if reply and isinstance(reply[0], list):
        return dict(reply)
    return dict(zip(reply[::2], reply[1::2], strict=True))


def failed(state: FilterState) -> Core[list[FailedItem]]:
    """Return the items whose work failed and that were not committed since."""
    view = yield from state.current()
    found = []
    asked = [
        ask(
            keys.counts,
            encode_command("HGET", keys.counts, "header"),
            encode_command("HVALS", keys.failed),
        )
        for keys in (ClaimKeys.of(shard.key) for shard in view.shards)
    ]
    for header, stored in (yield from in_parallel(asked)):
        if header == view.header.to_bytes(HEADER_BYTES, "big"):
            found += [_failed_item(Failure.decode(data)) for data in stored]
    return found


def _failed_item(failure: Failure) -> FailedItem:
    offer = Offer.of(failure.carried)
    error = failure.error.decode(errors="replace")
    return FailedItem(offer.item, offer.payload, failure.attempts, error, failure.is_final)


def retry(state: FilterState, items: Iterable[str | bytes]) -> Core[list[bool]]:
    """Offer items once more; for each whether a worker has it or is given it."""
    return (yield from _settle(state, items, retry_claims))


def drop(state: FilterState, items: Iterable[str | bytes]) -> Core[list[bool]]:
    """Drop items; for each whether there was something to drop."""
    return (yield from _settle(state, items, drop_claims))


def _settle(state: FilterState, items: Iterable[str | bytes], step: Step) -> Core[list[bool]]:
    check_support(CLAIMS, state.strategy.name)
    wanted = encode_items(list(items))

    def work(view: View) -> Core[list[bool] | None]:
        places: dict[Place, list[int]] = {}
        for index, data in enumerate(wanted):
            number, _ = view.hasher.locate(data)
            places.setdefault(place_of(view, number), []).append(index)
        found = yield from step(
            [
                (place, [view.hasher.identify(wanted[index]) for index in indices])
                for place, indices in places.items()
            ]
        )
        if None in found:
            return None
        order = [index for indices in places.values() for index in indices]
        answers = dict(zip(order, found, strict=True))
        return [bool(answers[index]) for index in range(len(wanted))]

    return (yield from in_one_generation(state, work)) if wanted else []
