"""Getting a lock: asking, standing in the queue, being handed it; and leaving when time is up.

Why no wake-up is lost: "busy" and "you are in the queue" are one step, so every release after it
sees the waiter. A grant is stored, the message only says so. What happens without a step, and a
message that never came, cost at most a slice or the rest of the holder's lease.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis.exceptions

from bloomlock.effects import (
    ConnectionLost,
    Core,
    Limit,
    NextMessage,
    Pause,
    RunAfter,
    Subscribe,
    make,
)
from bloomlock.errors import ConfigurationError
from bloomlock.locks.options import deadline_of
from bloomlock.refusals import is_busy

from .steps import NO_CHANNEL, SLICE_MS, Busy, Granted, LockRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from .steps import LockSteps

ENDLESS = float("inf")
LATER_SECONDS = 0.002
"""How long after the end of a lease a waiter looks: the server counts whole milliseconds."""
LOOK_SECONDS = 0.1
"""Between looks where the server announces nothing to this client."""
OUTAGE_PAUSE = 0.2
GRACE_SECONDS = 0.9
"""How long after the caller's time limit an answer is still waited for."""
CLEANUP_SECONDS = 0.5
"""How long a caller that gives up waits until what it may have got is given back."""

# Errors of a server that is failing over or moving slots; see is_busy too.
TEMPORARY = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.AskError,  # MovedError is a kind of it
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,  # MasterDownError is a kind of it
)


class Attempt:
    """One attempt to get a lock, which gives up at `until`; None: never.

    A `crowded` one is likely to have to wait, so it asks for a place in the queue at once if a
    connection to be woken by is at hand.
    """

    ballot: Any = None

    def __init__(
        self,
        steps: LockSteps,
        request: LockRequest,
        until: float | None,
        clock: Callable[[], float],
        *,
        crowded: bool = True,
    ) -> None:
        # Its channel is filled in when it has to wait.
        self.request = request
        self._steps = steps
        self._clock = clock
        self._crowded = crowded
        self._until = ENDLESS if until is None else until
        self._limit = max(self._until, clock()) + GRACE_SECONDS
        self._answered: float | None = None
        self._queue: list[Any] = [None]

    def run(self) -> Core[tuple[int, float] | None]:  # noqa: C901 - one request in a loop, with its cases
        """Get the lock, standing in its queue while another client has it.

        Returns the fence and the deadline of the hold; None: time is up. The lock is free and the
        answer is a grant; or it is held and the grant comes as a message or as the answer to a
        later look; or the server does not answer and is asked again. Raises RedisError if the
        server does not answer at first, or for longer than the lease, or when time is up. After any
        exception the caller runs `leave_behind`.
        """
        clock, failure, key = self._clock, None, self._steps.keys.lock
        if self._limit < ENDLESS:
            yield Limit(self._limit, self._queue)
        if self._crowded and clock() < self._until:
            # It listens at once if there is a connection to listen on.
            self.request = self.request.listening((yield make(Subscribe, (key, False, None))))
        while True:
            sent = clock()
            try:
                answer, _ = yield from self._steps.acquire(self.request)
            except (ConnectionLost, redis.exceptions.RedisError) as error:
                failure = error.cause if isinstance(error, ConnectionLost) else error
                is_temporary = isinstance(error, (ConnectionLost, *TEMPORARY)) or is_busy(error)
                if not is_temporary or self._is_given_up(error):
                    raise failure from None
                yield Pause(OUTAGE_PAUSE)
            else:
                failure, self._answered = None, clock()
                if isinstance(answer, Granted):
                    return answer.fence, deadline_of(sent, self.request.lease_ms)
                busy = answer
            if clock() >= self._until:
                break
            if not self.request.channel:
                left = self._limit - clock()
                seconds = max(0.0, left) if left < ENDLESS else None
                channel = yield Subscribe(key, True, seconds)
                self.request = self.request.listening(channel or NO_CHANNEL)
            elif failure is None and (got := (yield from self._wait(busy, sent))):
                return got
        if failure is not None:
            raise failure from None
        if self.request.channel:
            yield from self.leave_behind()
        return None

    def leave_behind(self) -> Core[None]:
        """Leave the queue, and pass on the lock if it was granted by then; never raises.

        The caller is not held up much beyond its time limit. A place or grant at a server that does
        not answer ends by itself.
        """
        seconds = min(CLEANUP_SECONDS, max(0.0, self._limit - self._clock()))
        yield RunAfter(self._leave(), self._queue, seconds)

    def _leave(self) -> Core[None]:
        with suppress(ConnectionLost, redis.exceptions.RedisError, ConfigurationError):
            yield from self._steps.release(self.request)

    def _is_given_up(self, error: Exception) -> bool:
        """Return whether the server has not answered for longer than a lease, or not at all."""
        now = self._clock()
        if self._answered is None and not isinstance(error, ConnectionLost):
            self._answered = now
        longest_s = self.request.lease_ms / 1000
        return self._answered is None or now - self._answered > longest_s or now >= self._until

    def _wait(self, busy: Busy, sent: float) -> Core[tuple[int, float] | None]:
        request = self.request
        seconds = SLICE_MS / 1000
        if 0 <= busy.remaining_ms < SLICE_MS:
            seconds = min(seconds, busy.remaining_ms / 1000 + LATER_SECONDS)
        seconds = max(0.0, min(seconds, self._until - self._clock()))
        if request.channel == NO_CHANNEL:
            yield Pause(min(seconds, LOOK_SECONDS))
            return None
        payload = yield make(NextMessage, (request.token, seconds))
        if payload is None or (fence := int(payload.split(b" ")[1])) <= busy.fence:
            return None
        now, end = self._clock(), deadline_of(sent, request.lease_ms + SLICE_MS)
        if now >= end:
            return None
        return fence, min(end, deadline_of(now, request.lease_ms))
