"""The algorithm of a lock on several servers; session.py has what it shares with other locks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from bloomlock.effects import AnyRuntime, Core, Pause
from bloomlock.errors import ConfigurationError
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.majority import Limits, MajoritySteps
from bloomlock.locks.protocol.quorum import (
    Ballot,
    Vote,
    default_server_timeout,
    has_majority,
    majority_of,
    voters,
)
from bloomlock.locks.protocol.waiting import Attempt, Obtained, deadline_of
from bloomlock.runtime.clock import boot_clock

from .options import LONGEST_TTL, LockOptions, RedlockParameters, check_seconds, milliseconds
from .session import TOKENS, LockSession, Watcher, missing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from bloomlock.locks.protocol.model import AcquireRequest
    from bloomlock.locks.protocol.steps import Renewal

    from .hold import Hold

NO_FENCE = 0
GIVEN_BACK = "what was taken was given back"
TOO_LATE = f"when nothing was left of the lease, and {GIVEN_BACK}"


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
        pause: Callable[[], float],
    ) -> None:
        super().__init__(steps, request, until, clock)
        self._majority = steps
        self._pause = pause
        self._ballot: Ballot | None = None

    def run(self) -> Core[Obtained | None]:
        """Poll until a majority has given the lock for long enough; None: others had it.

        Then nothing is left on any server that answers. QuorumError if no majority gave a vote
        when time was up, or, without a limit, for longer than the lease.
        """
        self.begun = True
        outage_since = self._clock()
        while True:
            sent = self._clock()
            self.request = self.request._replace(token=TOKENS.new())
            ballot = self._ballot = self._majority.new_ballot(self.request.token)
            votes = yield from self._majority.ask_for(ballot, self.request)
            deadline = deadline_of(sent, self.request.lease_ms)
            if has_majority(votes) and self._clock() < deadline and not ballot.same_run():
                ballot.obtained = self._clock()
                self._majority.ballots[ballot.token] = ballot
                return Obtained(NO_FENCE, False, deadline)
            yield from self._majority.give_back(ballot)
            self._ballot = None
            _refuse_same_server(ballot)
            now = self._clock()
            is_answered = voters(votes) >= majority_of(len(votes)) and not has_majority(votes)
            if is_answered or _are_up(votes):
                outage_since = now
            is_over = now >= self._until
            if is_over and is_answered:
                return None
            endless = self._until == float("inf")
            longest_s = self.request.lease_ms / 1000 if endless else float("inf")
            if is_over or now - outage_since > longest_s:
                then = f"their answers came {TOO_LATE}" if has_majority(votes) else GIVEN_BACK
                raise self._majority.no_quorum(votes, ballot, then)
            yield Pause(max(0.0, min(self._pause(), self._until - now)))

    def leave_behind(self) -> Core[None]:
        """Give everything back; what is late goes on in the background."""
        yield from self.leave()

    def leave(self) -> Core[None]:
        """Give back whatever the last poll took; never raises.

        What a server cannot be asked to give back ends with its lease.
        """
        if self._ballot is not None:
            self._majority.ballots.pop(self._ballot.token, None)
            yield from self._majority.give_back(self._ballot, wait_for_all=True)


def _refuse_same_server(ballot: Ballot) -> None:
    if (same := ballot.same_run()) is not None:
        raise ConfigurationError(
            f"clients must be independent servers, but clients[{same[0]}] and clients[{same[1]}] "
            f"are the same one"
        )


def _are_up(votes: Sequence[Vote | None]) -> bool:
    """Return whether a majority answers, even if those that were restarted have no vote yet."""
    return voters(votes) + votes.count(Vote.ABSTAINS) >= majority_of(len(votes))


class RedlockSession(LockSession):
    """One lock object over several servers."""

    steps: MajoritySteps

    def __init__(
        self,
        name: str,
        keys: LockKeys,
        options: LockOptions,
        limits: Limits,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        super().__init__(name, keys, options)
        self.limits = limits
        self._jitter = jitter

    def attach(self, runtime: AnyRuntime, watcher: Watcher) -> None:
        """Set what asks the servers, and what renews."""
        self._runtime = runtime
        self._watcher = watcher
        missing = [missing_of(each) for each in runtime.members]
        self.steps = MajoritySteps(self.name, self.keys, missing, self.limits, boot_clock)

    def _lease_to_extend_to(self, hold: Hold, ttl: float | None, *, add: bool) -> int:
        """Return a lease in milliseconds, that a restarted server abstains for."""
        lease_ms = super()._lease_to_extend_to(hold, ttl, add=add)
        longest = self.limits.longest_ttl
        if longest and ttl is not None and lease_ms > milliseconds(longest):
            raise ConfigurationError(f"ttl must be at most longest_ttl = {longest:g}, not {ttl!r}")
        return lease_ms

    def renew_all(self, renewals: Sequence[Renewal]) -> Core[list[bool | Exception]]:
        """Renew one hold, as each is asked of every server."""
        [renewal] = renewals
        return [(yield from self.steps.renew(renewal))]

    def _attempt(self, request: AcquireRequest, until: float | None) -> Attempt:
        self._forget_ballots()
        pauses = self.limits.pauses
        return MajorityAttempt(
            self.steps, request, until, boot_clock, lambda: self._jitter(*pauses)
        )

    def _forget_ballots(self) -> None:
        """Forget those of holds that were lost and never given back."""
        now, ballots, held = boot_clock(), self.steps.ballots, self.holdings.tokens()
        for token in [token for token in list(ballots) if token not in held]:
            # One that is not held yet was obtained this very moment by another thread.
            if now > ballots[token].obtained + 2 * self.options.lease_s:
                ballots.pop(token, None)


PAUSES = (0.05, 0.25)
SHORTEST_PAUSE = 0.001


def make_session(
    name: str, ttl: float | None, **parameters: Unpack[RedlockParameters]
) -> RedlockSession:
    """Return the session of a lock with these parameters; see Redlock."""
    known = RedlockParameters.__annotations__.keys()
    if unknown := next((key for key in parameters if key not in known), None):
        raise TypeError(f"a Redlock has no parameter {unknown!r}")
    shared: dict[str, Any] = dict(parameters)
    server_timeout = shared.pop("server_timeout", None)
    longest_ttl = shared.pop("longest_ttl", None)
    pauses = shared.pop("pauses", PAUSES)
    options = LockOptions(ttl=ttl, **shared)
    return RedlockSession(
        name,
        LockKeys.of(name, options.prefix),
        options,
        _check_limits(options.lease_s, server_timeout, longest_ttl, pauses),
    )


def _check_limits(
    ttl: float,
    server_timeout: float | None,
    longest_ttl: float | None,
    pauses: tuple[float, float],
) -> Limits:
    if server_timeout is None:
        server_timeout = min(default_server_timeout(ttl), ttl)
    check_seconds("server_timeout", server_timeout, least=SHORTEST_PAUSE, most=ttl)
    if longest_ttl is None:
        longest_ttl = ttl
    check_seconds("longest_ttl", longest_ttl, least=0.0, most=LONGEST_TTL)
    if 0 < longest_ttl < ttl:
        raise ConfigurationError(
            f"longest_ttl must be 0 or at least the ttl of {ttl:g} seconds, not {longest_ttl!r}"
        )
    if not isinstance(pauses, (tuple, list)) or len(pauses) != 2:  # noqa: PLR2004 - from, to
        raise ConfigurationError(f"pauses must be two numbers of seconds, not {pauses!r:.80}")
    shortest = check_seconds("pauses[0]", pauses[0], least=SHORTEST_PAUSE)
    longest = check_seconds("pauses[1]", pauses[1], least=shortest)
    return Limits(float(server_timeout), float(longest_ttl), (shortest, longest))
