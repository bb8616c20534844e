"""Clients and servers in one process, with the time passed in: the pure part, driven."""

from __future__ import annotations

from dataclasses import dataclass

from bloomlock.locks.protocol.quorum import (
    Ballot,
    Vote,
    agreement,
    has_majority,
    seconds_without_vote,
)
from bloomlock.locks.protocol.waiting import deadline_of

TTL = 5.0
NEVER = float("-inf")


class TwoHoldersError(Exception):
    """Two clients rely on the lock at once."""


@dataclass
class Server:
    """What one server knows; its clock runs at `rate`."""

    rate: float
    started: float
    token: bytes | None = None
    until: float = NEVER

    def holder(self, now: float) -> bytes | None:
        return self.token if now < self.until else None

    def grant(self, now: float, token: bytes) -> None:
        self.token, self.until = token, now + TTL / self.rate

    def uptime(self, now: float) -> int:
        return int(now * self.rate) - int(self.started * self.rate)


@dataclass
class Client:
    """What one client believes."""

    ballot: Ballot | None = None
    deadline: float = NEVER


class World:
    """Some servers and three clients."""

    def __init__(self, size: int, *, longest_ttl: float, rates: list[float] | None = None) -> None:
        self.size = size
        self.longest_ttl = longest_ttl
        self.now = 1000.3
        self.servers = [Server(rate, self.now) for rate in (rates or [1.0] * size)[:size]]
        self.clients = [Client() for _ in range(3)]
        self._tokens = 0

    def check(self) -> None:
        holders = [client for client in self.clients if self.now < client.deadline]
        if len(holders) > 1:
            raise TwoHoldersError

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def restart(self, server: int) -> None:
        self.servers[server] = Server(self.servers[server].rate, self.now)

    def poll(self, number: int, reached: list[bool], spent: float = 0.0) -> bool:
        client = self.clients[number]
        if self.now < client.deadline:
            return False
        self._tokens += 1
        ballot = Ballot(b"%d" % self._tokens, self.size)
        sent = self.now
        votes: list[Vote | None] = []
        for index, server in enumerate(self.servers):
            self.now += spent / self.size
            votes.append(self._vote(ballot, index, server) if reached[index] else None)
        deadline = deadline_of(sent, round(TTL * 1000))
        if has_majority(votes) and self.now < deadline:
            client.ballot, client.deadline = ballot, deadline
            self.check()
            return True
        self._give_back(ballot, reached)
        return False

    def _vote(self, ballot: Ballot, index: int, server: Server) -> Vote:
        if server.holder(self.now) is not None:
            return ballot.say_no(index)
        server.grant(self.now, ballot.token)
        if seconds := seconds_without_vote(server.uptime(self.now), self.longest_ttl):
            ballot.counts_from[index] = self.now + seconds
        return ballot.say_yes(index, self.now)

    def renew(self, number: int, reached: list[bool]) -> None:
        client = self.clients[number]
        if client.ballot is None or self.now >= client.deadline:
            return
        votes: list[Vote | None] = []
        for index, server in enumerate(self.servers):
            if not reached[index]:
                votes.append(None)
            elif server.holder(self.now) == client.ballot.token:
                server.grant(self.now, client.ballot.token)
                votes.append(client.ballot.say_yes(index, self.now))
            else:
                votes.append(client.ballot.say_no(index))
        silent = votes.count(None) + votes.count(Vote.ABSTAINS)
        held = agreement(votes.count(Vote.YES), silent, self.size)
        if held:
            client.deadline = deadline_of(self.now, round(TTL * 1000))
        elif held is False:
            client.deadline = NEVER

    def release(self, number: int, reached: list[bool]) -> None:
        client = self.clients[number]
        client.deadline = NEVER
        if client.ballot is not None:
            self._give_back(client.ballot, reached)
            client.ballot = None

    def _give_back(self, ballot: Ballot, reached: list[bool]) -> None:
        for index, server in enumerate(self.servers):
            if reached[index] and server.token == ballot.token:
                server.token, server.until = None, NEVER
