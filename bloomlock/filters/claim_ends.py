"""How claims end: by a commit, given back, or lost; and how their leases are extended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.clock import boot_clock
from bloomlock.commands import check
from bloomlock.effects import ConnectionLost, Limit
from bloomlock.errors import ClaimError, ConfigurationError
from bloomlock.locks.options import check_lease, deadline_of, milliseconds
from bloomlock.locks.watchdog import WATCHDOG
from bloomlock.sizing import check_flag

from .claims import COMMITTED, GIVEN_BACK, LOST, UNKNOWN, ask_claims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Core
    from bloomlock.locks.hold import Hold

    from .claims import ClaimSession

logger = logging.getLogger("bloomlock.claims")

LONGEST_ERROR = 1000  # characters that are kept
LEAVING_SECONDS = 2.0  # an exception waits so long at most until the item is given back

ENDS = {
    1: (COMMITTED, ""),
    0: (LOST, "another worker claimed the item since, or it was retried or dropped"),
    None: (LOST, "the filter was cleared or replaced"),
    -1: (UNKNOWN, "it is over, and an earlier commit may have been carried out"),
}
"""How a claim ended, and why the worker cannot rely on it, by the answer to a commit."""


def commit(session: ClaimSession) -> Core[None]:
    (done,) = yield from commit_many([session])
    if not done:
        raise session.lost_error(session.lost)


def commit_many(sessions: Sequence[ClaimSession]) -> Core[list[bool]]:
    """Commit claims; for each whether its item is in the filter, False if the claim was lost."""
    pending = _take_from_watchdog(sessions, {COMMITTED, LOST, UNKNOWN})
    rows = [session.row for session, _ in pending]
    answers = yield from ask_claims("commit", rows, with_errors=True)
    for (session, hold), answer in zip(pending, answers, strict=True):
        if isinstance(answer, Exception):
            session.watch()
        else:
            session.ended, hold.lost = ENDS[answer]
    if added := answers.count(1):
        session, _ = pending[0]
        if (fill := session.filter_state.fill).due(added):
            yield from fill.look_after_add(session.view)
    check(answers)
    known = [None if one.ended == UNKNOWN else one.ended != LOST for one in sessions]
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
    pending = _take_from_watchdog(sessions, {GIVEN_BACK, LOST, UNKNOWN})
    rows = [session.row._replace(word=_offered(session, offer)) for session, _ in pending]
    yield from ask_claims("abandon", rows, (text, b"", b""))
    for session, _ in pending:
        session.ended = GIVEN_BACK


def _offered(session: ClaimSession, offer: bool | None) -> bytes:
    """Return when `expired` finds an item that is given back: never, after its lease, or now."""
    # No caller would bring an item again that `expired` has given.
    usual = b"after" if session.options.only_expired else b"never"
    return usual if offer is None else b"now" if offer else b"never"


def leave(session: ClaimSession, error: BaseException | None) -> Core[None]:
    if error is None:
        yield from commit(session)
        return
    # Ctrl-C, a cancellation and the end of the process are no fault of the item.
    fault = error if isinstance(error, Exception) else None
    yield Limit(boot_clock() + LEAVING_SECONDS, [None])
    try:
        yield from abandon_many([session], fault)
    except (RedisError, ConnectionLost, ClaimError, OSError) as failure:
        logger.warning("%s was not given back and is left to expire: %s", session.label, failure)


def extend(session: ClaimSession, ttl: float | None = None) -> Core[None]:
    hold = session.require()
    lease_ms = hold.lease_ms if ttl is None else milliseconds(check_lease(ttl))
    sent = boot_clock()
    row = session.row._replace(word=lease_ms)
    (held,) = yield from ask_claims("renew", [row])
    if not held:
        WATCHDOG.remove(hold)
        hold.lost = ENDS[held][1]
        raise session.lost_error(hold.lost)
    hold.lost = ""
    hold.lease_ms = lease_ms
    hold.deadline = max(hold.deadline, deadline_of(sent, lease_ms))
    hold.schedule_renewal(sent + hold.renewal_seconds)
    session.watch()


def _take_from_watchdog(
    sessions: Sequence[ClaimSession], ends: set[str]
) -> list[tuple[ClaimSession, Hold]]:
    """Return the claims that did not end in one of these ways, which are not renewed any more."""
    pending = [(one, one.require()) for one in sessions if one.ended not in ends]
    for _, hold in pending:
        WATCHDOG.remove(hold)
    return pending
