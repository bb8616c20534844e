"""The algorithm of a lock over several independent servers: all are asked at once.

Two majorities of the same servers have one in common, and no server gives its lock to two. So the
lock is held from when a majority has said yes until the first lease among those could be over.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

from bloomlock.clock import boot_clock
from bloomlock.commands import encode_command
from bloomlock.effects import ConnectionLost, Core, FanOut, Pause
from bloomlock.errors import ConfigurationError, QuorumError
from bloomlock.keys import LockKeys
from bloomlock.locks.options import deadline_of
from bloomlock.locks.protocol.steps import RENEW, Granted, LockRequest, LockSteps
from bloomlock.locks.protocol.waiting import ENDLESS, Attempt

from .session import LockSession, new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .hold import Hold, Renewal
    from .options import RedlockOptions

    Votes = Sequence[Any]

INFO = encode_command("INFO", "server")
_UPTIME = re.compile(rb"^uptime_in_seconds:(\d+)", re.MULTILINE)
_RUN = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
UPTIME_STEP = 1.0
"""A server reports its uptime in whole seconds, which may be almost one too many."""
PAUSES = (0.05, 0.25)
"""The shortest and the longest pause in seconds before a waiter asks again.

Their random length keeps two waiters from splitting the votes again and again."""
LINGER_SECONDS = 10.0
"""How long a release goes on in the background at a server that does not answer."""


class Vote(Enum):
    """The answer of one server; None in a list of votes: unknown, or not here yet."""

    YES = "it has the token"
    NO = "it has not"
    ABSTAINS = "it has it, but was restarted too lately for that to count"


def majority_of(votes: Votes) -> int:
    """Return how many of the configured servers are a majority, whether they answer or not."""
    return len(votes) // 2 + 1


def agreement(votes: Votes, *unknown: Vote) -> bool | None:
    """Return whether a majority says yes; None: the unknown votes decide."""
    yes = votes.count(Vote.YES)
    if yes >= majority_of(votes):
        return True
    yes += sum(vote is None or vote in unknown for vote in votes)
    return None if yes >= majority_of(votes) else False


def is_answered(votes: Votes, *also: Vote) -> bool:
    """Return whether a majority of the servers has a vote."""
    return sum(vote in {Vote.YES, Vote.NO, *also} for vote in votes) >= majority_of(votes)


def is_decided(votes: Votes) -> bool:
    """Return whether the missing votes change nothing.

    They could change neither whether there is a majority nor whether one was reached at all.
    """
    known = agreement(votes)
    return None not in votes or known is True or (known is False and is_answered(votes))


@dataclass(eq=False)
class Seat:
    """The state of a token at one server, as far as it is known."""

    there: bool = False  # whether the token may be there; not before it was asked
    counts_from: float = -ENDLESS  # when its vote begins to count: it was restarted lately
    vote: Vote | None = None  # what it said last
    error: Exception | None = None  # why it said nothing
    run: bytes | None = None  # which run of a server program said so
    queue: list[Any] = field(default_factory=partial(list, (None,)))  # keeps questions in order

    def say(self, held: bool, sent: float) -> Vote:
        """Return its vote, if it has or had the token with a lease that was requested at `sent`."""
        if not held:
            return Vote.NO
        return Vote.ABSTAINS if sent < self.counts_from else Vote.YES


@dataclass(eq=False)
class Ballot:
    """The state of one token at each server.

    Each try has a token of its own, so a late release of an earlier one takes nothing away.
    """

    token: bytes
    seats: list[Seat]
    closed: bool = False  # the token is being given back, so no server is asked for it

    def same_server(self) -> tuple[int, int] | None:
        """Return the indices of two addresses that lead to one server, if there are any."""
        seen: dict[bytes, int] = {}
        for server, seat in enumerate(self.seats):
            if seat.run is not None and (first := seen.setdefault(seat.run, server)) != server:
                return first, server
        return None


class MajoritySteps(LockSteps):
    """The steps at all servers, by a ballot that outlives each of them."""

    def __init__(
        self, name: str, servers: int, options: RedlockOptions, clock: Callable[[], float]
    ) -> None:
        super().__init__(LockKeys.of(name, options.prefix))
        self.options = options
        self._name = name
        self._servers = servers
        self._clock = clock
        self._one = LockSteps(self.keys)

    def new_ballot(self, token: bytes = b"") -> Ballot:
        return Ballot(token, [Seat() for _ in range(self._servers)])

    def ask_for(self, ballot: Ballot, request: LockRequest) -> Core[list[Vote | None]]:
        """Ask every server for the lock, until the outcome is certain or time is up."""
        longest_ttl = self.options.longest_ttl

        def question(seat: Seat) -> Core[Vote]:
            seat.there = True
            # The age of the server is asked after the lock, on the same connection, so no restart
            # hides in between. A server that refuses INFO may have granted the lock.
            age = (INFO,) if longest_ttl else ()
            try:
                answer, info = yield from self._one.acquire(request, *age)
            except ConnectionLost as lost:
                seat.there = lost.sent
                raise
            now, is_granted = self._clock(), isinstance(answer, Granted)
            if longest_ttl:
                uptime, run = _UPTIME.search(info), _RUN.search(info)
                seat.run = run[1] if run else None
                if is_granted:
                    # A server that was restarted may have forgotten what it granted. Until all of
                    # that is over, by the longest lease that any client asks for, it has no vote.
                    age_s = int(uptime[1]) - UPTIME_STEP if uptime else -ENDLESS
                    seat.counts_from = now + longest_ttl - age_s
            seat.there = is_granted
            return seat.say(is_granted, now)

        return self._ask_each(ballot, question, is_decided, request.lease_ms / 1000)

    def renew(self, hold: Hold, lease_ms: int) -> Core[bool | Exception]:
        """Renew everywhere; True: on a majority, False: none can have it, else not known."""

        def question(seat: Seat) -> Core[Vote]:
            sent = self._clock()
            # A renewal extends what is there; it never takes the lock again.
            if seat.there:
                request = LockRequest(hold.token, lease_ms)
                seat.there, _ = yield from RENEW.run(self.keys, request)
            return seat.say(seat.there, sent)

        votes = yield from self._ask_each(hold.ballot, question, is_decided, lease_ms / 1000)
        # A server that has the token, but no vote yet, may count next time.
        held = agreement(votes, Vote.ABSTAINS)
        return self.no_quorum(votes, hold.ballot, "it was not renewed") if held is None else held

    def give_back(self, hold: Hold) -> Core[bool | None]:
        """Release everywhere; True: a majority had it, False: none can have had it.

        ConnectionLost if that is not known.
        """
        votes = yield from self.release_all(hold.ballot)
        held = agreement(votes)
        if held is None:
            error = self.no_quorum(votes, hold.ballot, "its lease ends by itself elsewhere")
            raise ConnectionLost(error, sent=True, replies=[])
        return held

    def release_all(self, ballot: Ballot, *, wait_for_all: bool = False) -> Core[list[Vote | None]]:
        """Release everywhere, and wait for servers that are known to have the token.

        Where a question is still under way the release follows it.
        """
        ballot.closed = True
        waits = [wait_for_all or seat.vote in {Vote.YES, Vote.ABSTAINS} for seat in ballot.seats]

        def release(seat: Seat) -> Core[Vote]:
            if not seat.there:
                return Vote.NO
            held = yield from self._one.release(LockRequest(ballot.token, 1))
            seat.there = False
            return seat.say(held is not False, self._clock())

        def is_enough(votes: Votes) -> bool:
            return None not in compress(votes, waits)

        return self._ask_each(ballot, release, is_enough, LINGER_SECONDS, closes=True)

    def locked(self) -> Core[bool]:
        """Return whether a majority has a token, so that nobody else can get the lock."""
        ballot = self.new_ballot()

        def look(_: Seat) -> Core[Vote]:
            return Vote.YES if (yield from self._one.locked()) else Vote.NO

        votes = yield from self._ask_each(ballot, look, is_decided)
        held = agreement(votes)
        if held is None:
            raise self.no_quorum(votes, ballot, "whether it is held is not known")
        return held

    def _ask_each(
        self,
        ballot: Ballot,
        question: Callable[[Seat], Core[Any]],
        is_enough: Callable[[Votes], bool],
        background_s: float = 0.0,
        *,
        closes: bool = False,
    ) -> Core[list[Any]]:
        until = self._clock() + self.options.server_timeout

        def recorded(seat: Seat) -> Core[Any]:
            vote = None
            # The thread of a silent server may get here too late.
            if not closes and (ballot.closed or self._clock() >= until):
                return None
            try:
                vote = yield from question(seat)
            finally:
                # A late answer counts too.
                seat.vote = vote
            return vote

        cores, queues = [recorded(seat) for seat in ballot.seats], [s.queue for s in ballot.seats]
        background_s = max(self.options.server_timeout, background_s)
        answers = yield FanOut(cores, queues, until, is_enough, background_s)
        for seat, answer in zip(ballot.seats, answers, strict=True):
            if isinstance(answer, Exception):
                seat.error = answer.cause if isinstance(answer, ConnectionLost) else answer
        return [None if isinstance(answer, Exception) else answer for answer in answers]

    def no_quorum(self, votes: Votes, ballot: Ballot, then: str) -> QuorumError:
        reasons = []
        for server, (vote, seat) in enumerate(zip(votes, ballot.seats, strict=True)):
            if vote is Vote.ABSTAINS:
                left = max(0.0, seat.counts_from - self._clock())
                why = f"restarted, it has no vote for {left:.0f} s more"
                reasons.append(f"clients[{server}]: {why}")
            elif vote is None:
                reasons.append(f"clients[{server}]: {seat.error or 'no answer in time'}")
        return QuorumError(
            f"lock {self._name!r}: {len(votes) - len(reasons)} of {len(votes)} servers answered "
            f"within {self.options.server_timeout:g} s, {majority_of(votes)} are needed; {then}"
            + (f" ({'; '.join(reasons)})" if reasons else "")
        )


class MajorityAttempt(Attempt):
    _steps: MajoritySteps

    def run(self) -> Core[tuple[int, float] | None]:
        """Poll until a majority has given the lock for long enough; None: others had it.

        Then nothing is left on any server that answers. QuorumError if no majority gave a vote
        when time was up, or, without a limit, for longer than the lease.
        """
        steps, lease_ms = self._steps, self.request.lease_ms
        outage_since = self._clock()
        while True:
            sent = self._clock()
            self.request = self.request._replace(token=new_token())
            ballot = self.ballot = steps.new_ballot(self.request.token)
            votes = yield from steps.ask_for(ballot, self.request)
            deadline, is_granted = deadline_of(sent, lease_ms), agreement(votes) is True
            if is_granted and self._clock() < deadline and not ballot.same_server():
                return 0, deadline
            yield from steps.release_all(ballot)
            self.ballot = None
            if (same := ballot.same_server()) is not None:
                raise ConfigurationError(
                    f"clients must be independent servers, but clients[{same[0]}] and "
                    f"clients[{same[1]}] are the same one"
                )
            now = self._clock()
            is_refused = is_answered(votes) and not is_granted
            # Servers that were restarted are up, though they have no vote yet.
            if is_refused or is_answered(votes, Vote.ABSTAINS):
                outage_since = now
            is_over = now >= self._until
            if is_over and is_refused:
                return None
            if is_over or (self._until == ENDLESS and now - outage_since > lease_ms / 1000):
                then = "what was taken was given back"
                if is_granted:
                    then = f"their answers came when nothing was left of the lease, and {then}"
                raise steps.no_quorum(votes, ballot, then)
            yield Pause(max(0.0, min(random.uniform(*PAUSES), self._until - now)))

    def leave_behind(self) -> Core[None]:
        if self.ballot is not None:
            # Releases at silent servers go on in the background.
            yield from self._steps.release_all(self.ballot, wait_for_all=True)


class RedlockSession(LockSession):
    options: RedlockOptions
    steps: MajoritySteps
    attempt = MajorityAttempt

    def __init__(self, name: str, options: RedlockOptions, servers: int) -> None:
        super().__init__(name, options)
        self.steps = MajoritySteps(name, servers, options, boot_clock)

    def renew_all(self, renewals: Sequence[Renewal]) -> Core[Sequence[bool | Exception]]:
        # A runtime of several servers gives each hold alone.
        [(_, hold, lease_ms)] = renewals
        return [(yield from self.steps.renew(hold, lease_ms))]
