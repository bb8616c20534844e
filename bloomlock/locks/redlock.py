"""The algorithm of a lock over several independent servers: all are asked at once.

Two majorities of the same servers have one in common, and no server gives its lock to two. So the
lock is held from when a majority has said yes until the first lease among those could be over,
counted from before the servers were asked. It is lost at once when the servers that deny the
token leave no majority that can have it.

A server that was restarted may have forgotten what it granted. Until everything that it can have
granted is over, by the longest lease that any client asks for, it has no vote.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.commands import encode_command
from bloomlock.effects import AnyRuntime, ConnectionLost, Core, FanOut, Pause
from bloomlock.errors import ConfigurationError, QuorumError
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.steps import ACQUIRE, LockSteps, Renewal, renew_all
from bloomlock.locks.protocol.values import Busy, ReleaseRequest
from bloomlock.locks.protocol.waiting import ENDLESS, Attempt, Obtained, deadline_of
from bloomlock.runtime.clock import boot_clock

from .options import LONGEST_TTL, LockOptions, SharedParameters, check_seconds, milliseconds
from .session import TOKENS, LockSession, missing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.locks.protocol.values import AcquireRequest

    from .async_watchdog import AsyncWatchdog
    from .hold import Hold
    from .watchdog import Watchdog

INFO = encode_command("INFO", "server")
_UPTIME = re.compile(rb"^uptime_in_seconds:(\d+)", re.MULTILINE)
_RUN = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
UPTIME_STEP = 1.0
"""A server reports its uptime in whole seconds, which may be almost one too many."""
SHORTEST_SERVER_TIMEOUT, LONGEST_SERVER_TIMEOUT = 0.05, 1.0
SERVER_SHARE = 10
"""A server is waited for a tenth of the lease, so that most of it is left."""
SHORTEST_RETRY, LONGEST_RETRY = 0.1, 1.0
LINGER_SECONDS = 10.0
"""How long a release is repeated in the background at a server that does not answer."""
PAUSES = (0.05, 0.25)
SHORTEST_PAUSE = 0.001
NO_FENCE = 0
GIVEN_BACK = "what was taken was given back"


class RedlockParameters(SharedParameters, total=False):
    server_timeout: float | None
    longest_ttl: float | None
    pauses: tuple[float, float]


class Limits(NamedTuple):
    """The parameters that only a lock on several servers has; see Redlock."""

    server_timeout: float
    longest_ttl: float
    pauses: tuple[float, float]

    @classmethod
    def checked(
        cls,
        ttl: float,
        server_timeout: float | None = None,
        longest_ttl: float | None = None,
        pauses: tuple[float, float] = PAUSES,
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
        return cls(float(server_timeout), float(longest_ttl), (shortest, longest))


class Vote(Enum):
    """What came of asking one server.

    Attributes:
        YES: It has the token.
        NO: It has not.
        ABSTAINS: It has it, but was restarted too lately for that to count.
        SILENT: It is not known.
    """

    YES = "yes"
    NO = "no"
    ABSTAINS = "abstains"
    SILENT = "silent"


def majority_of(servers: int) -> int:
    """Return how many of the configured servers are a majority, whether they answer or not.

    >>> [majority_of(servers) for servers in (1, 2, 3, 4, 5)]
    [1, 2, 2, 3, 3]
    """
    return servers // 2 + 1


def default_server_timeout(ttl: float) -> float:
    """Return how many seconds one server is waited for.

    >>> [default_server_timeout(ttl) for ttl in (0.1, 5.0, 30.0)]
    [0.05, 0.5, 1.0]
    """
    return max(SHORTEST_SERVER_TIMEOUT, min(LONGEST_SERVER_TIMEOUT, ttl / SERVER_SHARE))


def seconds_without_vote(uptime: int | None, longest_ttl: float) -> float:
    """Return for how long a server must still abstain; 0.0: its vote counts.

    Args:
        uptime: Whole seconds for which it has been up, None if that is not known.
        longest_ttl: The longest lease in seconds that any client asks these servers for; 0: they
            forget nothing in a restart.

    >>> [seconds_without_vote(uptime, 30.0) for uptime in (0, 30, 31)]
    [31.0, 1.0, 0.0]
    """
    if not longest_ttl:
        return 0.0
    return ENDLESS if uptime is None else max(0.0, longest_ttl - (uptime - UPTIME_STEP))


def voters(votes: Sequence[Vote | None]) -> int:
    return sum(vote in {Vote.YES, Vote.NO} for vote in votes)


def has_majority(votes: Sequence[Vote | None]) -> bool:
    return votes.count(Vote.YES) >= majority_of(len(votes))


def is_decided(votes: Sequence[Vote | None]) -> bool:
    """Return whether votes that are still out (None) are not worth waiting for.

    They could change neither whether there is a majority nor whether one was reached at all.
    """
    majority, out = majority_of(len(votes)), votes.count(None)
    if has_majority(votes) or not out:
        return True
    return voters(votes) >= majority and votes.count(Vote.YES) + out < majority


def agreement(yes: int, silent: int, servers: int) -> bool | None:
    """Return whether a majority says yes; None: that depends on the silent servers."""
    if yes >= majority_of(servers):
        return True
    return None if yes + silent >= majority_of(servers) else False


class Ballot:
    """What is known of one token at each server.

    A fresh token for each try: a release of an earlier one that comes late takes nothing away.

    Attributes:
        token: Of one try of one client.
        there: Whether the token may be on the server. False before it was asked, too.
        counts_from: When the server's vote begins to count: later if it was restarted lately.
        votes: What the server said last, None before that.
        errors: Why it said nothing.
        runs: Which run of a server program said so.
        closed: Whether the token is being given back, so that no server is to be asked for it.
        lines: What the runtime keeps the questions to each server in order by.
    """

    def __init__(self, token: bytes, servers: int) -> None:
        self.token = token
        self.there = [False] * servers
        self.counts_from = [-ENDLESS] * servers
        self.votes: list[Vote | None] = [None] * servers
        self.errors: list[Exception | None] = [None] * servers
        self.runs: list[bytes | None] = [None] * servers
        self.closed = False
        self.lines: list[list[Any]] = [[None] for _ in range(servers)]

    def say_yes(self, server: int, sent: float) -> Vote:
        """Note that the server gave the token a lease that was asked for at `sent`."""
        self.there[server] = True
        return Vote.ABSTAINS if sent < self.counts_from[server] else Vote.YES

    def say_no(self, server: int) -> Vote:
        self.there[server] = False
        return Vote.NO

    def same_run(self) -> tuple[int, int] | None:
        """Return two servers that are in truth one, if there are any."""
        seen: dict[bytes, int] = {}
        for server, run in enumerate(self.runs):
            if run is not None and seen.setdefault(run, server) != server:
                return seen[run], server
        return None


class MajoritySteps(LockSteps):
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
        self._each = [LockSteps(keys, lacks) for lacks in missing]

    def new_ballot(self, token: bytes = b"") -> Ballot:
        return Ballot(token, len(self._each))

    def ask_for(self, ballot: Ballot, request: AcquireRequest) -> Core[list[Vote | None]]:
        """Ask every server for the lock, until the outcome is certain or time is up."""
        until = self._clock() + self._limits.server_timeout

        def question(server: int) -> Core[Vote]:
            return self._ask_for(ballot, server, request, until)

        return self._ask_each(ballot, question, is_decided, request.lease_ms)

    def _ask_for(
        self, ballot: Ballot, server: int, request: AcquireRequest, until: float
    ) -> Core[Vote]:
        # A thread may get its turn when it is too late to ask.
        if ballot.closed or self._clock() >= until:
            return Vote.SILENT
        ballot.there[server] = True
        # Its age is asked after the lock was taken, on the same connection, so that no restart
        # hides in between. A server that does not tell it may have given the lock all the same.
        longest_ttl = self._limits.longest_ttl
        try:
            answer, info = yield from ACQUIRE.run(
                self.keys, request, *((INFO,) if longest_ttl else ())
            )
        except ConnectionLost as lost:
            ballot.there[server] = lost.sent
            raise
        uptime = None
        if longest_ttl:
            found, run = _UPTIME.search(info), _RUN.search(info)
            uptime = int(found[1]) if found else None
            ballot.runs[server] = run[1] if run else None
        if isinstance(answer, Busy):
            return ballot.say_no(server)
        now = self._clock()
        if seconds := seconds_without_vote(uptime, longest_ttl):
            ballot.counts_from[server] = now + seconds
        return ballot.say_yes(server, now)

    def renew(self, ballot: Ballot, renewal: Renewal) -> Core[bool | Exception]:
        """Renew everywhere; True: on a majority, False: none can have it, else not known."""
        until = self._clock() + self._limits.server_timeout

        def question(server: int) -> Core[Vote]:
            # A renewal extends what is there; it never takes the lock anew.
            if not ballot.there[server]:
                return Vote.NO
            sent = self._clock()
            if ballot.closed or sent >= until:
                return Vote.SILENT
            [held] = yield from renew_all([renewal])
            if isinstance(held, Exception):
                raise held
            return ballot.say_yes(server, sent) if held else ballot.say_no(server)

        votes = yield from self._ask_each(ballot, question, is_decided, renewal.lease_ms)
        # A server that has the token, but no vote yet, may count next time.
        held = _majority_of_votes(votes, Vote.SILENT, Vote.ABSTAINS)
        return self.no_quorum(votes, ballot, "it was not renewed") if held is None else held

    def give_back(self, hold: Hold) -> Core[bool | None]:
        """Release everywhere; True: a majority had it, False: none can have had it.

        ConnectionLost if that is not known.
        """
        ballot: Ballot = hold.ballot
        votes = yield from self.release_all(ballot)
        held = _majority_of_votes(votes, Vote.SILENT)
        if held is None:
            error = self.no_quorum(votes, ballot, "its lease ends by itself elsewhere")
            raise ConnectionLost(error, sent=True, replies=[])
        return held

    def release_all(self, ballot: Ballot, *, wait_for_all: bool = False) -> Core[list[Vote | None]]:
        """Release everywhere.

        Those are waited for that are known to have the token. A server that has not answered
        yet is asked as soon as it does.
        """
        ballot.closed = True
        has_it = {Vote.YES, Vote.ABSTAINS}
        waited = [s for s, vote in enumerate(ballot.votes) if wait_for_all or vote in has_it]
        return self._ask_each(
            ballot,
            lambda server: self._release(ballot, server),
            lambda answers: all(answers[server] is not None for server in waited),
            round(LINGER_SECONDS * 1000),
        )

    def _release(self, ballot: Ballot, server: int) -> Core[Vote]:
        """Give back at one server, again and again if it is there but does not answer."""
        until, pause = self._clock() + LINGER_SECONDS, SHORTEST_RETRY
        while ballot.there[server]:
            try:
                request = ReleaseRequest(ballot.token)
                held = yield from self._each[server].release(request, waiters=False)
            except ConnectionLost as lost:
                is_slow = isinstance(lost.cause, RedisTimeoutError)
                if not is_slow or self._clock() + pause > until:
                    raise
            else:
                counts = self._clock() >= ballot.counts_from[server]
                ballot.say_no(server)
                if held is False:
                    return Vote.NO
                return Vote.YES if counts else Vote.ABSTAINS
            yield Pause(pause)
            pause = min(2 * pause, LONGEST_RETRY)
        return Vote.NO

    def is_held(self, token: bytes, group: bytes) -> Core[bool]:  # noqa: ARG002 - there are no groups
        """Return whether a majority has the token; QuorumError if that is not known."""
        return (yield from self._token_of_majority(token)) is not None

    def value(self) -> Core[bytes | None]:
        """Return the token that a majority has, None if none has; QuorumError if not known."""
        return self._token_of_majority(None)

    def _token_of_majority(self, wanted: bytes | None) -> Core[bytes | None]:
        ballot = self.new_ballot()
        tokens: list[bytes | None] = [None] * len(self._each)

        def look(server: int) -> Core[Vote]:
            token = tokens[server] = yield from self._each[server].value()
            return Vote.YES if token else Vote.NO

        def verdict(votes: Sequence[Any]) -> tuple[bytes | None, bool | None]:
            known = Counter(token for token in tokens if token and wanted in {None, token})
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
        question: Callable[[int], Core[Vote]],
        is_enough: Callable[[Sequence[Any]], bool],
        lease_ms: int,
    ) -> Core[list[Vote | None]]:
        seconds = self._limits.server_timeout
        cores = [_recorded(question(s), ballot, s) for s in range(len(self._each))]
        background_s = max(seconds, lease_ms / 1000)
        fan_out = FanOut(cores, ballot.lines, self._clock() + seconds, is_enough, background_s)
        votes: list[Vote | None] = []
        for server, answer in enumerate((yield fan_out)):
            if isinstance(answer, Exception):
                error = answer.cause if isinstance(answer, ConnectionLost) else answer
                ballot.errors[server] = error
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
            ballot = self.ballot = self._majority.new_ballot(self.request.token)
            votes = yield from self._majority.ask_for(ballot, self.request)
            deadline = deadline_of(sent, self.request.lease_ms)
            if has_majority(votes) and self._clock() < deadline and not ballot.same_run():
                return Obtained(NO_FENCE, False, deadline)
            yield from self._majority.release_all(ballot)
            self.ballot = None
            if (same := ballot.same_run()) is not None:
                raise ConfigurationError(
                    f"clients must be independent servers, but clients[{same[0]}] and "
                    f"clients[{same[1]}] are the same one"
                )
            now = self._clock()
            majority = majority_of(len(votes))
            is_answered = voters(votes) >= majority and not has_majority(votes)
            # Servers that were restarted are up, though they have no vote yet.
            if is_answered or voters(votes) + votes.count(Vote.ABSTAINS) >= majority:
                outage_since = now
            is_over = now >= self._until
            if is_over and is_answered:
                return None
            longest_s = self.request.lease_ms / 1000 if self._until == ENDLESS else ENDLESS
            if is_over or now - outage_since > longest_s:
                then = GIVEN_BACK
                if has_majority(votes):
                    then = f"their answers came when nothing was left of the lease, and {then}"
                raise self._majority.no_quorum(votes, ballot, then)
            yield Pause(max(0.0, min(self._pause(), self._until - now)))

    def leave_behind(self) -> Core[None]:
        """Give everything back; what is late goes on in the background."""
        return self.leave()

    def leave(self) -> Core[None]:
        """Give back whatever the last poll took; never raises.

        What a server cannot be asked to give back ends with its lease.
        """
        if self.ballot is not None:
            yield from self._majority.release_all(self.ballot, wait_for_all=True)


class RedlockSession(LockSession):
    """One lock object over several servers.

    Args:
        name: What users call it.
        ttl: See Redlock.
        given: The other options.
        has_ended: Returns whether a thread or task has ended.
    """

    steps: MajoritySteps

    def __init__(
        self,
        name: str,
        ttl: float | None,
        given: RedlockParameters,
        has_ended: Callable[[Any], bool],
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if unknown := given.keys() - RedlockParameters.__annotations__.keys():
            raise TypeError(f"a Redlock has no parameter {min(unknown)!r}")
        shared: dict[str, Any] = dict(given)
        of_several = {key: shared.pop(key) for key in Limits._fields if key in given}
        options = LockOptions(ttl, **shared)
        super().__init__(name, LockKeys.of(name, options.prefix), options, has_ended)
        self.limits = Limits.checked(options.lease_s, **of_several)
        self._jitter = jitter

    def attach(self, runtime: AnyRuntime, watcher: Watchdog | AsyncWatchdog) -> None:
        super().attach(runtime, watcher)
        missing = [missing_of(each) for each in runtime.members]
        self.steps = MajoritySteps(self.name, self.keys, missing, self.limits, boot_clock)

    def begin(self, owner: object, seconds: float | None, token: bytes | None) -> Attempt | bool:
        """Prepare to acquire; see LockSession."""
        if token is not None:
            raise ConfigurationError(
                f"token must be None for a Redlock, not {token.decode()!r:.80}"
            )
        return super().begin(owner, seconds, token)

    def _attempt(self, request: AcquireRequest, until: float | None) -> Attempt:
        pauses = self.limits.pauses
        return MajorityAttempt(
            self.steps, request, until, boot_clock, lambda: self._jitter(*pauses)
        )

    def _hold(self, attempt: Attempt, got: Obtained, now: float) -> Hold:
        hold = super()._hold(attempt, got, now)
        hold.ballot = attempt.ballot
        return hold

    def _lease_to_extend_to(self, hold: Hold, ttl: float | None, *, add: bool) -> int:
        lease_ms = super()._lease_to_extend_to(hold, ttl, add=add)
        longest = self.limits.longest_ttl
        if longest and ttl is not None and lease_ms > milliseconds(longest):
            raise ConfigurationError(f"ttl must be at most longest_ttl = {longest:g}, not {ttl!r}")
        return lease_ms

    def renewal_of(self, hold: Hold, lease_ms: int) -> Any:
        return hold.ballot, super().renewal_of(hold, lease_ms)

    def renew_all(self, renewals: Sequence[Any]) -> Core[list[bool | Exception]]:
        """Renew one hold, as each is asked of every server."""
        [(ballot, renewal)] = renewals
        return [(yield from self.steps.renew(ballot, renewal))]
