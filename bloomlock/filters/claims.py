"""How items are claimed: one, many, and those whose workers died."""

from __future__ import annotations

import secrets
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from bloomlock.claims import Offer, ask_claims, find_expired
from bloomlock.effects import Pause
from bloomlock.errors import CapacityError, ConfigurationError
from bloomlock.hashing import check_items, encode_item, encode_items
from bloomlock.runtime.clock import boot_clock

from .answers import exists_many
from .batches import before_adding
from .claim_session import OFFERED, ClaimSession, ClaimState, check_payload
from .state import in_one_generation
from .support import CLAIMS, check_support

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import AnyRuntime, Core

    from .claim_session import ClaimOptions
    from .generation import View
    from .state import FilterState

    Item = str | bytes

TOKEN_BYTES = 15
EXPIRED_AT_ONCE = 16
USUAL_EXPIRED, MOST_EXPIRED = 64, 1000
MARGIN_SECONDS = 0.005
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2


def claim(
    state: FilterState, item: Item, options: ClaimOptions, runtime: AnyRuntime
) -> Core[ClaimSession]:
    """Claim one item, waiting for the outcome of another claim if the options say so."""
    session = ClaimSession(state, Offer(item, encode_item(item), options.payload), runtime)
    until, pause = boot_clock() + options.wait_s, SHORTEST_PAUSE
    if state.near is None or not state.near.knows(item):
        yield from _take(state, [session], options)
    while session.state is ClaimState.BUSY and (left := until - boot_clock()) > 0:
        yield Pause(min(left, session.remaining + MARGIN_SECONDS, pause))
        pause = min(2 * pause, LONGEST_PAUSE)
        yield from _take(state, [session], options)
    return session


def claim_many(
    state: FilterState,
    items: Iterable[Item],
    options: ClaimOptions,
    runtime: AnyRuntime,
    payloads: Sequence[Item | None] | None = None,
) -> Core[list[ClaimSession]]:
    """Claim items, each with a state of its own; payloads of items that are near are not read."""
    check_items(items)
    given = list(items)
    if payloads is not None and len(payloads) != len(given):
        raise ConfigurationError(
            f"payloads must be one for each item, not {len(payloads)} for {len(given)} items"
        )
    encoded = encode_items(given)
    near = state.near
    known = [near is not None and near.knows(item) for item in given]
    sessions, asked = [], []
    for index, (item, data, is_known) in enumerate(zip(given, encoded, known, strict=True)):
        payload = None if payloads is None or is_known else check_payload(payloads[index])
        session = ClaimSession(state, Offer(item, data, payload), runtime)
        sessions.append(session)
        if not is_known:
            asked.append(session)
    yield from _take(state, asked, options)
    return sessions


def _take(
    state: FilterState,
    sessions: Sequence[ClaimSession],
    options: ClaimOptions,
    *,
    only_expired: bool = False,
) -> Core[None]:
    """Ask for items in the generation attached to.

    Of the claims of an item that threads or tasks made at a time several may be unanswered, and the
    server has granted one. An item that is BUSY is tried again with its token.
    """
    for one in sessions:
        one.token = (
            one.token or state.unanswered.take(one.offer.data) or secrets.token_bytes(TOKEN_BYTES)
        )
    tried = [(one.offer.data, one.token) for one in sessions]
    todo = [*sessions]
    try:
        while todo:
            work = partial(_take_in, state, todo, options, only_expired)
            yield from in_one_generation(state, work)
            busy, todo = [one for one in todo if one.state is ClaimState.BUSY], []
            for one in busy:
                if (token := state.unanswered.take(one.offer.data)) is not None:
                    one.token = token
                    todo.append(one)
                    tried.append((one.offer.data, token))
    except BaseException:
        # The server may have granted what no answer says. The next try has the same token, so it
        # is not blocked by this one.
        for data, token in tried:
            state.unanswered.keep(data, token)
        raise


def _take_in(
    state: FilterState,
    sessions: Sequence[ClaimSession],
    options: ClaimOptions,
    only_expired: bool,
    view: View,
) -> Core[bool | None]:
    """Ask in one generation; None: a shard is of another one."""
    check_support(CLAIMS, state.strategy.name, view.descriptor)
    yield from refuse_full(state, view, [one.offer.item for one in sessions])
    asked = state.ask_near(view)
    rows = [one.place(view) for one in sessions]
    sent = boot_clock()
    words = (options.lease_ms, options.max_attempts, int(only_expired))
    answers = yield from ask_claims("take", rows, words)
    if None in answers:
        return None
    if not view.discards and any(row.shard.slices.has_tombstones for row in rows):
        # It ends what is kept, before an answer of this call would be.
        state.note_discards(view)
    for one, answer in zip(sessions, answers, strict=True):
        one.take(answer, sent, options)
    if asked is not None:
        if state.keeps_found:
            found = zip(sessions, answers, strict=True)
            asked.near.keep_many([one.offer.item for one, (how, *_) in found if how == b"seen"])
        asked.confirm()
    return True


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


class Expired:
    """The items whose workers died; one is claimed when it is wanted, so none is held too early."""

    def __init__(self, state: FilterState, options: ClaimOptions, runtime: AnyRuntime) -> None:
        self._state = state
        self._options = options
        self._runtime = runtime
        self._shard = 0
        self._found: deque[bytes] = deque()
        self._skipped: set[tuple[int, bytes]] = set()

    def find(self, limit: int = 1) -> Core[list[ClaimSession]]:
        """Return up to `limit` claims, which one request has made; none at the end."""
        state = self._state
        look = partial(self._look, max(limit, EXPIRED_AT_ONCE))
        while self._found or (yield from in_one_generation(state, look)):
            some = [self._found.popleft() for _ in range(min(limit, len(self._found)))]
            # No caller would bring the item again, so it is offered after its lease.
            sessions = [
                ClaimSession(state, Offer.of(carried), self._runtime, OFFERED) for carried in some
            ]
            yield from _take(state, sessions, self._options, only_expired=True)
            if made := [one for one in sessions if one.state is ClaimState.NEW]:
                return made
        return []

    def _look(self, count: int, view: View) -> Core[bool | None]:
        """Look for more from where the last were found; False: there are none."""
        check_support(CLAIMS, self._state.strategy.name, view.descriptor)
        for number in range(self._shard, len(view.shards)):
            records = yield from find_expired(view.shards[number], count)
            if records is None:
                return None
            for record in records:
                # One that comes again could not be taken over, and would do so for ever.
                if (record.fence, record.token) not in self._skipped:
                    self._skipped.add((record.fence, record.token))
                    self._found.append(record.carried)
            if self._found:
                self._shard = number
                return True
        return False
