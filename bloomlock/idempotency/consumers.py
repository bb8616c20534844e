"""`consume`: a message of a queue that takes effect once, however often it is delivered."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.filters.claim_session import TTL_SECONDS, ClaimState
from bloomlock.locks.options import check_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bloomlock.filters._async.bloom import AsyncBloomFilter
    from bloomlock.filters._async.claims import AsyncClaim
    from bloomlock.filters._sync.bloom import BloomFilter
    from bloomlock.filters._sync.claims import Claim

logger = logging.getLogger("bloomlock.claims")

LONGEST_DELAY = 300.0


class Action(StrEnum):
    """What to do with a message.

    Attributes:
        ACK: Acknowledge it: it took effect, now or before, or failed too often.
        RETRY: Leave it with the queue, to be delivered again.
    """

    ACK = "ack"
    RETRY = "retry"


ACK, RETRY = Action


@dataclass(frozen=True, slots=True)
class Consumed:
    """What became of a delivery.

    Attributes:
        action: ACK or RETRY.
        state: Of the claim: NEW (the work ran), SEEN, BUSY or FAILED; None: the server could not
            be asked.
        delay: RETRY: seconds after which to deliver it again: the rest of the lease of the other
            worker, or a time that doubles with each attempt.
        attempts: NEW, FAILED: how often it was tried, as far as `max_attempts` has it counted.
        error: Why the work, or what came before or after it, failed.
    """

    action: Action
    state: ClaimState | None
    delay: float = 0.0
    attempts: int = 0
    error: Exception | None = None


def consume(
    done: BloomFilter,
    message_id: str | bytes,
    work: Callable[[], object],
    *,
    ttl: float = TTL_SECONDS,
    renew: bool = True,
    wait: float | None = None,
    payload: str | bytes | None = None,
    max_attempts: int | None = None,
    backoff: float = 1.0,
) -> Consumed:
    """Do the work of a message unless it was done; say whether to acknowledge the message.

    Exceptions of the work are logged and returned. KeyboardInterrupt and SystemExit give the
    message back and go on.

    Args:
        done: Holds the ids of the messages that took effect.
        message_id: Names the message in all its deliveries: an id that its producer gives it,
            where the queue gives a new one to what is sent twice.
        work: What to do; a function without arguments.
        ttl: The lease in seconds. It may be shorter than the queue's time-out for deliveries.
        renew: Whether the lease is renewed while the work runs.
        wait: Seconds to wait for another worker that has the message; None: not at all.
        payload: What `failed()` and `expired()` show, such as the message itself.
        max_attempts: After how many failures or deaths the message is acknowledged, and stays on
            the list of `failed()`; None: never.
        backoff: The delay in seconds after the first failure; the next are twice as long each,
            at most 300, if `max_attempts` is given.

    Raises:
        ConfigurationError, TypeError, CapacityError, FilterLostError: As `BloomFilter.claim`.

    Cost: two round trips, one if it was done.

    >>> from bloomlock import BloomFilter
    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     done = BloomFilter("done", 1000, client=server.url)
    ...     [consume(done, "m1", lambda: print("work")).action.name for _ in range(2)]
    work
    ['ACK', 'ACK']
    """
    check_seconds("backoff", backoff, least=0)
    try:
        claim = done.claim(
            message_id, ttl, renew=renew, wait=wait, payload=payload, max_attempts=max_attempts
        )
    except (RedisError, OSError) as error:
        return _unreachable(message_id, error, backoff)
    has_worked = False
    try:
        with claim:
            if claim:
                work()
                has_worked = True
    except Exception as error:  # noqa: BLE001 - it is logged and returned
        is_final = not has_worked and 0 < (max_attempts or 0) <= claim.attempts
        return _failed(claim, error, backoff, is_final=is_final)
    return _ended(claim)


async def async_consume(
    done: AsyncBloomFilter,
    message_id: str | bytes,
    work: Callable[[], Awaitable[object]],
    *,
    ttl: float = TTL_SECONDS,
    renew: bool = True,
    wait: float | None = None,
    payload: str | bytes | None = None,
    max_attempts: int | None = None,
    backoff: float = 1.0,
) -> Consumed:
    """Do the work of a message unless it was done. See consume."""
    check_seconds("backoff", backoff, least=0)
    try:
        claim = await done.claim(
            message_id, ttl, renew=renew, wait=wait, payload=payload, max_attempts=max_attempts
        )
    except (RedisError, OSError) as error:
        return _unreachable(message_id, error, backoff)
    has_worked = False
    try:
        async with claim:
            if claim:
                await work()
                has_worked = True
    except Exception as error:  # noqa: BLE001 - it is logged and returned
        is_final = not has_worked and 0 < (max_attempts or 0) <= claim.attempts
        return _failed(claim, error, backoff, is_final=is_final)
    return _ended(claim)


def _unreachable(message_id: str | bytes, error: Exception, backoff: float) -> Consumed:
    logger.warning("message %.80r was not claimed: %s", message_id, error)
    return Consumed(RETRY, None, backoff, error=error)


def _failed(
    claim: Claim | AsyncClaim, error: Exception, backoff: float, *, is_final: bool
) -> Consumed:
    """Return what became of a delivery whose work or commit raised."""
    logger.warning("message %.80r failed: %s", claim.item, error, exc_info=error)
    if is_final:
        return Consumed(ACK, claim.state, 0.0, claim.attempts, error)
    delay = min(LONGEST_DELAY, backoff * 2.0 ** min(claim.attempts - 1, 60))
    return Consumed(RETRY, claim.state, delay, claim.attempts, error)


def _ended(claim: Claim | AsyncClaim) -> Consumed:
    """Return what became of a delivery without an exception."""
    if claim.state is ClaimState.BUSY:
        return Consumed(RETRY, claim.state, claim.remaining)
    return Consumed(ACK, claim.state, 0.0, claim.attempts)
