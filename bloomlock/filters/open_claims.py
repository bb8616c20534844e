"""The claims that are open, as an operator sees them: read, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bloomlock.claims import Record
from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.keys import ClaimKeys
from bloomlock.parallel import in_parallel

from .claim_session import Offer

if TYPE_CHECKING:
    from bloomlock.effects import Core

    from .state import FilterState


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
