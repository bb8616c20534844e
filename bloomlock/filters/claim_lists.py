"""Claims of all workers: what is stored of them, and what an operator sees and does.

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
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.commands import call, encode_command, in_parallel
from bloomlock.hashing import check_items, encode_items
from bloomlock.keys import ClaimKeys

from .claims import ClaimSession, ClaimState, Offer, Row, ask_claims, take
from .state import in_one_generation
from .support import CLAIMS, check_support

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bloomlock.effects import Core

    from .claims import ClaimOptions
    from .generation import View
    from .state import FilterState

COUNTERS = ("claimed", "committed", "abandoned", "failed", "expired")
"""Each claim that is granted counts as claimed, and once more as what became of it."""

EXPIRED_AT_ONCE = 16
USUAL_EXPIRED, MOST_EXPIRED = 64, 1000

_RECORD = struct.Struct(">QIIH")


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


@dataclass(frozen=True, slots=True)
class ClaimCounts:
    """The claims of one generation of a filter, counted by the server.

    Each claim that was NEW is open, or counts once as committed, abandoned, failed or expired.

    Attributes:
        open: Claims now, those that are over included; also items that wait to be offered again.
        failed_items: Items whose work failed under `max_attempts`, not committed since.
        claimed: Claims that were NEW.
        committed: Items committed.
        abandoned: Claims given back without an error.
        failed: Claims given back with an error.
        expired: Claims whose lease was over when the item was taken over, or found to be seen.
    """

    open: int = 0
    failed_items: int = 0
    claimed: int = 0
    committed: int = 0
    abandoned: int = 0
    failed: int = 0
    expired: int = 0


def open_claims(state: FilterState) -> Core[list[OpenClaim]]:
    """Return the claims of all shards, the one that is over first in front."""
    found = []
    view = yield from state.current()
    leases_command = ("ZRANGE", "claims", 0, -1, "WITHSCORES")
    commands = (("HVALS", "open"), leases_command, ("TIME", None))
    for records, leases, (seconds, microseconds) in (yield from _read_each(view, *commands)):
        now_s = int(seconds) + int(microseconds) / 1e6
        # RESP3 has pairs, RESP2 a flat list.
        is_flat = bool(leases) and isinstance(leases[0], bytes)
        ends = dict(zip(leases[::2], leases[1::2], strict=True) if is_flat else leases)
        for record in map(Record.decode, records):
            item, data, payload = Offer.of(record.carried)
            # A fence is the time of the claim, unless the clock was set back.
            age = max(0.0, now_s - record.fence / 1e6)
            ends_ms = ends.get(view.hasher.identify(data), 0)
            remaining = max(0.0, float(ends_ms) / 1000 - now_s)
            found.append(OpenClaim(item, payload, record.attempts, age, remaining))
    return sorted(found, key=lambda claim: (claim.remaining, -claim.age))


def failed(state: FilterState) -> Core[list[FailedItem]]:
    found = []
    view = yield from state.current()
    for (stored,) in (yield from _read_each(view, ("HVALS", "failed"))):
        for record in map(Record.decode, stored):
            item, _, payload = Offer.of(record.carried)
            error = record.text.decode(errors="replace")
            is_final = 0 < record.max_attempts <= record.attempts
            found.append(FailedItem(item, payload, record.attempts, error, is_final))
    return found


def claim_counts(state: FilterState) -> Core[ClaimCounts]:
    return (yield from count_claims((yield from state.current())))


def count_claims(view: View) -> Core[ClaimCounts]:
    totals = Counter[str]()
    commands = (("HMGET", "counts", *COUNTERS), ("HLEN", "open"), ("HLEN", "failed"))
    for numbers, num_open, num_failed in (yield from _read_each(view, *commands)):
        totals.update(open=num_open, failed_items=num_failed)
        for name, number in zip(COUNTERS, numbers, strict=True):
            totals[name] += int(number or 0)
    return ClaimCounts(**totals)


def _read_each(view: View, *commands: tuple[Any, ...]) -> Core[list[list[Any]]]:
    """Read of each shard what commands say: a name, the key by its name, and other arguments."""
    asked = []
    for keys in (ClaimKeys.of(shard.key) for shard in view.shards):
        words = [
            encode_command(name, *([getattr(keys, key)] if key else []), *more)
            for name, key, *more in commands
        ]
        asked.append(call(keys.claims, *words))
    return (yield from in_parallel(asked))


class Expired:
    """The items whose workers died; one is claimed when it is wanted, so none is held too early."""

    def __init__(self, state: FilterState, options: ClaimOptions) -> None:
        self._state = state
        self._options = options._replace(only_expired=True)
        self._shard = 0
        self._found: deque[bytes] = deque()
        self._skipped: set[tuple[int, bytes]] = set()

    def find(self, limit: int = 1) -> Core[list[ClaimSession]]:
        """Return up to `limit` claims, which one request has made; none at the end."""
        state = self._state
        look = partial(self._look, max(limit, EXPIRED_AT_ONCE))
        while self._found or (yield from in_one_generation(state, look)):
            some = [self._found.popleft() for _ in range(min(limit, len(self._found)))]
            sessions = [ClaimSession(state, Offer.of(carried), self._options) for carried in some]
            yield from take(state, sessions)
            if made := [one for one in sessions if one.state is ClaimState.NEW]:
                return made
        return []

    def _look(self, count: int, view: View) -> Core[bool | None]:
        """Look for more from where the last were found; False: there are none."""
        check_support(CLAIMS, self._state.strategy.name)
        for number in range(self._shard, len(view.shards)):
            (found,) = yield from ask_claims("expired", [Row(view.shards[number], word=count)])
            if found is None:
                return None
            for record in map(Record.decode, found):
                # One that comes again could not be taken over, and would do so for ever.
                if (record.fence, record.text) not in self._skipped:
                    self._skipped.add((record.fence, record.text))
                    self._found.append(record.carried)
            if self._found:
                self._shard = number
                return True
        return False


def settle(state: FilterState, items: Iterable[str | bytes], step: str) -> Core[list[bool]]:
    """Retry or drop items; for each whether a worker has it or is given it, or it was dropped."""
    check_support(CLAIMS, state.strategy.name)
    check_items(items)
    wanted = encode_items(list(items))

    def work(view: View) -> Core[list[bool] | None]:
        hasher = view.hasher
        rows = [Row(view.shards[hasher.shard_of(one)], hasher.identify(one)) for one in wanted]
        answers = yield from ask_claims(step, rows)
        return None if None in answers else list(map(bool, answers))

    return (yield from in_one_generation(state, work)) if wanted else []
