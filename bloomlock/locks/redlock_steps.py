"""The steps of a lock on several servers: each server is asked at once, a majority decides."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.effects import ConnectionLost, Core
from bloomlock.errors import QuorumError
from bloomlock.locks.protocol.quorum import Ballot, Vote, agreement, is_decided, majority_of
from bloomlock.locks.protocol.steps import LockSteps

from .redlock_asking import AskEach
from .redlock_server import LINGER_SECONDS, VotingServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import LockKeys
    from bloomlock.locks.protocol.model import AcquireRequest, ReleaseRequest
    from bloomlock.locks.protocol.steps import Renewal


class Limits(NamedTuple):
    """The parameters that only a lock on several servers has; see Redlock."""

    server_timeout: float
    longest_ttl: float
    pauses: tuple[float, float]


class MajoritySteps(LockSteps):
    """The steps of LockSteps on several servers.

    Args:
        name: What users call the lock.
        keys: Its keys, the same on each server.
        missing: What each server is known to lack.
        limits: The lock's parameters.
        clock: Seconds, counting in suspend.
    """

    def __init__(
        self,
        name: str,
        keys: LockKeys,
        missing: Sequence[set[str]],
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        """Keep the parameters."""
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
        """Return the ballot of a token that nobody was asked for yet."""
        return Ballot(token, len(self._servers))

    def ask_for(self, ballot: Ballot, asking: AcquireRequest) -> Core[list[Vote | None]]:
        """Ask every server for the lock, until the outcome is certain or time is up."""
        until = self._clock() + self._limits.server_timeout
        votes = yield from self._ask_each(
            ballot,
            lambda server: server.vote(ballot, asking, until),
            lambda votes: is_decided(votes, [server.slow for server in self._servers]),
            asking.lease_ms,
        )
        if self._clock() >= until:
            for server, vote in zip(self._servers, votes, strict=True):
                server.slow = vote is None
        return votes

    def give_back(self, ballot: Ballot, *, wait_for_all: bool = False) -> Core[list[Vote | None]]:
        """Release everywhere.

        Those are waited for that are known to have the token. A server that has not answered
        yet is told as soon as it does.

        Args:
            ballot: What to give back.
            wait_for_all: Wait also for the others, as long as one server is waited for.
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

    def release(self, leaving: ReleaseRequest, *, waiters: bool) -> Core[bool | None]:  # noqa: ARG002 - nobody queues across servers
        """Release everywhere; True: a majority had it, False: none can have had it.

        Raises:
            ConnectionLost: If that is not known.
        """
        ballot = self.ballots.pop(leaving.token, None)
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
        """Tell whether a majority has the token; QuorumError if that is not known."""
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
        enough: Callable[[Sequence[Any]], bool],
        lease_ms: int,
    ) -> Core[list[Vote | None]]:
        seconds = self._limits.server_timeout
        cores = [_recorded(question(server), ballot, server.index) for server in self._servers]
        patience = max(seconds, lease_ms / 1000)
        step: Any = AskEach(cores, ballot.lines, self._clock() + seconds, enough, patience)
        votes: list[Vote | None] = []
        for server, answer in enumerate((yield step)):
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
