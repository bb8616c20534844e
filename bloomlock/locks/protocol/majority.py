"""The steps of a lock on several servers: each server is asked at once, a majority decides."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.commands import encode_command
from bloomlock.delivery import run_way
from bloomlock.effects import ConnectionLost, Core, FanOut, Pause, Request
from bloomlock.errors import QuorumError

from .model import Busy, ReleaseRequest
from .quorum import Ballot, Vote, agreement, is_decided, majority_of, seconds_without_vote
from .steps import ACQUIRE, Call, LockSteps, Renewal, renew_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from bloomlock.keys import LockKeys

    from .model import AcquireRequest, Granted

    T = TypeVar("T")

INFO = encode_command("INFO", "server")
_UPTIME = re.compile(rb"^uptime_in_seconds:(\d+)", re.MULTILINE)
_RUN = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class Answer(NamedTuple):
    """What a server said.

    Attributes:
        answer: Whether it gave the lock.
        uptime: For how many seconds it has been up, None if it does not say.
        run: Which run of a server program it is, None if it does not say.
    """

    answer: Granted | Busy
    uptime: int | None
    run: bytes | None


def ask_with_age(keys: LockKeys, request: AcquireRequest, missing: set[str]) -> Core[Answer]:
    """Take the lock at one server and ask how long it has been up; one round trip.

    The age is asked after the lock was taken, and on the same connection, so a restart in between
    cannot hide. A server that answers with an error may have given the lock all the same.
    """
    call = Call(keys, request, INFO)
    answer, info = yield from run_way(ACQUIRE.ways, call, missing)
    return _read(answer, info)


def _read(answer: Granted | Busy, info: bytes) -> Answer:
    uptime, run = _UPTIME.search(info), _RUN.search(info)
    return Answer(answer, int(uptime[1]) if uptime else None, run[1] if run else None)


def note_sending(core: Core[T], note: Callable[[bool], None]) -> Core[T]:
    """Run a core; `note` is called for each request with whether any byte of it may have been sent.

    A server that is down is not waited for: the next poll tries it again.
    """
    step: Any
    failure: ConnectionLost | None = None
    try:
        step = next(core)
        while True:
            if failure is not None and isinstance(step, Pause) and step.seconds:
                raise failure
            failure = None
            try:
                replies = yield step
            except ConnectionLost as lost:
                note(lost.sent)
                step, failure = core.throw(lost), lost
            else:
                note(isinstance(step, Request))
                step = core.send(replies)
    except StopIteration as stop:
        result: T = stop.value
        return result


SHORTEST_RETRY, LONGEST_RETRY = 0.1, 1.0
LINGER_SECONDS = 10.0
"""How long a release is repeated in the background at a server that does not answer."""


class VotingServer:
    """One of several servers.

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
        self.index = index
        self.steps = LockSteps(keys, missing)
        self.slow = False
        self._missing = missing
        self._longest_ttl = longest_ttl
        self._clock = clock

    def vote(self, ballot: Ballot, request: AcquireRequest, until: float) -> Core[Vote]:
        """Ask for the lock, unless it is too late for that by now."""
        if ballot.closed or self._clock() >= until:
            return Vote.SILENT
        may_be_there = False

        def note(sent: bool) -> None:
            nonlocal may_be_there
            may_be_there = may_be_there or sent

        ballot.there[self.index] = True
        try:
            answer = yield from note_sending(self._take(request), note)
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

    def _take(self, request: AcquireRequest) -> Core[Answer]:
        if self._longest_ttl:
            return (yield from ask_with_age(self.steps.keys, request, self._missing))
        return Answer((yield from self.steps.acquire(request)), None, None)

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
            try:
                held = yield from self.steps.release(ReleaseRequest(ballot.token), waiters=False)
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


class Limits(NamedTuple):
    """The parameters that only a lock on several servers has; see Redlock."""

    server_timeout: float
    longest_ttl: float
    pauses: tuple[float, float]


class MajoritySteps(LockSteps):
    """The steps of LockSteps on several servers."""

    def __init__(
        self,
        name: str,
        keys: LockKeys,
        missing: Sequence[set[str]],
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(keys, missing[0])
        self._name = name
        self._limits = limits
        self._clock = clock
        self._servers = [
            VotingServer(index, keys, each, limits.longest_ttl, clock)
            for index, each in enumerate(missing)
        ]
        self.ballots: dict[bytes, Ballot] = {}

    def new_ballot(self, token: bytes = b"") -> Ballot:
        """Return the ballot of a token that no server was asked for yet."""
        return Ballot(token, len(self._servers))

    def ask_for(self, ballot: Ballot, request: AcquireRequest) -> Core[list[Vote | None]]:
        """Ask every server for the lock, until the outcome is certain or time is up."""
        until = self._clock() + self._limits.server_timeout
        votes = yield from self._ask_each(
            ballot,
            lambda server: server.vote(ballot, request, until),
            lambda votes: is_decided(votes, [server.slow for server in self._servers]),
            request.lease_ms,
        )
        if self._clock() >= until:
            for server, vote in zip(self._servers, votes, strict=True):
                server.slow = vote is None
        return votes

    def give_back(self, ballot: Ballot, *, wait_for_all: bool = False) -> Core[list[Vote | None]]:
        """Release everywhere.

        Those are waited for that are known to have the token. A server that has not answered
        yet is asked as soon as it does.
        """
        ballot.closed = True
        has_it = {Vote.YES, Vote.ABSTAINS}
        waited = [s for s, vote in enumerate(ballot.votes) if wait_for_all or vote in has_it]
        return (
            yield from self._ask_each(
                ballot,
                lambda server: server.leave(ballot),
                lambda answers: all(answers[server] is not None for server in waited),
                round(LINGER_SECONDS * 1000),
            )
        )

    def release(self, request: ReleaseRequest, *, waiters: bool) -> Core[bool | None]:  # noqa: ARG002 - there is no queue across servers
        """Release everywhere; True: a majority had it, False: none can have had it.

        ConnectionLost if that is not known.
        """
        ballot = self.ballots.pop(request.token, None)
        if ballot is None:
            return False
        votes = yield from self.give_back(ballot)
        held = _majority_of_votes(votes, Vote.SILENT)
        if held is None:
            error = self.no_quorum(votes, ballot, "its lease ends by itself elsewhere")
            raise ConnectionLost(error, sent=True, replies=[])
        return held

    def renew(self, renewal: Renewal) -> Core[bool | Exception]:
        """Renew everywhere; True: on a majority, False: none can have it, else not known."""
        ballot = self.ballots.get(renewal.token)
        if ballot is None:
            return False
        until = self._clock() + self._limits.server_timeout
        votes = yield from self._ask_each(
            ballot,
            lambda server: server.renew(ballot, renewal, until),
            is_decided,
            renewal.lease_ms,
        )
        # A server that has the token, but no vote yet, may count next time.
        held = _majority_of_votes(votes, Vote.SILENT, Vote.ABSTAINS)
        return self.no_quorum(votes, ballot, "it was not renewed") if held is None else held

    def is_held(self, token: bytes, group: bytes) -> Core[bool]:
        """Return whether a majority has the token; QuorumError if that is not known."""
        ballot = self.new_ballot(token)

        def look(server: VotingServer) -> Core[Vote]:
            held = yield from server.steps.is_held(token, group)
            return Vote.YES if held else Vote.NO

        votes = yield from self._ask_each(ballot, look, is_decided, 0)
        held = _majority_of_votes(votes, Vote.SILENT)
        if held is None:
            raise self.no_quorum(votes, ballot, "whether it is held is not known")
        return held

    def value(self) -> Core[bytes | None]:
        """Return the token that a majority has, None if none has; QuorumError if not known."""
        ballot = self.new_ballot()
        tokens: list[bytes | None] = [None] * len(self._servers)

        def look(server: VotingServer) -> Core[Vote]:
            token = tokens[server.index] = yield from server.steps.value()
            return Vote.YES if token else Vote.NO

        def verdict(votes: Sequence[Any]) -> tuple[bytes | None, bool | None]:
            known = Counter(token for token in tokens if token)
            token, count = known.most_common(1)[0] if known else (None, 0)
            silent = sum(not isinstance(vote, Vote) for vote in votes)
            return token, agreement(count, silent, len(votes))

        votes = yield from self._ask_each(
            ballot, look, lambda answers: verdict(answers)[1] is not None, 0
        )
        token, held = verdict(votes)
        if held is None:
            raise self.no_quorum(votes, ballot, "whether it is held is not known")
        return token if held else None

    def no_quorum(self, votes: Sequence[Vote | None], ballot: Ballot, then: str) -> QuorumError:
        """Return the error that says who did not answer, and what follows."""
        reasons = []
        for server, vote in enumerate(votes):
            if vote is Vote.ABSTAINS:
                left = ballot.counts_from[server] - self._clock()
                why = f"restarted, it has no vote for {max(0.0, left):.0f} s more"
            elif vote is None or vote is Vote.SILENT:
                why = str(ballot.errors[server] or "no answer in time")
            else:
                continue
            reasons.append(f"clients[{server}]: {why}")
        answered = len(votes) - len(reasons)
        return QuorumError(
            f"lock {self._name!r}: {answered} of {len(votes)} servers answered within "
            f"{self._limits.server_timeout:g} s, {majority_of(len(votes))} are needed; {then}"
            + (f" ({'; '.join(reasons)})" if reasons else "")
        )

    def _ask_each(
        self,
        ballot: Ballot,
        question: Callable[[VotingServer], Core[Vote]],
        is_enough: Callable[[Sequence[Any]], bool],
        lease_ms: int,
    ) -> Core[list[Vote | None]]:
        seconds = self._limits.server_timeout
        cores = [_recorded(question(server), ballot, server.index) for server in self._servers]
        background_s = max(seconds, lease_ms / 1000)
        fan_out = FanOut(cores, ballot.lines, self._clock() + seconds, is_enough, background_s)
        votes: list[Vote | None] = []
        for server, answer in enumerate((yield fan_out)):
            if isinstance(answer, Exception):
                ballot.errors[server] = (
                    answer.cause if isinstance(answer, ConnectionLost) else answer
                )
            votes.append(answer if isinstance(answer, Vote) else None)
        return votes


def _recorded(core: Core[Vote], ballot: Ballot, server: int) -> Core[Vote]:
    """Run what is asked of one server, and note what it said also if that comes late."""
    vote = Vote.SILENT
    try:
        vote = yield from core
    finally:
        ballot.votes[server] = vote
    return vote


def _majority_of_votes(votes: Sequence[Vote | None], *unknown: Vote) -> bool | None:
    silent = sum(vote is None or vote in unknown for vote in votes)
    return agreement(votes.count(Vote.YES), silent, len(votes))
