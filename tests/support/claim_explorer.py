"""Visits every world that a few workers and one item can get into, by the pure rules.

A worker claims the item and commits it or gives it back. A reply may be lost, and the worker then
repeats the step. A request may be delivered a second time at any later moment. A worker may crash,
a lease may run out at every step. What failed, or whose lease is over, may be retried and dropped.
What is checked stands in `check` and where a step is taken.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import claim_rules as rules
from claim_rules import ShardClaims

from bloomlock.claims import Answer, ClaimRequest, Held, Offered, Outcome, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = b"B\0header"
ITEM = b"item"
PLACES = b"\0\0\0\x40"
NOW_US = 1_000_000
LEASE_MS = 1000
OVER_MS = 0
"""A lease ends here when it has run out: time itself stands still."""
ENDED = ("done", "crashed")
NO_WORKER = (-1, -1)
"""Stands in `granted` where the last claim was taken from its worker for no other."""


class Budget(NamedTuple):
    """What may happen, each as often."""

    crashes: int = 0
    losses: int = 0
    lates: int = 0
    expiries: int = 0
    renewals: int = 0
    clears: int = 0
    errors: int = 0
    retries: int = 0
    drops: int = 0
    offers: int = 0


class Worker(NamedTuple):
    """phase: idle, asking (no answer to its claim), holding, committing, abandoning, ENDED.

    Without an answer to what was sent in the phases that end in -ing, but for holding.
    """

    phase: str = "idle"
    round: int = 0
    fence: int = 0


class World(NamedTuple):
    """Everything; `late` are requests that may be delivered once more."""

    server: ShardClaims
    workers: tuple[Worker, ...]
    budget: Budget
    rounds: int
    max_attempts: int = 0
    late: frozenset[tuple[str, int, int]] = frozenset()
    granted: tuple[tuple[int, int], ...] = ()
    committed: bool = False

    def key(self) -> object:
        server = self.server
        fences = sorted({record.fence for record in server.open.values()} | {server.fence})
        return (
            tuple(
                record._replace(fence=fences.index(record.fence)) for record in server.open.values()
            ),
            tuple(server.leases.items()),
            tuple(server.failed.items()),  # each with the token that may still commit
            frozenset(server.lost),
            bool(server.bits),
            server.header,
            tuple((worker.phase, worker.round) for worker in self.workers),
            self.budget,
            self.late,
            self.granted[-1:],
            self.committed,
        )

    def token(self, who: int) -> bytes:
        return b"%d.%d" % (who, self.workers[who].round)

    def held(self, who: int) -> Held:
        return Held(ITEM, self.token(who), PLACES)

    def with_worker(self, who: int, **changes: object) -> World:
        worker = self.workers[who]._replace(**changes)
        return self._replace(workers=(*self.workers[:who], worker, *self.workers[who + 1 :]))

    def spend(self, what: str) -> World:
        left = getattr(self.budget, what) - 1
        return self._replace(budget=self.budget._replace(**{what: left}))

    def next_round(self, who: int) -> World:
        number = self.workers[who].round + 1
        return self.with_worker(
            who, phase="idle" if number < self.rounds else "done", round=number, fence=0
        )


def explore(
    workers: int, budget: Budget, *, rounds: int = 1, max_attempts: int = 0
) -> tuple[int, int]:
    """Visit all worlds; return how many, and how many steps lead from one to another."""
    server = ShardClaims(HEADER, of_header=HEADER)
    start = World(server, (Worker(),) * workers, budget, rounds, max_attempts)
    seen = {start.key()}
    left = [(start, ())]
    steps = 0
    while left:
        world, way = left.pop()
        try:
            check(world)
            for name, after in moves(world):
                steps += 1
                if (key := after.key()) not in seen:
                    seen.add(key)
                    left.append((after, (*way, name)))
        except AssertionError as error:
            raise AssertionError(f"{error}; after: {'; '.join(way)}; {world}") from error
    return len(seen), steps


def check(world: World) -> None:
    """After its lease the item is to be had again, or it is done, or it failed too often."""
    state = deepcopy(world.server)
    assert set(state.leases) == set(state.open), "a claim without a deadline, or the reverse"
    for item in state.leases:
        state.leases[item] = OVER_MS
    assert bool(state.bits) <= world.committed, "seen, and never committed"
    assert world.committed <= bool(state.bits), "committed, and not seen"
    found = rules.find_expired(state, NOW_US, state.header, 10)
    assert [item for item, _ in found] == list(state.open), "an open claim is not found"
    probe = ClaimRequest(ITEM, b"probe", PLACES, LEASE_MS)
    answer = rules.claim(state, NOW_US, state.header, probe, lambda *_: None)
    if world.committed:
        assert answer.outcome is Outcome.SEEN
    elif answer.outcome is Outcome.FAILED:
        assert world.max_attempts <= answer.attempts
    else:
        assert answer.outcome is Outcome.NEW, "the item is in limbo"
    holders = [one for one in world.workers if one.phase == "holding"]
    fences = [one.fence for one in holders]
    assert len(set(fences)) == len(fences), "two holders with one fence"


def moves(world: World) -> Iterator[tuple[str, World]]:
    """Return what may happen next, each with the world after it."""
    for who, worker in enumerate(world.workers):
        if worker.phase in ENDED:
            continue
        yield from moves_of(world, who, worker.phase)
        if world.budget.crashes:
            yield f"{who} crashes", world.spend("crashes").with_worker(who, phase="crashed")
    if world.budget.expiries and any(end > OVER_MS for end in world.server.leases.values()):
        after = world.spend("expiries")._replace(server=deepcopy(world.server))
        for item in after.server.leases:
            after.server.leases[item] = OVER_MS
        yield "the lease ends", after
    for what, settle in (("retries", retry), ("drops", drop)):
        if getattr(world.budget, what) and (world.server.open or world.server.failed):
            yield what, settle(world.spend(what)._replace(server=deepcopy(world.server)))
    for request in world.late:
        what, who, number = request
        older = world.with_worker(who, round=number)
        after, _ = SENDERS[what](older._replace(late=world.late - {request}), who)
        yield f"late {what} of {who}.{number}", after._replace(workers=world.workers)


def moves_of(world: World, who: int, phase: str) -> Iterator[tuple[str, World]]:
    if phase in ("idle", "asking"):
        yield from sent(world, who, "claim", "asking", phase)
    if phase == "idle":
        yield from sent(world, who, "take over", "asking", phase)
    if phase in ("holding", "committing"):
        yield from sent(world, who, "commit", "committing", phase)
    if phase in ("holding", "abandoning"):
        yield from sent(world, who, "abandon", "abandoning", phase)
    if phase == "holding" and world.budget.offers:
        yield from sent(world.spend("offers"), who, "offer now", "abandoning", phase)
    if phase == "holding" and world.budget.errors:
        yield from sent(world.spend("errors"), who, "fail", "abandoning", phase)
        yield from sent(world.spend("errors"), who, "offer", "abandoning", phase)
    if phase == "holding" and world.budget.renewals:
        yield from sent(world.spend("renewals"), who, "renew", "holding", phase)


def sent(
    world: World, who: int, what: str, waiting: str, phase: str
) -> Iterator[tuple[str, World]]:
    """Deliver a request and its reply; or lose the reply; and once more let a copy be late."""
    number = world.workers[who].round
    after, answer = SENDERS[what](world, who)
    answered = READERS[what](after, who, answer)
    yield f"{who} {what}", answered
    if world.budget.losses:
        yield f"{who} {what}, lost", after.spend("losses").with_worker(who, phase=waiting)
    if world.budget.lates:
        late = answered.spend("lates")
        yield f"{who} {what}, twice", late._replace(late=late.late | {(what, who, number)})


def send_claim(world: World, who: int, *, only_expired: bool = False) -> tuple[World, Answer]:
    world = world._replace(server=deepcopy(world.server))
    token, before = world.token(who), world.server.fence
    had = world.server.open.get(ITEM)
    request = ClaimRequest(
        ITEM, token, PLACES, LEASE_MS, world.max_attempts, only_expired=only_expired
    )
    answer = rules.claim(world.server, NOW_US, HEADER, request, lambda *_: None)
    if had is not None and had.token == token:
        assert answer == Answer(Outcome.NEW, had.fence, had.attempts), "its own retry is blocked"
    elif answer.outcome is Outcome.NEW:
        assert answer.fence > before, "fences rise"
        grant = (who, world.workers[who].round)
        world = world._replace(granted=(*world.granted, grant))
    return world, answer


def take_claim(world: World, who: int, answer: Answer) -> World:
    if answer.outcome is Outcome.NEW:
        return world.with_worker(who, phase="holding", fence=answer.fence)
    if answer.outcome is Outcome.SEEN:
        assert world.committed
        return world.with_worker(who, phase="done")
    if answer.outcome is Outcome.FAILED:
        assert world.max_attempts
        return world.with_worker(who, phase="done")
    return world.next_round(who)


def send_commit(world: World, who: int) -> tuple[World, bool]:
    world = world._replace(server=deepcopy(world.server))
    is_last = world.granted[-1:] == ((who, world.workers[who].round),)
    done = rules.commit(world.server, HEADER, world.held(who), lambda *_: None)
    assert not done or is_last or world.committed, "committed though another claimed it since"
    assert done or not is_last, "refused though no other claimed it since"
    return world._replace(committed=world.committed or bool(done)), bool(done)


def send_abandon(
    world: World, who: int, error: bytes | None = None, offered: Offered = Offered.NEVER
) -> tuple[World, bool]:
    world = world._replace(server=deepcopy(world.server))
    had = world.server.open.get(ITEM, Record(b"", 0, 0, 0, b"")).token == world.token(who)
    done = rules.abandon(
        world.server,
        NOW_US,
        HEADER,
        world.held(who),
        lambda *_: None,
        error=error,
        offered=offered,
    )
    assert done == had
    if done and offered is Offered.AT_ONCE and ITEM in world.server.open:
        assert [item for item, _ in rules.find_expired(world.server, NOW_US, HEADER, 1)] == [ITEM]
        world.server.leases[ITEM] = OVER_MS
    return world, done


def send_renew(world: World, who: int) -> tuple[World, bool]:
    world = world._replace(server=deepcopy(world.server))
    before = dict(world.server.open)
    done = rules.renew(world.server, NOW_US, HEADER, world.held(who), LEASE_MS)
    assert world.server.open == before, "a renewal makes or changes a claim"
    assert done == (ITEM in before and before[ITEM].token == world.token(who))
    return world, done


def retry(world: World) -> World:
    server = world.server
    before, failure = dict(server.open), server.failed.get(ITEM)
    is_live = any(record.token for record in before.values()) and server.leases[ITEM] > OVER_MS
    assert rules.retry(server, NOW_US, HEADER, ITEM), "it was open, or had failed"
    assert rules.retry(server, NOW_US, HEADER, ITEM), "and repeating it gives the same answer"
    if is_live:
        assert server.open == before, "what a worker has is left to it"
        return world
    assert server.open[ITEM].attempts == 0
    assert ITEM not in server.failed
    server.leases[ITEM] = OVER_MS
    is_taken = failure is not None and failure.token
    return world._replace(granted=(*world.granted, NO_WORKER)) if is_taken else world


def drop(world: World) -> World:
    server = world.server
    before = dict(server.open)
    is_live = any(record.token for record in before.values()) and server.leases[ITEM] > OVER_MS
    assert rules.drop(server, NOW_US, HEADER, ITEM, lambda *_: None) is not is_live
    assert not rules.drop(server, NOW_US, HEADER, ITEM, lambda *_: None), "it was forgotten"
    if is_live:
        assert server.open == before, "what a worker has is left to it"
        return world
    assert not server.open
    assert not server.failed
    return world._replace(granted=(*world.granted, NO_WORKER))


SENDERS = {
    "claim": send_claim,
    "take over": lambda world, who: send_claim(world, who, only_expired=True),
    "commit": send_commit,
    "abandon": send_abandon,
    "fail": lambda world, who: send_abandon(world, who, b"why"),
    "offer": lambda world, who: send_abandon(world, who, b"why", Offered.AFTER_LEASE),
    "offer now": lambda world, who: send_abandon(world, who, None, Offered.AT_ONCE),
    "renew": send_renew,
}
READERS = {
    "claim": take_claim,
    "take over": take_claim,
    "commit": lambda world, who, _: world.next_round(who),
    "abandon": lambda world, who, _: world.next_round(who),
    "fail": lambda world, who, _: world.next_round(who),
    "offer": lambda world, who, _: world.next_round(who),
    "offer now": lambda world, who, _: world.next_round(who),
    "renew": lambda world, who, done: world if done else world.next_round(who),
}
