"""Claims as their workers have them: how items are claimed, renewed, committed and given back."""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.claims import ClaimState, Offer, Row, ask_claims, check_payload
from bloomlock.effects import ConnectionLost, Limit, Pause
from bloomlock.errors import (
    CapacityError,
    ClaimError,
    ClaimLostError,
    ConfigurationError,
    OutcomeUnknownError,
)
from bloomlock.hashing import check_items, encode_item, encode_items
from bloomlock.locks.hold import RENEWALS_PER_LEASE, Hold, Watched
from bloomlock.locks.options import check_lease, deadline_of, milliseconds
from bloomlock.locks.watchdog import WATCHDOG
from bloomlock.runtime.clock import boot_clock
from bloomlock.sizing import check_flag, check_seconds, check_whole

from .answers import exists_many
from .batches import before_adding
from .state import in_one_generation
from .support import CLAIMS, check_support

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from bloomlock.effects import AnyRuntime, Core

    from .generation import View
    from .state import FilterState

    Item = str | bytes

logger = logging.getLogger("bloomlock.claims")

TTL_SECONDS = 60.0
MOST_ATTEMPTS = 1_000_000
LONGEST_ERROR = 1000  # characters that are kept
LEAVING_SECONDS = 2.0  # an exception waits so long at most until the item is given back
NEVER, OFFERED, NOW = b"never", b"after", b"now"
"""When `expired` finds an item that is given back: never, after its lease, or now."""
UNKNOWN = "the reply to its commit was lost, and by the next try the claim was over"
TOKEN_BYTES = 15
MARGIN_SECONDS = 0.005
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """How items are claimed; `max_attempts` 0: as their earlier claims had it."""

    lease_ms: int
    renew: bool
    wait_s: float
    payload: str | bytes | None
    max_attempts: int

    @classmethod
    def check(
        cls,
        ttl: float,
        renew: bool,
        wait: float | None = None,
        payload: str | bytes | None = None,
        max_attempts: int | None = None,
    ) -> ClaimOptions:
        lease_ms = milliseconds(check_lease(ttl))
        check_flag("renew", renew)
        wait_s = 0.0 if wait is None else check_seconds("wait", wait, least=0)
        check_payload(payload)
        if max_attempts is not None:
            allowed = f"from 1 to {MOST_ATTEMPTS}, or None"
            check_whole("max_attempts", max_attempts, 1, MOST_ATTEMPTS, allowed)
        return cls(lease_ms, bool(renew), wait_s, payload, max_attempts or 0)


class ClaimSession(Watched):
    """One claim as its worker has it; at first an item that it asks for."""

    what = "claim"
    row: Row  # names the claim in its shard
    view: View

    def __init__(
        self,
        filter_state: FilterState,
        offer: Offer,
        runtime: AnyRuntime,
        offered: bytes = NEVER,
    ) -> None:
        self.filter_state = filter_state
        self.offer = offer  # stays the same if the claim is tried again
        self.payload = offer.payload  # BUSY: that of the other claim
        self.runtime = runtime
        self.offered = offered  # when the item is found again if it is given back
        self.state = ClaimState.SEEN
        self.attempts = 0
        self.token = b""  # which no other claim has; fixed before the first byte is sent
        self.hold: Hold | None = None  # None unless the state is NEW
        self.busy_until = 0.0
        # "committed", "given back" or, at a commit that was refused, "lost", or "unknown" if it may
        # have been carried out before.
        self.ended = ""
        self.is_repeated = False  # a commit may have been carried out without an answer

    def place(self, view: View) -> Row:
        data, hasher = self.offer.data, view.hasher
        shard = view.shards[hasher.shard_of(data)]
        self.view, self.row = view, Row(shard, hasher.identify(data), self.token, data)
        return self.row._replace(word=self.offer.carried())

    def take(self, answer: list[Any], sent: float, options: ClaimOptions) -> None:
        state, *rest = answer
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
            self.attempts = rest[1]
            if carried := rest[2:]:
                # Another worker may have had it since it was found to be over.
                self.payload = Offer.of(*carried).payload
            seconds = options.lease_ms / 1000 / RENEWALS_PER_LEASE
            self.hold = Hold(
                token=self.token,
                lease_ms=options.lease_ms,
                fence=int(rest[0]),
                since=sent,
                deadline=deadline_of(sent, options.lease_ms),
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
        if hold is None or self.ended in {"committed", "given back"}:
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
            raise self._lost_error(why)

    def require(self) -> Hold:
        """Return the hold, or raise ClaimError if there is none to end."""
        hold = self.hold
        if hold is None:
            raise ClaimError(f"{self.label} is not this worker's: it is {self.state.name}")
        if hold.pid != os.getpid():
            raise ClaimError(f"{self.label} is of the process that this one was forked from")
        if self.ended == "lost":
            raise self._lost_error(hold.lost)
        if self.ended == "unknown":
            raise self.unknown_error()
        if self.ended:
            raise ClaimError(f"{self.label} was {self.ended} already")
        return hold

    def _lost_error(self, why: str) -> ClaimLostError:
        return ClaimLostError(f"{self.label} was lost: {why}")

    def unknown_error(self, results: Sequence[bool | None] = (None,)) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.label} may or may not have been committed: {UNKNOWN} (another worker has the "
            "item, or it was discarded after it was committed)",
            list(results),
        )

    def commit(self) -> Core[None]:
        (done,) = yield from commit_many([self])
        if not done:
            raise self._lost_error(self.hold.lost if self.hold else "")

    def end(self, done: bool | None) -> None:
        """Take the answer to a commit; None: its generation is over."""
        if done:
            self.ended = "committed"
        elif self.hold is not None:
            self.ended = "unknown" if done is False and self.is_repeated else "lost"
            self.hold.lost = UNKNOWN if self.ended == "unknown" else _why_lost(done)

    def leave(self, error: BaseException | None) -> Core[None]:
        if error is None:
            yield from self.commit()
            return
        # Ctrl-C, a cancellation and the end of the process are no fault of the item.
        fault = error if isinstance(error, Exception) else None
        yield Limit(boot_clock() + LEAVING_SECONDS, [None])
        try:
            yield from abandon_many([self], fault)
        except (RedisError, ConnectionLost, ClaimError, OSError) as failure:
            logger.warning("%s was not given back and is left to expire: %s", self.label, failure)

    def extend(self, ttl: float | None = None) -> Core[None]:
        hold = self.require()
        lease_ms = hold.lease_ms if ttl is None else milliseconds(check_lease(ttl))
        sent = boot_clock()
        (held,) = yield from ask_claims("renew", [self.renewal_of(hold, lease_ms)])
        if not held:
            WATCHDOG.remove(hold)
            hold.lost = _why_lost(held)
            raise self._lost_error(hold.lost)
        hold.lost = ""
        hold.lease_ms = lease_ms
        hold.deadline = max(hold.deadline, deadline_of(sent, lease_ms))
        hold.schedule_renewal(sent + hold.renewal_seconds)
        self.watch()

    # What a watchdog asks for; see Watched.

    @property
    def label(self) -> str:
        return f"claim of {self.offer.item!r:.80}"

    @property
    def key(self) -> str:
        return self.row.shard.key

    def renewal_of(self, hold: Hold, lease_ms: int) -> Row:  # noqa: ARG002 - it has one hold
        return self.row._replace(data=None, word=lease_ms)

    def renew_all(self, renewals: Sequence[Row]) -> Core[Sequence[bool | Exception]]:
        try:
            answers = yield from ask_claims("renew", renewals)
        except (RedisError, ConfigurationError, OSError) as error:
            return [error] * len(renewals)
        return list(map(bool, answers))

    def lose_behind(self, hold: Hold, reason: str) -> bool:
        if self.ended or hold.lost:
            return False
        hold.lost = reason
        return True


def claim(
    state: FilterState, item: Item, options: ClaimOptions, runtime: AnyRuntime
) -> Core[ClaimSession]:
    """Claim one item, waiting for the outcome of another claim if the options say so."""
    session = ClaimSession(state, Offer(item, encode_item(item), options.payload), runtime)
    until, pause = boot_clock() + options.wait_s, SHORTEST_PAUSE
    yield from take(state, [session], options)
    while session.state is ClaimState.BUSY and (left := until - boot_clock()) > 0:
        yield Pause(min(left, session.remaining + MARGIN_SECONDS, pause))
        pause = min(2 * pause, LONGEST_PAUSE)
        yield from take(state, [session], options)
    return session


def claim_many(
    state: FilterState,
    items: Iterable[Item],
    options: ClaimOptions,
    runtime: AnyRuntime,
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
    sessions = [ClaimSession(state, offer, runtime) for offer in offers]
    yield from take(state, sessions, options)
    return sessions


def take(
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


def _why_lost(answer: bool | None) -> str:
    if answer is None:
        return "the filter was cleared or replaced"
    return "another worker claimed the item since, or it was retried or dropped"


def commit_many(sessions: Sequence[ClaimSession]) -> Core[list[bool]]:
    """Commit claims; for each whether its item is in the filter, False if the claim was lost."""
    pending = _take_from_watchdog(sessions, {"committed", "lost", "unknown"})
    repeated: set[bytes] = set()
    try:
        rows = [one.row for one in pending]
        answers = yield from ask_claims("commit", rows, repeated=repeated)
    except BaseException:
        # What was cut off may have been sent.
        repeated.update(session.token for session in pending)
        raise
    finally:
        for session in pending:
            session.is_repeated |= session.token in repeated
    added, failure = 0, None
    for session, answer in zip(pending, answers, strict=True):
        if isinstance(answer, Exception):
            failure = answer
            session.watch()
            continue
        session.end(None if answer is None else bool(answer))
        added += bool(answer)
    if added and (state := pending[0].filter_state).fill.due(added):
        yield from state.fill.look_after_add(pending[0].view)
    if failure is not None:
        raise failure
    known = [None if one.ended == "unknown" else one.ended == "committed" for one in sessions]
    if None in known:
        raise sessions[known.index(None)].unknown_error(known)
    return list(map(bool, known))


def abandon_many(
    sessions: Sequence[ClaimSession],
    error: str | BaseException | None = None,
    *,
    offer: bool | None = None,
) -> Core[None]:
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    if not isinstance(error, str | None):
        raise ConfigurationError(f"error must be a text or an exception, not {error!r:.80}")
    text = b"" if error is None else b"+" + error[:LONGEST_ERROR].encode(errors="backslashreplace")
    if offer is not None:
        check_flag("offer", offer)
    pending = _take_from_watchdog(sessions, {"given back", "lost", "unknown"})
    offered = None if offer is None else NOW if offer else NEVER
    rows = [one.row._replace(data=None, word=offered or one.offered) for one in pending]
    yield from ask_claims("abandon", rows, [text])
    for session in pending:
        session.ended = "given back"


def _take_from_watchdog(sessions: Sequence[ClaimSession], ends: set[str]) -> list[ClaimSession]:
    """Return the claims that did not end in one of these ways, which are not renewed any more."""
    pending = [one for one in sessions if one.ended not in ends]
    holds = [one.require() for one in pending]
    for hold in holds:
        WATCHDOG.remove(hold)
    return pending
