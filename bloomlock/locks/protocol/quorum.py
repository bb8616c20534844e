"""What a lock on several independent servers follows from: votes and majorities. Pure.

Two majorities of the same servers have one in common, and no server gives its lock to two. So the
lock is held from when a majority has said yes until the first lease among those could be over,
counted from before the servers were asked. It is lost at once when the servers that deny the
token leave no majority that can have it.

A server that was restarted may have forgotten what it granted. Until everything that it can have
granted is over it has no vote.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

NEVER = float("-inf")
UPTIME_STEP = 1.0
"""A server reports its uptime in whole seconds, which may be almost one too many."""
SHORTEST_SERVER_TIMEOUT, LONGEST_SERVER_TIMEOUT = 0.05, 1.0
SERVER_SHARE = 10
"""A server is waited for a tenth of the lease, so that most of it is left."""


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
    if uptime is None:
        return float("inf")
    return max(0.0, longest_ttl - (uptime - UPTIME_STEP))


def voters(votes: Sequence[Vote | None]) -> int:
    """Return how many servers gave a vote that counts."""
    return sum(vote in {Vote.YES, Vote.NO} for vote in votes)


def has_majority(votes: Sequence[Vote | None]) -> bool:
    """Return whether a majority of all servers says yes."""
    return votes.count(Vote.YES) >= majority_of(len(votes))


def is_decided(votes: Sequence[Vote | None], slow: Sequence[bool] = ()) -> bool:
    """Return whether votes that are still out (None) are not worth waiting for.

    They could change neither whether there is a majority nor whether one was reached at all. Or
    another client has votes too, and only servers are out that were silent the last time: to hold
    votes meanwhile would keep every client from a majority.

    Args:
        votes: By server.
        slow: Which servers were silent the last time.
    """
    majority, out = majority_of(len(votes)), votes.count(None)
    if has_majority(votes) or not out:
        return True
    if voters(votes) < majority:
        return False
    if votes.count(Vote.YES) + out < majority:
        return True
    rest = [server for server, vote in enumerate(votes) if vote is None]
    return Vote.NO in votes and bool(slow) and all(slow[server] for server in rest)


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
        obtained: When it got a majority.
        closed: Whether the token is being given back, so that no server is to be asked for it.
        lines: What the runtime keeps the questions to each server in order by.
    """

    def __init__(self, token: bytes, servers: int) -> None:
        self.token = token
        self.there = [False] * servers
        self.counts_from = [NEVER] * servers
        self.votes: list[Vote | None] = [None] * servers
        self.errors: list[Exception | None] = [None] * servers
        self.runs: list[bytes | None] = [None] * servers
        self.obtained = NEVER
        self.closed = False
        self.lines: list[list[Any]] = [[None] for _ in range(servers)]

    def say_yes(self, server: int, sent: float) -> Vote:
        """Note that the server gave the token a lease that was asked for at `sent`."""
        self.there[server] = True
        return Vote.ABSTAINS if sent < self.counts_from[server] else Vote.YES

    def say_no(self, server: int) -> Vote:
        """Note that the server has not got the token."""
        self.there[server] = False
        return Vote.NO

    def same_run(self) -> tuple[int, int] | None:
        """Return two servers that are in truth one, if there are any."""
        seen: dict[bytes, int] = {}
        for server, run in enumerate(self.runs):
            if run is not None and seen.setdefault(run, server) != server:
                return seen[run], server
        return None
