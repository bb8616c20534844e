"""The algorithm of a lock over several independent servers: all are asked at once.

Two majorities of the same servers have one in common, and no server gives its lock to two. So the
lock is held from when a majority has said yes until the first lease among those could be over.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.commands import encode_command
from bloomlock.effects import AnyRuntime, ConnectionLost, Core, FanOut, Pause
from bloomlock.errors import ConfigurationError, QuorumError
from bloomlock.locks.protocol.steps import RENEW, LockSteps
from bloomlock.locks.protocol.values import Busy, ReleaseRequest
from bloomlock.locks.protocol.waiting import ENDLESS, Attempt, Obtained, deadline_of
from bloomlock.runtime.clock import boot_clock

from .options import RedlockOptions, milliseconds
from .session import TOKENS, LockSession, missing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import LockKeys
    from bloomlock.locks.protocol.values import AcquireRequest

    from .hold import Hold
    from .watchdog import AsyncWatchdog, Watchdog

    Votes = Sequence[Any]

INFO = encode_command("INFO", "server")
_UPTIME = re.compile(rb"^uptime_in_seconds:(\d+)", re.MULTILINE)
_RUN = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
UPTIME_STEP = 1.0
"""A server reports its uptime in whole seconds, which may be almost one too many."""
SHORTEST_RETRY, LONGEST_RETRY = 0.1, 1.0
LINGER_SECONDS = 10.0
"""How long a release is repeated in the background at a server that does not answer."""


class Vote(Enum):
    """What came of asking one server; in a list of votes None has not come yet."""

    YES = "it has the token"
    NO = "it has not"
    ABSTAINS = "it has it, but was restarted too lately for that to count"
    SILENT = "it is not known"


def majority_of(votes: Votes) -> int:
    """Return how many of the configured servers are a majority, whether they answer or not.

    >>> [majority_of([None] * servers) for servers in (1, 2, 3, 4, 5)]
    [1, 2, 2, 3, 3]
    """
    return len(votes) // 2 + 1


def agreement(votes: Votes, *unknown: Vote) -> bool | None:
    """Return whether a majority says yes; None: that depends on what is not known."""
    yes = votes.count(Vote.YES)
    if yes >= majority_of(votes):
        return True
    yes += sum(vote is None or vote in unknown for vote in votes)
    return None if yes >= majority_of(votes) else False


def is_answered(votes: Votes, *also: Vote) -> bool:
    """Return whether a majority of the servers has a vote."""
    return sum(vote in {Vote.YES, Vote.NO, *also} for vote in votes) >= majority_of(votes)


def is_decided(votes: Votes) -> bool:
    """Return whether votes that are still out are not worth waiting for.

    They could change neither whether there is a majority nor whether one was reached at all.
    """
    known = agreement(votes)
    return None not in votes or known is True or (known is False and is_answered(votes))


def seconds_without_vote(uptime: int | None, longest_ttl: float) -> float:
    """Return for how long a server must still abstain; 0.0: its vote counts.

    A server that was restarted may have forgotten what it granted. Until everything that it can
    have granted is over, by the longest lease that any client asks for (0: a restart forgets
    nothing), it has no vote. It has none either if it does not tell its uptime in seconds (None).

    >>> [seconds_without_vote(uptime, 30.0) for uptime in (0, 30, 31)]
    [31.0, 1.0, 0.0]
    """
    if not longest_ttl:
        return 0.0
    return ENDLESS if uptime is None else max(0.0, longest_ttl - (uptime - UPTIME_STEP))


class Seat:
    """What one server is known to have of a token."""

    def __init__(self, steps: LockSteps) -> None:
        self.steps = steps
        self.there = False  # whether the token may be there; not before it was asked
        self.counts_from = -ENDLESS  # when its vote begins to count: it was restarted lately
        self.vote: Vote | None = None  # what it said last
        self.error: Exception | None = None  # why it said nothing
        self.run: bytes | None = None  # which run of a server program said so
        self.line: list[Any] = [None]  # what a runtime keeps the questions in order by

    def say_yes(self, sent: float) -> Vote:
        """Note that it gave the token a lease that was asked for at `sent`."""
        self.there = True
        return Vote.ABSTAINS if sent < self.counts_from else Vote.YES

    def say_no(self) -> Vote:
        self.there = False
        return Vote.NO


class Ballot:
    """What is known of one token at each server.

    A fresh token for each try: a release of an earlier one that comes late takes nothing away.
    `closed`: the token is being given back, so that no server is to be asked for it.
    """

    def __init__(self, token: bytes, each: Sequence[LockSteps]) -> None:
        self.token = token
        self.seats = [Seat(steps) for steps in each]
        self.closed = False

    def same_server(self) -> tuple[int, int] | None:
        """Return two servers that are in truth one, if there are any."""
        seen: dict[bytes, int] = {}
        for server, seat in enumerate(self.seats):
            if seat.run is not None and (first := seen.setdefault(seat.run, server)) != server:
                return first, server
        return None


class MajoritySteps(LockSteps):
    """The steps at each of several servers, by a ballot that outlives each of them."""

    def __init__(
        self,
        name: str,
        each: Sequence[LockSteps],
        options: RedlockOptions,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(each[0].keys, set())
        self._name = name
        self._each = each
        self._options = options
        self._clock = clock

    def new_ballot(self, token: bytes = b"") -> Ballot:
        return Ballot(token, self._each)

    def ask_for(self, ballot: Ballot, request: AcquireRequest) -> Core[list[Vote | None]]:
        """Ask every server for the lock, until the outcome is certain or time is up."""
        until = self._clock() + self._options.server_timeout
        longest_ttl = self._options.longest_ttl

        def question(seat: Seat) -> Core[Vote]:
            # A thread may get its turn when it is too late to ask.
            if ballot.closed or self._clock() >= until:
                return Vote.SILENT
            seat.there = True
            # Its age is asked after the lock was taken, on the same connection, so that no restart
            # hides in between. A server that does not tell it may have given the lock all the same.
            age = (INFO,) if longest_ttl else ()
            try:
                answer, info = yield from seat.steps.acquire(request, *age)
            except ConnectionLost as lost:
                seat.there = lost.sent
                raise
            uptime = None
            if longest_ttl:
                found, run = _UPTIME.search(info), _RUN.search(info)
                uptime, seat.run = int(found[1]) if found else None, run[1] if run else None
            if isinstance(answer, Busy):
                return seat.say_no()
            now = self._clock()
            if seconds := seconds_without_vote(uptime, longest_ttl):
                seat.counts_from = now + seconds
            return seat.say_yes(now)

        return self._ask_each(ballot, question, is_decided, request.lease_ms)

    def renew(
        self, ballot: Ballot, renewal: tuple[LockKeys, tuple[Any, ...]], lease_ms: int
    ) -> Core[bool | Exception]:
        """Renew everywhere; True: on a majority, False: none can have it, else not known."""
        until = self._clock() + self._options.server_timeout

        def question(seat: Seat) -> Core[Vote]:
            # A renewal extends what is there; it never takes the lock anew.
            if not seat.there:
                return Vote.NO
            sent = self._clock()
            if ballot.closed or sent >= until:
                return Vote.SILENT
            [held] = yield from RENEW.run_all([renewal])
            if isinstance(held, Exception):
                raise held
            return seat.say_yes(sent) if held else seat.say_no()

        votes = yield from self._ask_each(ballot, question, is_decided, lease_ms)
        # A server that has the token, but no vote yet, may count next time.
        held = agreement(votes, Vote.SILENT, Vote.ABSTAINS)
        return self.no_quorum(votes, ballot, "it was not renewed") if held is None else held

    def give_back(self, hold: Hold) -> Core[bool | None]:
        """Release everywhere; True: a majority had it, False: none can have had it.

        ConnectionLost if that is not known.
        """
        votes = yield from self.release_all(hold.ballot)
        held = agreement(votes, Vote.SILENT)
        if held is None:
            error = self.no_quorum(votes, hold.ballot, "its lease ends by itself elsewhere")
            raise ConnectionLost(error, sent=True, replies=[])
        return held

    def release_all(self, ballot: Ballot, *, wait_for_all: bool = False) -> Core[list[Vote | None]]:
        """Release everywhere, and wait for those that are known to have the token.

        A server that has not answered yet is asked as soon as it does.
        """
        ballot.closed = True
        waits = [wait_for_all or seat.vote in {Vote.YES, Vote.ABSTAINS} for seat in ballot.seats]

        def is_enough(votes: Votes) -> bool:
            return not any(w and vote is None for w, vote in zip(waits, votes, strict=True))

        lease_ms = milliseconds(LINGER_SECONDS)
        return self._ask_each(ballot, lambda seat: self._release(ballot, seat), is_enough, lease_ms)

    def _release(self, ballot: Ballot, seat: Seat) -> Core[Vote]:
        """Give back at one server, again and again if it is there but does not answer."""
        until, pause = self._clock() + LINGER_SECONDS, SHORTEST_RETRY
        while seat.there:
            try:
                held = yield from seat.steps.release(ReleaseRequest(ballot.token), waiters=False)
            except ConnectionLost as lost:
                is_slow = isinstance(lost.cause, RedisTimeoutError)
                if not is_slow or self._clock() + pause > until:
                    raise
            else:
                seat.there = False
                if held is False:
                    return Vote.NO
                return Vote.YES if self._clock() >= seat.counts_from else Vote.ABSTAINS
            yield Pause(pause)
            pause = min(2 * pause, LONGEST_RETRY)
        return Vote.NO

    def is_held(self, token: bytes, group: bytes) -> Core[bool]:  # noqa: ARG002 - there are no groups
        return (yield from self._token_of_majority(token)) is not None

    def value(self) -> Core[bytes | None]:
        return self._token_of_majority(None)

    def _token_of_majority(self, wanted: bytes | None) -> Core[bytes | None]:
        """Return the token that a majority has, if it is the one wanted; None if none has.

        QuorumError if that is not known.
        """
        ballot = self.new_ballot()
        tokens: dict[Seat, bytes | None] = {}

        def look(seat: Seat) -> Core[Vote]:
            tokens[seat] = yield from seat.steps.value()
            return Vote.NO

        def verdict(votes: Votes) -> tuple[bytes | None, bool | None]:
            known = Counter(token for token in tokens.values() if token and wanted in {None, token})
            token = max(known, key=known.__getitem__, default=None)
            has_it = [token is not None and tokens.get(seat) == token for seat in ballot.seats]
            answered = [vote if isinstance(vote, Vote) else None for vote in votes]
            return token, agreement(
                [Vote.YES if has else v for has, v in zip(has_it, answered, strict=True)]
            )

        votes = yield from self._ask_each(
            ballot, look, lambda some: verdict(some)[1] is not None, 0
        )
        token, held = verdict(votes)
        if held is None:
            raise self.no_quorum(votes, ballot, "whether it is held is not known")
        return token if held else None

    def _ask_each(
        self,
        ballot: Ballot,
        question: Callable[[Seat], Core[Vote]],
        is_enough: Callable[[Votes], bool],
        lease_ms: int,
    ) -> Core[list[Vote | None]]:
        def recorded(seat: Seat) -> Core[Vote]:
            """Note what a server says also if that comes late."""
            vote = Vote.SILENT
            try:
                vote = yield from question(seat)
            finally:
                seat.vote = vote
            return vote

        seconds = self._options.server_timeout
        answers = yield FanOut(
            [recorded(seat) for seat in ballot.seats],
            [seat.line for seat in ballot.seats],
            self._clock() + seconds,
            is_enough,
            max(seconds, lease_ms / 1000),
        )
        for seat, answer in zip(ballot.seats, answers, strict=True):
            if isinstance(answer, Exception):
                seat.error = answer.cause if isinstance(answer, ConnectionLost) else answer
        return [answer if isinstance(answer, Vote) else None for answer in answers]

    def no_quorum(self, votes: Votes, ballot: Ballot, then: str) -> QuorumError:
        """Return the error that says who did not answer, and what follows."""
        reasons = []
        for server, (vote, seat) in enumerate(zip(votes, ballot.seats, strict=True)):
            if vote is Vote.ABSTAINS:
                left = max(0.0, seat.counts_from - self._clock())
                reasons.append(
                    f"clients[{server}]: restarted, it has no vote for {left:.0f} s more"
                )
            elif vote is None or vote is Vote.SILENT:
                reasons.append(f"clients[{server}]: {seat.error or 'no answer in time'}")
        return QuorumError(
            f"lock {self._name!r}: {len(votes) - len(reasons)} of {len(votes)} servers answered "
            f"within {self._options.server_timeout:g} s, {majority_of(votes)} are needed; {then}"
            + (f" ({'; '.join(reasons)})" if reasons else "")
        )


class MajorityAttempt(Attempt):
    """One attempt to get the lock: polls, with a pause of random length between two.

    There is no queue across servers; the pauses keep two who ask at once from sharing the
    votes between them again and again.
    """

    def __init__(
        self,
        steps: MajoritySteps,
        request: AcquireRequest,
        until: float | None,
        clock: Callable[[], float],
        pauses: tuple[float, float],
    ) -> None:
        super().__init__(steps, request, until, clock)
        self._majority = steps
        self._pauses = pauses

    def run(self) -> Core[Obtained | None]:
        """Poll until a majority has given the lock for long enough; None: others had it.

        Then nothing is left on any server that answers. QuorumError if no majority gave a vote
        when time was up, or, without a limit, for longer than the lease.
        """
        self.begun = True
        steps, lease_ms = self._majority, self.request.lease_ms
        outage_since = self._clock()
        while True:
            sent = self._clock()
            self.request = self.request._replace(token=TOKENS.new())
            ballot = self.ballot = steps.new_ballot(self.request.token)
            votes = yield from steps.ask_for(ballot, self.request)
            deadline, is_granted = deadline_of(sent, lease_ms), agreement(votes) is True
            if is_granted and self._clock() < deadline and not ballot.same_server():
                return Obtained(0, False, deadline)
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
            yield Pause(max(0.0, min(random.uniform(*self._pauses), self._until - now)))

    def leave_behind(self) -> Core[None]:
        """Give everything back; what is late goes on in the background."""
        return self.leave()

    def leave(self) -> Core[None]:
        if self.ballot is not None:
            yield from self._majority.release_all(self.ballot, wait_for_all=True)


class RedlockSession(LockSession):
    """One lock object over several servers."""

    options: RedlockOptions
    steps: MajoritySteps

    def attach(self, runtime: AnyRuntime, watcher: Watchdog | AsyncWatchdog) -> None:
        super().attach(runtime, watcher)
        each = [LockSteps(self.keys, missing_of(member)) for member in runtime.members]
        self.steps = MajoritySteps(self.name, each, self.options, boot_clock)

    def _attempt(self, request: AcquireRequest, until: float | None) -> Attempt:
        return MajorityAttempt(self.steps, request, until, boot_clock, self.options.pauses)

    def _new_hold(self, attempt: Attempt, got: Obtained, now: float) -> Hold:
        hold = super()._new_hold(attempt, got, now)
        hold.ballot = attempt.ballot
        return hold

    def _lease_to_extend_to(self, hold: Hold, ttl: float | None, *, add: bool) -> int:
        lease_ms = super()._lease_to_extend_to(hold, ttl, add=add)
        longest = self.options.longest_ttl
        if longest and ttl is not None and lease_ms > milliseconds(longest):
            raise ConfigurationError(f"ttl must be at most longest_ttl = {longest:g}, not {ttl!r}")
        return lease_ms

    def renewal_of(self, hold: Hold, lease_ms: int) -> Any:
        return hold.ballot, super().renewal_of(hold, lease_ms), lease_ms

    def renew_all(self, renewals: Sequence[Any]) -> Core[Sequence[bool | Exception]]:
        """Renew one hold, as each is asked of every server."""
        [renewal] = renewals
        return [(yield from self.steps.renew(*renewal))]
