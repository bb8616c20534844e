"""Claims as their workers have them: how items are claimed, and what a watchdog renews."""

from __future__ import annotations

import os
import secrets
import struct
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from bloomlock.clock import boot_clock
from bloomlock.commands import Script, answer_of, check, in_parallel
from bloomlock.descriptor import header_bytes
from bloomlock.effects import Pause
from bloomlock.errors import (
    CapacityError,
    ClaimError,
    ClaimLostError,
    ConfigurationError,
    OutcomeUnknownError,
)
from bloomlock.hashing import check_items, encode_item, encode_items
from bloomlock.keys import ClaimKeys
from bloomlock.locks.hold import RENEWALS_PER_LEASE, Hold, Watched
from bloomlock.locks.options import check_lease, deadline_of, milliseconds
from bloomlock.locks.watchdog import WATCHDOG
from bloomlock.sizing import check_flag, check_seconds, check_whole
from bloomlock.slices import DONE_BESIDE_TOMBSTONES, GROWN, OTHER

from .answers import exists_many
from .batches import before_adding
from .state import in_one_generation
from .support import CLAIMS, check_support

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core
    from bloomlock.locks.hold import Renewal
    from bloomlock.strategies import Shard

    from .generation import View
    from .state import FilterState

    Item = str | bytes

SCRIPT = Script("header", "slices", "claims")
ITEMS_PER_CALL = 64
"""Items of one script call: about a millisecond of the server's time."""

TTL_SECONDS = 60.0
MOST_ATTEMPTS = 1_000_000
COMMITTED, GIVEN_BACK, LOST, UNKNOWN = "committed", "given back", "lost", "unknown"
"""How a claim ended."""
TOKEN_BYTES = 15
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2


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


class ClaimOptions(NamedTuple):
    """How items are claimed.

    Attributes:
        lasts_s: How long after its request the worker may rely on a lease.
        max_attempts: 0: as their earlier claims had it.
        only_expired: Whether only items are claimed whose claims are over.
    """

    lease_ms: int
    lasts_s: float
    renew: bool
    wait_s: float
    max_attempts: int
    only_expired: bool = False


def check_options(
    ttl: float, renew: bool, max_attempts: int | None = None, wait: float | None = None
) -> ClaimOptions:
    lease_ms = milliseconds(check_lease(ttl))
    renew = check_flag("renew", renew)
    wait_s = 0.0 if wait is None else check_seconds("wait", wait, least=0)
    if max_attempts is not None:
        allowed = f"from 1 to {MOST_ATTEMPTS}, or None"
        check_whole("max_attempts", max_attempts, 1, MOST_ATTEMPTS, allowed)
    return ClaimOptions(lease_ms, deadline_of(0.0, lease_ms), renew, wait_s, max_attempts or 0)


class Offer(NamedTuple):
    """An item that is claimed, its encoded form, and what the caller keeps with it."""

    item: Item
    data: bytes
    payload: Item | None

    def carried(self) -> bytes:
        item = struct.pack(">cI", _letter(self.item), len(self.data)) + self.data
        if self.payload is None:
            return item + b"-"
        return item + _letter(self.payload) + encode_item(self.payload)

    @classmethod
    def of(cls, carried: bytes) -> Offer:
        """Return the offer again.

        >>> Offer.of(Offer("é", "é".encode(), b"more").carried()).payload
        b'more'
        """
        letter, length = struct.unpack_from(">cI", carried)
        data, rest = carried[5 : 5 + length], carried[5 + length :]
        payload = None if rest == b"-" else _text_or_bytes(rest[:1], rest[1:])
        return cls(_text_or_bytes(letter, data), data, payload)


def check_payload(payload: object) -> Item | None:
    if payload is None or isinstance(payload, (str, bytes)):
        return payload
    raise ConfigurationError(f"payload must be str, bytes or None, not {type(payload).__name__}")


def _letter(value: Item) -> bytes:
    return b"s" if isinstance(value, str) else b"b"


def _text_or_bytes(letter: bytes, data: bytes) -> Item:
    return data.decode() if letter == b"s" else data


class Row(NamedTuple):
    """One item of a step; `word` depends on the step."""

    shard: Shard
    id: bytes = b""
    token: bytes = b""
    data: bytes = b""
    word: bytes | int = b""


NO_OPTIONS = (b"", b"", b"")


def ask_claims(
    step: str,
    rows: Sequence[Row],
    options: Sequence[bytes | int] = NO_OPTIONS,
    *,
    with_errors: bool = False,
) -> Core[list[Any]]:
    """Carry out a step of claims.lua for items of any shards, in one round trip.

    Return an answer for each item, None if its shard is of another generation. With `with_errors`
    it is the exception that its call of the script raised, while others may be carried out.
    """
    by_shard: dict[Shard, list[int]] = {}
    for index, row in enumerate(rows):
        by_shard.setdefault(row.shard, []).append(index)
    parts = [
        indices[start : start + ITEMS_PER_CALL]
        for indices in by_shard.values()
        for start in range(0, len(indices), ITEMS_PER_CALL)
    ]
    answers: list[Any] = [None] * len(rows)
    cores = [_call(step, [rows[index] for index in part], options) for part in parts]
    for part, found in zip(parts, (yield from in_parallel(cores)), strict=True):
        for index, answer in zip(part, found, strict=True):
            answers[index] = answer
    return answers if with_errors else check(answers)


def _call(step: str, rows: Sequence[Row], options: Sequence[bytes | int]) -> Core[list[Any]]:
    """Call the script for some items of one shard, again if that has more slices than known."""
    shard, slices = rows[0].shard, rows[0].shard.slices
    header = header_bytes(shard.header)
    while True:
        places = b""
        if step in ("take", "commit"):
            places = slices.hasher.packed([row.data for row in rows], slices.count)
        width, words = len(places) // len(rows), []
        for number, row in enumerate(rows):
            own = places[number * width : (number + 1) * width]
            words += [row.id, row.token, own, row.word]
        arguments = (header, slices.layout, step, *options, *words)
        (reply,) = yield from SCRIPT.call([(ClaimKeys.of(shard.key), arguments)], repeatable=True)
        try:
            answer: list[Any] = answer_of(reply, "claims need")
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return [error] * len(rows)
        how, *found = answer
        if how == OTHER:
            return [None] * len(rows)
        if how != GROWN:
            slices.has_tombstones |= how == DONE_BESIDE_TOMBSTONES
            return found
        slices.learn(found[0])


class ClaimSession(Watched):
    """One claim as its worker has it; at first an item that it asks for."""

    what = "claim"
    row: Row  # names the claim in its shard
    view: View

    def __init__(self, filter_state: FilterState, offer: Offer, options: ClaimOptions) -> None:
        self.filter_state = filter_state
        self.runtime = filter_state.runtime
        self.offer = offer  # stays the same if the claim is tried again
        self.options = options
        self.payload = offer.payload  # BUSY: that of the other claim
        self.tokens = b""  # all that the claim may have
        self.state = ClaimState.SEEN
        self.attempts = 0
        self.hold: Hold | None = None  # None unless the state is NEW
        self.busy_until = 0.0
        self.ended = ""

    def place(self, view: View) -> Row:
        data, hasher = self.offer.data, view.hasher
        shard = view.shards[hasher.shard_of(data)]
        self.view, self.row = view, Row(shard, hasher.identify(data), self.tokens, data)
        return self.row._replace(word=self.offer.carried())

    def take(self, answer: list[Any], sent: float) -> None:
        options, (state, *rest) = self.options, answer
        if state == b"gone":
            return
        # The claim of an item that was BUSY may be tried again.
        self.state, self.payload = ClaimState(state.decode()), self.offer.payload
        self.busy_until = 0.0
        if self.state is ClaimState.BUSY:
            self.busy_until = sent + rest[0] / 1000
            self.payload = Offer.of(rest[1]).payload
        elif self.state is ClaimState.FAILED:
            (self.attempts,) = rest
        elif self.state is ClaimState.NEW:
            token, fence, self.attempts, *carried = rest
            if carried:
                # Another worker may have had it since it was found to be over.
                self.payload = Offer.of(*carried).payload
            self.row = self.row._replace(token=token)
            seconds = options.lease_ms / 1000 / RENEWALS_PER_LEASE
            self.hold = Hold(
                token=token,
                lease_ms=options.lease_ms,
                fence=int(fence),
                since=sent,
                deadline=sent + options.lasts_s,
                renew_at=sent + seconds if options.renew else None,
            )
            self.watch()

    def watch(self) -> None:
        if self.hold is not None and self.hold.renew_at is not None:
            WATCHDOG.add(self.hold, self)

    @property
    def is_open(self) -> bool:
        return self.hold is not None and not self.ended and self.hold.pid == os.getpid()

    @property
    def lost(self) -> str:
        """Why the worker cannot rely on it; empty: it can."""
        hold = self.hold
        if hold is None or self.ended in (COMMITTED, GIVEN_BACK):
            return ""
        if not hold.lost and boot_clock() >= hold.deadline:
            return "its lease ran out"
        return hold.lost

    @property
    def remaining(self) -> float:
        """Seconds that are left of its own lease or, BUSY, of the other's."""
        until = self.busy_until
        if self.hold is not None:
            until = 0.0 if self.ended else self.hold.deadline
        return max(0.0, until - boot_clock())

    def check(self) -> None:
        self.require()
        if why := self.lost:
            raise self.lost_error(why)

    def require(self) -> Hold:
        """Return the hold, or raise ClaimError if there is none to end."""
        hold = self.hold
        if hold is None:
            raise ClaimError(f"{self.label} is not this worker's: it is {self.state.name}")
        if hold.pid != os.getpid():
            raise ClaimError(f"{self.label} is of the process that this one was forked from")
        if self.ended == LOST:
            raise self.lost_error(hold.lost)
        if self.ended == UNKNOWN:
            raise self.unknown_error()
        if self.ended:
            raise ClaimError(f"{self.label} was {self.ended} already")
        return hold

    def lost_error(self, why: str) -> ClaimLostError:
        return ClaimLostError(f"{self.label} was lost: {why}")

    def unknown_error(self, results: Sequence[bool | None] = (None,)) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.label} may or may not have been committed: an earlier commit may have been "
            "carried out, and the claim is over (another worker has the item, or it was discarded)",
            list(results),
        )

    # What a watchdog asks for; see Watched.

    @property
    def label(self) -> str:
        return f"claim of {self.offer.item!r:.80}"

    @property
    def key(self) -> str:
        return self.row.shard.key

    def renew_all(self, renewals: Sequence[Renewal]) -> Core[Sequence[bool | Exception]]:
        rows = [claim.row._replace(word=lease_ms) for claim, _, lease_ms in renewals]
        try:
            answers = yield from ask_claims("renew", rows)
        except (RedisError, ConfigurationError, OSError) as error:
            return [error] * len(renewals)
        return list(map(bool, answers))

    def lose_behind(self, hold: Hold, reason: str) -> bool:
        if self.ended or hold.lost:
            return False
        hold.lost = reason
        return True


def claim(
    state: FilterState, item: Item, options: ClaimOptions, payload: Item | None = None
) -> Core[ClaimSession]:
    """Claim one item, waiting for the outcome of another claim if the options say so."""
    session = ClaimSession(state, Offer(item, encode_item(item), check_payload(payload)), options)
    until, pause = boot_clock() + options.wait_s, SHORTEST_PAUSE
    yield from take(state, [session])
    while session.state is ClaimState.BUSY and (left := until - boot_clock()) > 0:
        yield Pause(min(left, pause))
        pause = min(2 * pause, LONGEST_PAUSE)
        yield from take(state, [session])
    return session


def claim_many(
    state: FilterState,
    items: Iterable[Item],
    options: ClaimOptions,
    payloads: Sequence[Item | None] | None = None,
) -> Core[list[ClaimSession]]:
    check_items(items)
    given = list(items)
    each = [None] * len(given) if payloads is None else list(map(check_payload, payloads))
    if len(each) != len(given):
        raise ConfigurationError(
            f"payloads must be one for each item, not {len(each)} for {len(given)} items"
        )
    offers = map(Offer, given, encode_items(given), each)
    sessions = [ClaimSession(state, offer, options) for offer in offers]
    yield from take(state, sessions)
    return sessions


def take(state: FilterState, sessions: Sequence[ClaimSession]) -> Core[None]:
    """Ask for items, all by the same options, in the generation attached to.

    A token is of one claim, and fixed before the first byte is sent. Of the claims of an item that
    threads or tasks made at a time several may be unanswered, and the server has granted one: so
    the next one is asked for by all their tokens.
    """
    if not state.runs_scripts:
        check_support(CLAIMS, state.strategy.name)
    if not sessions:
        return
    options = sessions[0].options
    for one in sessions:
        one.tokens = state.unanswered.take(one.offer.data) or secrets.token_bytes(TOKEN_BYTES)
    words = (options.lease_ms, options.max_attempts, int(options.only_expired))

    def work(view: View) -> Core[bool | None]:
        yield from refuse_full(state, view, [one.offer.item for one in sessions])
        rows = [one.place(view) for one in sessions]
        sent = boot_clock()
        answers = yield from ask_claims("take", rows, words)
        if None in answers:
            return None
        if not view.discards and any(row.shard.slices.has_tombstones for row in rows):
            # It ends what is kept, before an answer of this call would be.
            state.note_discards(view)
        for one, answer in zip(sessions, answers, strict=True):
            one.take(answer, sent)
        return True

    try:
        yield from in_one_generation(state, work)
    except BaseException:
        # The server may have granted what no answer says. The next try has the same tokens, so it
        # is not blocked by this one.
        for one in sessions:
            state.unanswered.keep(one.offer.data, one.tokens)
        raise


def refuse_full(state: FilterState, view: View, items: Sequence[Item]) -> Core[None]:
    """Raise CapacityError where the filter is full and takes no new items, and one is new."""
    if not state.fill.refuse:
        return
    if state.fill.refusing or not state.fill.until_look:
        yield from state.fill.look(view)
    if state.fill.refusing:
        seen = yield from before_adding(exists_many(state, items))
        if not all(seen):
            why = state.fill.why_refusing(state.descriptor)
            raise CapacityError(f"filter {state.keys.name!r} is full: {why}")
