"""One of the servers that a lock lives on: what it is asked, and how its answers are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.effects import ConnectionLost, Core, Pause
from bloomlock.locks.protocol.model import Busy, ReleaseRequest
from bloomlock.locks.protocol.quorum import Ballot, Vote, seconds_without_vote
from bloomlock.locks.protocol.steps import LockSteps, Renewal, renew_all
from bloomlock.locks.protocol.voting import Answer, ask_with_age, note_sending

if TYPE_CHECKING:
    from collections.abc import Callable

    from bloomlock.keys import LockKeys
    from bloomlock.locks.protocol.model import AcquireRequest

SHORTEST_RETRY, LONGEST_RETRY = 0.1, 1.0
LINGER_SECONDS = 10.0
"""How long a server that does not answer is told in the background that a lock is given back."""


class VotingServer:
    """One of several servers.

    Args:
        index: Which one.
        keys: The keys of the lock, the same on each server.
        missing: What this one is known to lack.
        longest_ttl: See Redlock.
        clock: Seconds, counting in suspend.

    Attributes:
        steps: The plain steps on this server.
        slow: Whether it was silent when it was asked for its vote last.
    """

    def __init__(
        self,
        index: int,
        keys: LockKeys,
        missing: set[str],
        longest_ttl: float,
        clock: Callable[[], float],
    ) -> None:
        """Keep the parameters."""
        self.index = index
        self.steps = LockSteps(keys, missing)
        self.slow = False
        self._missing = missing
        self._longest_ttl = longest_ttl
        self._clock = clock

    def vote(self, ballot: Ballot, asking: AcquireRequest, until: float) -> Core[Vote]:
        """Ask for the lock, unless it is too late for that by now."""
        if ballot.closed or self._clock() >= until:
            return Vote.SILENT
        may_be_there = False

        def note(sent: bool) -> None:
            nonlocal may_be_there
            may_be_there = may_be_there or sent

        ballot.there[self.index] = True
        try:
            answer = yield from note_sending(self._take(asking), note)
        except (ConnectionLost, RedisError):
            ballot.there[self.index] = may_be_there
            raise
        self.slow = False
        ballot.runs[self.index] = answer.run
        if isinstance(answer.answer, Busy):
            return ballot.say_no(self.index)
        now = self._clock()
        if seconds := seconds_without_vote(answer.uptime, self._longest_ttl):
            ballot.counts_from[self.index] = now + seconds
        return ballot.say_yes(self.index, now)

    def _take(self, asking: AcquireRequest) -> Core[Answer]:
        if self._longest_ttl:
            return (yield from ask_with_age(self.steps.keys, asking, self._missing))
        return Answer((yield from self.steps.acquire(asking)), None, None)

    def renew(self, ballot: Ballot, renewal: Renewal, until: float) -> Core[Vote]:
        """Renew the lease, unless it is too late for that by now; never takes the lock anew."""
        if not ballot.there[self.index]:
            return Vote.NO
        sent = self._clock()
        if ballot.closed or sent >= until:
            return Vote.SILENT
        [held] = yield from renew_all([renewal], self._missing)
        if isinstance(held, Exception):
            raise held
        return ballot.say_yes(self.index, sent) if held else ballot.say_no(self.index)

    def leave(self, ballot: Ballot) -> Core[Vote]:
        """Give back at one server, again and again if it is there but does not answer."""
        until, pause = self._clock() + LINGER_SECONDS, SHORTEST_RETRY
        while ballot.there[self.index]:
            leaving = ReleaseRequest(ballot.token)
            try:
                held = yield from self.steps.release(leaving, waiters=False)
            except ConnectionLost as lost:
                is_slow = isinstance(lost.cause, RedisTimeoutError)
                if not is_slow or self._clock() + pause > until:
                    raise
            else:
                counts = self._clock() >= ballot.counts_from[self.index]
                ballot.say_no(self.index)
                if held is False:
                    return Vote.NO
                return Vote.YES if counts else Vote.ABSTAINS
            yield Pause(pause)
            pause = min(2 * pause, LONGEST_RETRY)
        return Vote.NO
