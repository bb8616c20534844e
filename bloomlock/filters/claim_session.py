"""One claim of an item as its worker has it, and how claims end; the same for asyncio."""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from redis.exceptions import RedisError

from bloomlock.claims import Offered, Place, abandon_claims, commit_claims, renew_claims
from bloomlock.descriptor import HEADER_BYTES, unflagged
from bloomlock.effects import ConnectionLost, Limit
from bloomlock.errors import ClaimError, ClaimLostError, ConfigurationError, OutcomeUnknownError
from bloomlock.hashing import encode_item
from bloomlock.locks.options import check_flag, check_lease, check_seconds, milliseconds
from bloomlock.locks.protocol.waiting import deadline_of
from bloomlock.runtime.clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.claims import Held
    from bloomlock.effects import AnyRuntime, Core
    from bloomlock.locks.async_watchdog import AsyncWatchdog
    from bloomlock.locks.hold import Hold
    from bloomlock.locks.watchdog import Watchdog

    from .generation import View
    from .near_cache import NearCache
    from .state import FilterState

    Item = str | bytes
    Renewal = tuple[Place, tuple[Held, int]]
    EndCall = tuple[Place, Sequence[Held]]

T = TypeVar("T")
E = TypeVar("E")

logger = logging.getLogger("bloomlock.claims")

TTL_SECONDS = 60.0
MOST_ATTEMPTS = 1_000_000
LONGEST_ERROR = 1000
"""Characters of the text of an error that are kept."""
LEAVING_SECONDS = 2.0
"""How long an exception waits at most until the item is given back."""
CLEARED = "the filter was cleared or replaced"
TAKEN = "another worker claimed the item since, or it was retried or dropped"
UNKNOWN = "the reply to its commit was lost, and by the next try the claim was over"


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


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """How items are claimed.

    Attributes:
        lease_ms: The lease.
        renew: Whether it is renewed.
        wait_s: How long to wait for the outcome of another claim.
        payload: What is kept with the item.
        max_attempts: After how many attempts an item counts as failed; 0: never.
    """

    lease_ms: int
    renew: bool
    wait_s: float
    payload: Item | None
    max_attempts: int

    @classmethod
    def check(
        cls,
        ttl: float,
        renew: bool,
        wait: float | None = None,
        payload: Item | None = None,
        max_attempts: int | None = None,
    ) -> ClaimOptions:
        """Return checked options, or raise ConfigurationError."""
        lease_ms = milliseconds(check_lease(ttl))
        check_flag("renew", renew)
        wait_s = 0.0 if wait is None else check_seconds("wait", wait, least=0)
        check_payload(payload)
        if max_attempts is not None and (
            isinstance(max_attempts, bool)
            or not isinstance(max_attempts, int)
            or not 1 <= max_attempts <= MOST_ATTEMPTS
        ):
            raise ConfigurationError(
                f"max_attempts must be a whole number from 1 to {MOST_ATTEMPTS}, or None, not "
                f"{max_attempts!r:.80}"
            )
        return cls(lease_ms, bool(renew), wait_s, payload, max_attempts or 0)


@dataclass(frozen=True, slots=True)
class Keeper:
    """What claims are renewed by.

    Attributes:
        runtime: Through what.
        watchdog: Of the process or the loop.
    """

    runtime: AnyRuntime
    watchdog: Watchdog | AsyncWatchdog


class Offer(NamedTuple):
    """An item that a claim is asked for.

    Attributes:
        item: As the caller has it.
        data: Its encoded form.
        payload: What is kept with it.
    """

    item: Item
    data: bytes
    payload: Item | None

    def carried(self) -> bytes:
        """Return what is stored with the claim."""
        kind = b"s" if isinstance(self.item, str) else b"b"
        length = struct.pack(">I", len(self.data))
        if self.payload is None:
            return b"%b%b%b-" % (kind, length, self.data)
        last = b"s" if isinstance(self.payload, str) else b"b"
        return b"%b%b%b%b%b" % (kind, length, self.data, last, encode_item(self.payload))

    @classmethod
    def of(cls, carried: bytes) -> Offer:
        """Return what `carried` was made of.

        >>> Offer.of(Offer("é", "é".encode(), b"more").carried()).payload
        b'more'
        """
        (length,) = struct.unpack_from(">I", carried, 1)
        data, rest = carried[5 : 5 + length], carried[5 + length :]
        item = data.decode() if carried[:1] == b"s" else data
        payload: Item | None = None
        if rest[:1] != b"-":
            payload = rest[1:].decode() if rest[:1] == b"s" else rest[1:]
        return cls(item, data, payload)


class Owner(NamedTuple):
    """What a claim that is NEW is ended by.

    Attributes:
        state: The filter.
        view: The generation it is of.
        place: Where it lies.
        held: What names it there.
        keeper: What renews it.
        offered: When it is found again if it is given back. An item of `expired` is, after its
            lease: no caller would bring it.
    """

    state: FilterState
    view: View
    place: Place
    held: Held
    keeper: Keeper
    offered: Offered


class ClaimSession:
    """One claim as its worker has it.

    Attributes:
        state: See ClaimState.
        offer: The item.
        attempts: How often it was claimed, this one included.
        ended: "committed", "given back" or, at a commit that was refused, "lost", or "unknown" if
            it may have been carried out before; else empty.
        hold: The lease; None unless the state is NEW.
        is_repeated: Whether a commit may have been carried out without an answer.
    """

    what = "claim"
    steps = None

    def __init__(self, state: ClaimState, offer: Offer, attempts: int = 0) -> None:
        self.state = state
        self.offer = offer
        self.attempts = attempts
        self.ended = ""
        self.hold: Hold | None = None
        self.busy_until = 0.0
        self.is_repeated = False

    def start(self, owner: Owner, hold: Hold) -> None:
        """Take what a claim that is NEW is ended by, and begin to renew it."""
        self.hold = hold
        self._owner = owner
        self.watch()

    def watch(self) -> None:
        """Let it be renewed, if it is to be."""
        if self.hold is not None and self.hold.renew_at is not None:
            self._owner.keeper.watchdog.add(self.hold, self, self._owner.keeper.runtime)

    def unwatch(self) -> None:
        """Let it be renewed no more."""
        if self.hold is not None:
            self._owner.keeper.watchdog.remove(self.hold)

    @property
    def place(self) -> Place:
        """Where it lies."""
        return self._owner.place

    @property
    def held(self) -> Held:
        """What names it there."""
        return self._owner.held

    @property
    def offered(self) -> Offered:
        """When the item is offered again if it is given back."""
        return self._owner.offered

    @property
    def is_open(self) -> bool:
        """Whether it is to be committed or given back here; not in a child of fork."""
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
        """Seconds that are left of the lease: its own, or, BUSY, that of the other."""
        until = self.busy_until
        if self.hold is not None:
            until = 0.0 if self.ended else self.hold.deadline
        return max(0.0, until - boot_clock())

    def check(self) -> None:
        """Raise ClaimError or ClaimLostError if the worker cannot rely on it."""
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
        """Return the error for a commit that may have been carried out before it was refused."""
        return OutcomeUnknownError(
            f"{self.label} may or may not have been committed: {UNKNOWN} (another worker has the "
            "item, or it was discarded after it was committed)",
            list(results),
        )

    def commit(self) -> Core[None]:
        """Set the bits of the item and end the claim."""
        if self.ended != "committed":
            (done,) = yield from commit_many([self])
            if not done:
                raise self._lost_error(self.hold.lost if self.hold else "")

    @property
    def near(self) -> NearCache | None:
        """Where a commit that is about to be sent is kept; None if it is not."""
        near = self._owner.state.near
        if near is None or unflagged(near.header) != self._owner.view.header:
            return None
        return near

    def note_added(self, count: int) -> Core[None]:
        """Take note of how many items this process has added to the filter."""
        state = self._owner.state
        if state.fill.due(count):
            yield from state.fill.look_after_add(self._owner.view)

    @property
    def is_committed(self) -> bool | None:
        """Whether the item was committed; None: that is not known."""
        return None if self.ended == "unknown" else self.ended == "committed"

    def note_commit(self, done: bool | None) -> bool:
        """Take the answer to a commit; return whether the item is in the filter."""
        if done:
            self.ended = "committed"
        elif self.hold is not None and done is False and self.is_repeated:
            self.hold.lost, self.ended = UNKNOWN, "unknown"
        elif self.hold is not None:
            self.hold.lost = CLEARED if done is None else TAKEN
            self.ended = "lost"
        return bool(done)

    def abandon(
        self, error: str | BaseException | None = None, *, offer: bool | None = None
    ) -> Core[None]:
        """Give the item back; see `abandon_many`."""
        if self.ended not in {"given back", "lost", "unknown"}:
            yield from abandon_many([self], error, offer=offer)

    def leave(self, error: BaseException | None) -> Core[None]:
        """Commit at the end of a block, or give the item back after an exception."""
        if error is None:
            yield from self.commit()
            return
        # Ctrl-C, a cancellation and the end of the process are no fault of the item.
        text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else None
        yield Limit(boot_clock() + LEAVING_SECONDS, [None])
        try:
            yield from self.abandon(text)
        except (RedisError, ConnectionLost, ClaimError, OSError) as failure:
            logger.warning("%s was not given back and is left to expire: %s", self.label, failure)

    def extend(self, ttl: float | None = None) -> Core[None]:
        """Let the lease be `ttl` seconds from now, at least, and as long at each renewal."""
        hold = self.require()
        lease_ms = hold.lease_ms if ttl is None else milliseconds(check_lease(ttl))
        sent = boot_clock()
        (held,) = yield from renew_claims([(self.place, [(self.held, lease_ms)])])
        if not held:
            self.unwatch()
            hold.lost = CLEARED if held is None else TAKEN
            raise self._lost_error(hold.lost)
        hold.lost = ""
        hold.lease_ms = lease_ms
        hold.deadline = max(hold.deadline, deadline_of(sent, lease_ms))
        hold.schedule_renewal(sent + hold.renewal_seconds)
        self.watch()

    # What a watchdog asks for.

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"claim of {self.offer.item!r:.80}"

    @property
    def key(self) -> str:
        """A key that names its server."""
        key: str = self.place.bits_key
        return key

    def is_orphan(self, hold: Hold) -> bool:  # noqa: ARG002 - any thread may go on with it
        """Return False: a claim belongs to no thread."""
        return False

    def is_abandoned(self, hold: Hold, has_ended: object) -> bool:  # noqa: ARG002 - it is left
        """Return False: what is open at the end expires, and is offered then."""
        return False

    def renewal_of(self, hold: Hold, lease_ms: int) -> Renewal:  # noqa: ARG002 - it has one hold
        """Return what asks for a lease."""
        return self.place, (self.held, lease_ms)

    def renew_all(self, renewals: Sequence[Renewal]) -> Core[Sequence[bool | Exception]]:
        """Renew claims that lie on one server; for each whether it was held."""
        places, wanted = zip(*renewals, strict=True)
        try:
            answers = yield from _at_places(places, wanted, renew_claims)
        except (RedisError, ConfigurationError, OSError) as error:
            return [error] * len(renewals)
        return [bool(answer) for answer in answers]

    def renewed(self, hold: Hold, now: float) -> None:
        """Do nothing: there is no observer."""

    def lose_behind(self, hold: Hold, reason: str) -> bool:
        """Take note that the lease is not renewed any more; return whether that is news."""
        if self.ended or hold.lost:
            return False
        hold.lost = reason
        return True


def check_payload(payload: object) -> Item | None:
    """Return a payload, or raise ConfigurationError."""
    if payload is None or isinstance(payload, (str, bytes)):
        return payload
    raise ConfigurationError(f"payload must be str, bytes or None, not {type(payload).__name__}")


def check_error(error: object) -> str | None:
    """Return the text of an error as it is kept, or raise ConfigurationError."""
    if error is None:
        return None
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    if not isinstance(error, str):
        raise ConfigurationError(f"error must be a text or an exception, not {error!r:.80}")
    return error[:LONGEST_ERROR]


def commit_many(sessions: Sequence[ClaimSession]) -> Core[list[bool]]:
    """Commit claims; for each whether its item is in the filter, False if the claim was lost.

    Raises:
        OutcomeUnknownError: If the commit of one was sent more than once, and is answered by False.
    """
    pending = [one for one in sessions if one.ended not in {"committed", "lost", "unknown"}]
    for session in pending:
        session.require()
    for session in pending:
        session.unwatch()
    # Before it is sent: what is kept later may be that of after a discard.
    nears = [session.near for session in pending]
    answers = yield from _send_commit(pending)
    committed = []
    for session, near, done in zip(pending, nears, answers, strict=True):
        if session.note_commit(done):
            committed.append(session)
            if near is not None:
                near.keep(session.offer.item)
    if committed:
        yield from committed[0].note_added(len(committed))
    known = [session.is_committed for session in sessions]
    if None in known:
        raise sessions[known.index(None)].unknown_error(known)
    return [is_committed is True for is_committed in known]


def _send_commit(sessions: Sequence[ClaimSession]) -> Core[list[bool | None]]:
    """Commit claims, and note of which the commit may have been carried out without an answer."""
    repeated: set[bytes] = set()
    try:
        return (yield from _end(sessions, partial(commit_claims, repeated=repeated)))
    except Exception:
        for session in sessions:
            session.watch()
        raise
    except BaseException:
        # What was cut off may have been sent.
        repeated.update(session.held.token for session in sessions)
        raise
    finally:
        for session in sessions:
            session.is_repeated |= session.held.token in repeated


def abandon_many(
    sessions: Sequence[ClaimSession],
    error: str | BaseException | None = None,
    *,
    offer: bool | None = None,
) -> Core[None]:
    """Give items back; `error`: why the work failed, if it did; `offer`: to `expired` at once.

    `offer` None: when `expired` gives an item that it gave before is said by its session.
    """
    text = check_error(error)
    wanted = None
    if offer is not None:
        check_flag("offer", offer)
        wanted = Offered.AT_ONCE if offer else Offered.NEVER
    pending = [one for one in sessions if one.ended not in {"given back", "lost", "unknown"}]
    for session in pending:
        session.require()
    for session in pending:
        session.unwatch()
    groups: dict[Offered, list[ClaimSession]] = {}
    for session in pending:
        groups.setdefault(session.offered if wanted is None else wanted, []).append(session)
    for offered, some in groups.items():
        yield from _end(some, partial(abandon_claims, error=text, offered=offered))
    for session in pending:
        session.ended = "given back"


def place_of(view: View, number: int) -> Place:
    """Return where the claims of a shard lie."""
    shard, header = view.shards[number], view.header.to_bytes(HEADER_BYTES, "big")
    return Place(shard.key, header, view.hasher.num_hashes, shard.slices)


def _end(
    sessions: Sequence[ClaimSession],
    step: Callable[[Sequence[EndCall]], Core[list[E]]],
) -> Core[list[E]]:
    """Carry out a step for claims; an answer for each, in their order."""
    if not sessions:
        return []
    return (
        yield from _at_places([one.place for one in sessions], [one.held for one in sessions], step)
    )


def _at_places(
    places: Sequence[Place],
    wanted: Sequence[T],
    step: Callable[[Sequence[tuple[Place, Sequence[T]]]], Core[list[E]]],
) -> Core[list[E]]:
    """Carry out a step for what lies in places, by one call for each; an answer for each thing."""
    indices: dict[Place, list[int]] = {}
    for index, place in enumerate(places):
        indices.setdefault(place, []).append(index)
    found = yield from step(
        [(place, [wanted[index] for index in some]) for place, some in indices.items()]
    )
    order = [index for some in indices.values() for index in some]
    by_index = dict(zip(order, found, strict=True))
    return [by_index[index] for index in range(len(places))]
