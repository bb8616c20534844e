"""How items are claimed: one, many, and those whose workers died; the same for asyncio."""

from __future__ import annotations

import os
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.claims import (
    COUNTERS,
    Answer,
    ClaimRequest,
    Held,
    Offered,
    Outcome,
    Record,
    find_expired,
    take_claims,
)
from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.effects import NextMessage, Pause, Subscribe
from bloomlock.errors import CapacityError, ConfigurationError
from bloomlock.hashing import encode_item, encode_items
from bloomlock.keys import ClaimKeys
from bloomlock.locks.hold import RENEWALS_PER_LEASE, Hold
from bloomlock.locks.protocol.values import SLICE_MS
from bloomlock.locks.protocol.waiting import deadline_of
from bloomlock.locks.session import TOKENS
from bloomlock.parallel import in_parallel
from bloomlock.runtime.clock import boot_clock
from bloomlock.strategies.lua import pack_one

from .answers import before_adding, exists_many
from .claim_session import (
    ClaimSession,
    ClaimState,
    Offer,
    Owner,
    check_payload,
    place_of,
)
from .state import in_one_generation
from .support import CLAIMS, check_support

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.claims import Place
    from bloomlock.effects import Core

    from .claim_session import ClaimOptions, Item, Keeper
    from .generation import View
    from .state import FilterState

EXPIRED_AT_ONCE = 16
USUAL_EXPIRED, MOST_EXPIRED = 64, 1000
MARGIN_SECONDS = 0.005
SHORTEST_LOOK, LONGEST_LOOK = 0.01, 0.2

_STATES = {
    Outcome.NEW: ClaimState.NEW,
    Outcome.SEEN: ClaimState.SEEN,
    Outcome.BUSY: ClaimState.BUSY,
    Outcome.FAILED: ClaimState.FAILED,
}


class Try(NamedTuple):
    """An item that is asked for, by the token that its claim would have."""

    offer: Offer
    token: bytes


class How(NamedTuple):
    """How items are asked for; see ClaimRequest."""

    options: ClaimOptions
    keeper: Keeper
    channel: bytes = b""
    only_expired: bool = False


def claim(
    state: FilterState, item: Item, options: ClaimOptions, keeper: Keeper
) -> Core[ClaimSession]:
    """Claim one item, waiting for the outcome of another claim if the options say so."""
    offer = Offer(item, encode_item(item), options.payload)
    if state.near is not None and state.near.knows(item):
        return ClaimSession(ClaimState.SEEN, offer)
    wanted = Try(offer, _token_for(state, offer.data))
    until = boot_clock() + options.wait_s
    channel: bytes | None = None
    look = SHORTEST_LOOK
    while True:
        (made,) = yield from _take(state, [wanted], How(options, keeper, channel or b""))
        left = until - boot_clock()
        if made.state is not ClaimState.BUSY or left <= 0:
            return made
        seconds = min(left, made.remaining + MARGIN_SECONDS, SLICE_MS / 1000)
        if channel is None:
            # It asks again before it waits: now its channel stands with the other claim.
            channel = yield Subscribe(state.keys.bits(0), True, left)
        elif channel:
            yield NextMessage(wanted.token, seconds)
        else:
            yield Pause(min(seconds, look))
            look = min(2 * look, LONGEST_LOOK)


def claim_many(
    state: FilterState,
    items: Iterable[Item],
    options: ClaimOptions,
    keeper: Keeper,
    payloads: Sequence[Item | None] | None = None,
) -> Core[list[ClaimSession]]:
    """Claim items, each with a state of its own; payloads of items that are near are not read."""
    given = list(items)
    if payloads is not None and len(payloads) != len(given):
        raise ConfigurationError(
            f"payloads must be one for each item, not {len(payloads)} for {len(given)} items"
        )
    encoded = encode_items(given)
    known = state.near.known(given) if state.near is not None else [False] * len(given)
    offers = [
        Offer(
            item, data, None if payloads is None or is_known else check_payload(payloads[position])
        )
        for position, (item, data, is_known) in enumerate(zip(given, encoded, known, strict=True))
    ]
    wanted = [
        Try(offer, _token_for(state, offer.data))
        for offer, is_known in zip(offers, known, strict=True)
        if not is_known
    ]
    asked = iter((yield from _take(state, wanted, How(options, keeper))) if wanted else ())
    return [
        ClaimSession(ClaimState.SEEN, offer) if is_known else next(asked)
        for offer, is_known in zip(offers, known, strict=True)
    ]


def _token_for(state: FilterState, data: bytes) -> bytes:
    """Return a token that no other claim has, but one of this item that was not answered."""
    return state.unanswered.take(data) or TOKENS.new()


def _take(state: FilterState, wanted: Sequence[Try], how: How) -> Core[list[ClaimSession]]:
    """Ask for items in the generation attached to; with GONE left out.

    Of the claims of an item that threads or tasks made at a time several may be unanswered, and the
    server has granted one. An item that is BUSY is asked for again by the token of each.
    """
    check_support(CLAIMS, state.strategy.name)
    asked = [*wanted]

    def ask(some: Sequence[Try], view: View) -> Core[list[ClaimSession] | None]:
        check_support(CLAIMS, state.strategy.name, view.descriptor)
        yield from refuse_full(state, view, [one.offer.item for one in some])
        return (yield from _take_in(state, view, some, how))

    try:
        made = yield from in_one_generation(state, partial(ask, wanted))
        while again := _others_unanswered(state, wanted, made):
            asked += again.values()
            answers = yield from in_one_generation(state, partial(ask, [*again.values()]))
            for index, session in zip(again, answers, strict=True):
                made[index] = session
    except BaseException:
        # The server may have granted what no answer says. The next try has the same token, so it
        # is not blocked by this one.
        for offer, token in asked:
            state.unanswered.keep(offer.data, token)
        raise
    return made


def _others_unanswered(
    state: FilterState, wanted: Sequence[Try], made: Sequence[ClaimSession]
) -> dict[int, Try]:
    """Return what is to be asked again, by its place, of items that are BUSY."""
    # None is BUSY where some may be left out.
    return {
        index: Try(one.offer, token)
        for index, (one, session) in enumerate(zip(wanted, made, strict=False))
        if session.state is ClaimState.BUSY
        and (token := state.unanswered.take(one.offer.data)) is not None
    }


def _take_in(
    state: FilterState, view: View, wanted: Sequence[Try], how: How
) -> Core[list[ClaimSession] | None]:
    """Ask in one generation; None: a shard is of another one."""
    asked = state.ask_near(view)
    requests, places = _requests(view, wanted, how)
    sent = boot_clock()
    answers = yield from take_claims(
        [(place, [requests[index] for index in indices]) for place, indices in places.items()]
    )
    order = [(place, index) for place, indices in places.items() for index in indices]
    if None in answers:
        return None
    _hear(state, view, answers)
    made: dict[int, ClaimSession] = {}
    seen: list[Item] = []
    for (place, index), answer in zip(order, answers, strict=True):
        if answer is None or answer.outcome is Outcome.GONE:
            continue
        offer = wanted[index].offer
        if answer.carried:
            offer = offer._replace(payload=Offer.of(answer.carried).payload)
        session = made[index] = ClaimSession(_STATES[answer.outcome], offer, answer.attempts)
        if answer.outcome is Outcome.BUSY:
            session.busy_until = sent + answer.remaining_ms / 1000
        elif answer.outcome is Outcome.NEW:
            hold = _hold(requests[index], answer.fence, sent, how.options)
            held = Held(*requests[index][:3])
            offered = Offered.AFTER_LEASE if how.only_expired else Offered.NEVER
            owner = Owner(state, view, place, held, how.keeper, offered)
            session.start(owner, hold)
        elif answer.outcome is Outcome.SEEN:
            seen.append(offer.item)
    if asked is not None:
        if state.keeps_found:
            asked.near.keep_many(seen)
        asked.confirm()
    return [made[index] for index in sorted(made)]


def _hear(state: FilterState, view: View, answers: Sequence[Answer | None]) -> None:
    """Note discarded items, which ends what is kept, before an answer of this call would be."""
    if not view.discards and any(answer is not None and answer.discards for answer in answers):
        state.note_discards(view)


def _requests(
    view: View, wanted: Sequence[Try], how: How
) -> tuple[list[ClaimRequest], dict[Place, list[int]]]:
    """Return what is asked, and the indices of what is asked in each place."""
    by_shard: dict[int, list[int]] = {}
    requests = []
    for index, one in enumerate(wanted):
        number, request = _request(view, one, how)
        requests.append(request)
        by_shard.setdefault(number, []).append(index)
    return requests, {place_of(view, number): indices for number, indices in by_shard.items()}


def _request(view: View, one: Try, how: How) -> tuple[int, ClaimRequest]:
    """Return the shard of an item and what is asked there."""
    number, offsets = view.hasher.locate(one.offer.data)
    identity = view.hasher.identify(one.offer.data)
    return number, ClaimRequest(
        identity,
        one.token,
        # With slices what stands for the offsets is the item.
        offsets if isinstance(offsets, bytes) else pack_one(offsets),
        how.options.lease_ms,
        how.options.max_attempts,
        b"" if how.only_expired else one.offer.carried(),
        how.channel,
        how.only_expired,
    )


def _hold(request: ClaimRequest, fence: int, sent: float, options: ClaimOptions) -> Hold:
    return Hold(
        token=request.token,
        group=b"",
        lease_ms=request.lease_ms,
        fence=fence,
        waiters=False,
        since=sent,
        deadline=deadline_of(sent, request.lease_ms),
        pid=os.getpid(),
        renew_at=sent + request.lease_ms / 1000 / RENEWALS_PER_LEASE if options.renew else None,
    )


def refuse_full(state: FilterState, view: View, items: Sequence[Item]) -> Core[None]:
    """Raise CapacityError where the filter is full and takes no new items, and one is new."""
    if not state.fill.refuse:
        return
    if state.fill.refusing or not state.fill.until_look:
        yield from state.fill.look(view)
    if state.fill.refusing:
        seen = yield from before_adding(exists_many(state, items))
        if not all(seen):
            raise CapacityError(
                f"filter {state.keys.name!r} is full: it holds its capacity of "
                f'{state.descriptor.capacity} items, and on_full="raise" refuses new ones'
            )


def check_limit(limit: object) -> int:
    """Return `limit`, or raise ConfigurationError."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_EXPIRED:
        raise ConfigurationError(
            f"limit must be a whole number from 1 to {MOST_EXPIRED}, not {limit!r:.80}"
        )
    return limit


class Expired:
    """The items whose workers died, one claim or some after the other.

    An item is claimed when it is wanted, so none is held that the caller has not got.

    Args:
        state: The filter.
        options: Of the claims.
        keeper: What renews them.
        at_once: How many items are looked for at once.
    """

    def __init__(
        self,
        state: FilterState,
        options: ClaimOptions,
        keeper: Keeper,
        at_once: int = EXPIRED_AT_ONCE,
    ) -> None:
        self._state = state
        self._how = How(options, keeper, only_expired=True)
        self._at_once = at_once
        self._shard = 0
        self._found: deque[bytes] = deque()
        self._skipped: set[bytes] = set()

    def find_next(self) -> Core[ClaimSession | None]:
        """Return the next claim, None at the end."""
        made = yield from self.find_some(1)
        return made[0] if made else None

    def find_some(self, limit: int) -> Core[list[ClaimSession]]:
        """Return up to `limit` claims, which one request has made; none at the end."""
        while self._found or (yield from in_one_generation(self._state, self._look)):
            some = [self._found.popleft() for _ in range(min(limit, len(self._found)))]
            offers = [Offer.of(carried) for carried in some]
            wanted = [Try(offer, _token_for(self._state, offer.data)) for offer in offers]
            taken = yield from _take(self._state, wanted, self._how)
            if made := [one for one in taken if one.state is ClaimState.NEW]:
                return made
        return []

    def _look(self, view: View) -> Core[bool | None]:
        """Look for more from where the last were found; False: there are none."""
        check_support(CLAIMS, self._state.strategy.name, view.descriptor)
        for number in range(self._shard, len(view.shards)):
            found = yield from find_expired(place_of(view, number), self._at_once)
            if found is None:
                return None
            # One that comes again could not be taken over, and would do so for ever.
            fresh = [record for _, record in found if self._is_fresh(record)]
            self._found.extend(record.carried for record in fresh)
            if fresh:
                self._shard = number
                return True
        return False

    def _is_fresh(self, record: Record) -> bool:
        mark = b"%d %b" % (record.fence, record.token)
        fresh = mark not in self._skipped
        self._skipped.add(mark)
        return fresh


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


def count_claims(view: View) -> Core[ClaimCounts]:
    """Return the counts of all shards; one round trip."""
    totals = Counter[str]()
    asked = [
        ask(
            keys.counts,
            encode_command("HMGET", keys.counts, "header", *COUNTERS),
            encode_command("HLEN", keys.open),
            encode_command("HLEN", keys.failed),
        )
        for keys in (ClaimKeys.of(shard.key) for shard in view.shards)
    ]
    for (header, *numbers), num_open, num_failed in (yield from in_parallel(asked)):
        if header == view.header.to_bytes(HEADER_BYTES, "big"):
            totals.update(open=num_open, failed_items=num_failed)
            for name, number in zip(COUNTERS, numbers, strict=True):
                totals[name] += int(number or 0)
    return ClaimCounts(**totals)
