"""A random model of claims: workers make one call after the other, and nothing runs by itself.

A round is one filter of some kind, objects for threads and for asyncio, and a server whose clock
stands still until the round moves it. The rules of claim_rules.py say what each call may be
answered and what the filter holds after it; an object that looks without claiming compares the two
after each call. A call whose replies are all lost, or that is cancelled, may have had an effect or
not: then there are several worlds, until what is seen rules all out but one.

A call of another worker may stand in the middle of a call, before one of its commands.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from claim_calls import ERROR, LEASE, OK, Calls, Handle, Reply, Worker
from claim_rules import AFTER_LEASE, AT_ONCE, NEVER, NEW, Answer, Rules
from flat_options import given
from proxy import Proxy

from bloomlock import AsyncBloomFilter, BloomFilter, ClaimState
from bloomlock.errors import ClaimLostError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from claim_tools import Clock

HOUR = 3600
SLICE, WINDOW = HOUR, 6 * HOUR
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shards": {"shards": 3},
    "grows": {"capacity": 10, "on_full": "grow", "up_to": 20_000},
    "window": {"window": WINDOW, "slices": WINDOW // SLICE, "shards": 2},
}
ITEMS = ["item 0", "item 1", b"bytes \xff", "item 3", "failing 0", "failing 1"]
MAX_ATTEMPTS = 2
"""Of the failing ones."""
STEPS = {
    "claim": 8,
    "claim_some": 4,
    "search": 5,
    "commit": 7,
    "give_back": 6,
    "extend": 2,
    "let_time_pass": 5,
    "retry": 2,
    "drop": 2,
    "add": 1,
    "discard": 3,
    "fill": 1,
    "clear": 0.5,
    "crash": 1,
}
COUNTS = ("claimed", "committed", "abandoned", "failed", "expired")


@dataclass
class World(Rules):
    """What may be true of the filter.

    Attributes:
        unanswered: By object and item: the token of a claim that it had no answer to.
        tokens: By the number of a handle.
    """

    unanswered: dict[tuple[int, Any], int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)


class Round(Calls):
    """One filter from its beginning to the end.

    Args:
        kind: One of KINDS.
        seed: Gives everything that is random.
        clock: Of the server, and the clients.
    """

    def __init__(self, kind: str, seed: str, clock: Clock) -> None:
        super().__init__(seed, clock)
        self.kind = kind
        self.fences: dict[Any, int] = {}
        self.worlds = [World()]

    def __str__(self) -> str:
        return f"{self.kind}, seed {self.seed}, the last calls:\n  " + "\n  ".join(self.log)

    def run(self, steps: int) -> None:
        """Carry the round out.

        Raises:
            AssertionError: If an answer, or what is left, is not by the rules.
        """
        self.clock.client.flushall()
        with asyncio.Runner() as self.runner, Proxy(self.clock.url, handshake=False) as self.proxy:
            asynchronous = redis.asyncio.Redis.from_url(self.proxy.url)
            self.makers = [
                lambda: self.make(BloomFilter, self.proxy.url),
                lambda: self.make(AsyncBloomFilter, asynchronous),
                lambda: self.make(BloomFilter, self.proxy.url),
                lambda: self.make(BloomFilter, self.clock.url),
            ]
            self.observer = self.make(BloomFilter, self.clock.url)
            self.workers = [Worker(next(self.numbers), make(), 0) for make in self.makers]
            self.workers[-1].direct = True
            for _ in range(steps):
                (step,) = self.random.choices(list(STEPS), STEPS.values())
                self.step(step, self.random.choice(self.workers))
            self.drain()
            self.runner.run(asynchronous.aclose())

    def make(self, kind: Any, client: Any) -> Any:
        options = {"capacity": 5000, "error_rate": 1e-9, "client": client} | given(KINDS[self.kind])
        return self.wait(lambda: kind("model", **options))

    def judge(self, outcomes: Callable[[World], Iterator[World]], *said: Any) -> None:
        """Keep the worlds in which the call may have had its answer, as it left them."""
        before = self.worlds
        self.worlds = _different(after for world in before for after in outcomes(deepcopy(world)))
        assert self.worlds, f"not by the rules: {said}; before: {before}"

    def settle(
        self,
        reply: Reply,
        things: list[Any],
        apply: Callable[[World, Any], Any],
        answers: list[Any] | None = None,
    ) -> None:
        """Judge a call that did something to each thing, or, without an answer, to some."""

        def outcomes(world: World) -> Iterator[World]:
            for some in [things] if reply.how == OK else _subsets(things):
                after = deepcopy(world)
                found = [apply(after, one) for one in some]
                if reply.how == ERROR or answers in (None, found):
                    yield after

        self.judge(outcomes, things, reply)

    def look(self) -> None:
        """Compare what the filter holds with the worlds."""
        seen = self.wait(self.seen)
        before = self.worlds
        self.worlds = [world for world in before if self.expected(world) == seen]
        assert self.worlds, f"seen: {seen}; expected: {[self.expected(one) for one in before]}"
        for worker in self.workers:
            for one in worker.held:
                assert one.claim.lost == (one.refused or self.now > one.until), one

    def seen(self) -> Any:
        found = self.observer
        counts = found.count_claims()
        return {
            "open": {
                c.item: (c.payload, c.attempts, int(c.remaining)) for c in found.open_claims()
            },
            "failed": {
                f.item: (f.payload, f.attempts, f.error, f.is_final) for f in found.failed()
            },
            "done": [
                i for i, is_done in zip(ITEMS, found.exists_many(ITEMS), strict=True) if is_done
            ],
            "counts": {name: getattr(counts, name) for name in (*COUNTS, "open")},
        }

    def expected(self, world: World) -> Any:
        return {
            "open": {
                item: (one.payload, one.attempts, int(max(0, world.ends[item] - self.now)))
                for item, one in world.open.items()
            },
            "failed": {
                item: (one.payload, one.attempts, one.error, one.is_final)
                for item, one in world.failed.items()
            },
            "done": [item for item in ITEMS if item in world.done],
            "counts": {name: world.counts[name] for name in COUNTS} | {"open": len(world.open)},
        }

    # -- what workers do -------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.now

    def _claim(self, worker: Worker) -> None:
        over = sorted(self.worlds[0].over(self.now), key=ITEMS.index)
        item = self.random.choice(over if over and self.random.random() < 0.7 else ITEMS)
        payload = self.payload()
        limit = _limit(item)
        call = lambda: worker.filter.claim(  # noqa: E731
            item, LEASE, renew=False, payload=payload, max_attempts=limit
        )
        reply = self.ask(worker, call)
        if reply:
            made = reply._replace(value=[reply.value]) if reply.how == OK else reply
            self.take(worker, [(item, payload)], limit, made)

    def _claim_some(self, worker: Worker) -> None:
        some = self.random.sample(ITEMS, self.random.choice((2, 3)))
        if worker.direct:
            some += some[:1]
        wanted = [(item, self.payload()) for item in some]
        limit = max(map(_limit, some), key=bool)
        call = lambda: worker.filter.claim_many(  # noqa: E731
            some, LEASE, renew=False, payloads=[p for _, p in wanted], max_attempts=limit
        )
        reply = self.ask(worker, call)
        if reply:
            self.take(worker, wanted, limit, reply)

    def take(self, worker: Worker, wanted: list[Any], limit: int | None, reply: Reply) -> None:
        """Judge the answers to claims."""
        handles = self.hold(worker, reply.value or (), from_expired=False)
        self.note([item for item, _ in wanted], [one.state.value for one in reply.value or ()])

        def grant(world: World, one: Any) -> Any:
            (item, given), made = one
            token = self.token(world, worker, item)
            answer = world.claim(self.now, item, token, LEASE, given, limit)
            if reply.how == ERROR:
                world.unanswered[worker.number, item] = token
            elif made in handles:
                world.tokens[handles[made].number] = token
            return answer if answer.state in {"new", "busy"} else answer._replace(payload=given)

        made = reply.value or [None] * len(wanted)
        answers = [Answer(one.state.value, one.attempts, one.payload) for one in reply.value or ()]
        self.settle(reply, list(zip(wanted, made, strict=True)), grant, answers)

    def hold(self, worker: Worker, made: Iterable[Any], *, from_expired: bool) -> dict[Any, Handle]:
        """Take the handles of NEW claims; fences rise with each claim of an item."""
        handles = {}
        for claim in made:
            if claim.state is ClaimState.NEW:
                assert claim.fence > self.fences.get(claim.item, 0), "fences rise"
                self.fences[claim.item] = claim.fence
                handles[claim] = Handle(
                    next(self.numbers),
                    claim,
                    claim.item,
                    self.generation,
                    self.now + LEASE,
                    from_expired,
                )
        worker.held += handles.values()
        return handles

    def token(self, world: World, worker: Worker, item: Any) -> int:
        """Return the token of the object that was not answered, or a new one."""
        return world.unanswered.pop((worker.number, item), None) or next(self.numbers)

    def _search(self, worker: Worker) -> None:
        """Claim what is over: some at once, or all until there is no more."""
        if self.random.random() < 0.5:
            self.pass_time(91)
        limit = self.random.choice((1, 2, 100))
        drains = self.random.random() < 0.4
        more: dict[str, Any] = {"ttl": LEASE, "renew": False}
        at = len(self.log)
        call = lambda: worker.filter.claim_expired(limit, **more)  # noqa: E731
        if drains:
            call = lambda: _listed(worker.filter.expired(**more))  # noqa: E731
        reply = self.ask(worker, call, between=1)
        if reply is None:
            return
        handles = self.hold(worker, reply.value or (), from_expired=True)
        found = {one.item: one for one in reply.value or ()}
        assert len(found) == len(reply.value or ()), "an item is offered twice"
        is_disturbed = len(self.log) > at
        self.log.append(f"  search ended: {[one.item for one in reply.value or ()]}")

        def outcomes(world: World) -> Iterator[World]:
            over = world.over(self.now)
            if not set(found) <= set(over):
                return
            must_visit_all = reply.how == OK and (drains or not found) and not is_disturbed
            for visited in [over] if must_visit_all else _subsets(over):
                if not set(found) <= set(visited):
                    continue
                after = deepcopy(world)
                if all(self.visit(after, worker, item, found, handles, reply) for item in visited):
                    yield after

        self.judge(outcomes, reply, found)

    def visit(
        self,
        world: World,
        worker: Worker,
        item: Any,
        found: dict[Any, Any],
        handles: dict[Any, Handle],
        reply: Reply,
    ) -> bool:
        """Claim an item that is over; return whether the answer may have been the one there was."""
        claim, token = found.get(item), self.token(world, worker, item)
        answer = world.claim(self.now, item, token, LEASE, only_expired=True)
        if reply.how == ERROR:
            world.unanswered[worker.number, item] = token
            return True
        if claim is None:
            return answer.state != NEW
        world.tokens[handles[claim].number] = token
        return answer == (NEW, claim.attempts, claim.payload)

    def _commit(self, worker: Worker) -> None:
        some = self.some_held(worker)
        if not some:
            return
        claims = [one.claim for one in some]
        calls = [lambda: _whether_kept(lambda: worker.filter.commit_many(claims), claims)]
        if len(some) == 1:
            calls.append(lambda: _whether_kept(claims[0].commit, claims))
        reply = self.end(worker, some, self.random.choice(calls))
        kept = reply.value if isinstance(reply.value, list) else [reply.value]

        def commit(world: World, one: Handle) -> bool:
            return world.commit(self.now, one.generation, one.item, world.tokens[one.number])

        self.settle(reply, some, commit, kept)

    def _give_back(self, worker: Worker) -> None:
        some = self.some_held(worker)
        if not some:
            return
        error = self.random.choice((None, "it failed", "it failed"))
        offer = self.random.choice((None, None, True, False))
        claims = [one.claim for one in some]
        calls = [lambda: worker.filter.abandon_many(claims, error, offer=offer)]
        if len(some) == 1:
            calls.append(lambda: claims[0].abandon(error, offer=offer))
        reply = self.end(worker, some, self.random.choice(calls))
        self.note(error, offer)

        def abandon(world: World, one: Handle) -> None:
            offered = AFTER_LEASE if one.from_expired else NEVER
            if offer is not None:
                offered = AT_ONCE if offer else NEVER
            token = world.tokens[one.number]
            world.abandon(self.now, one.generation, one.item, token, error, offered)

        self.settle(reply, some, abandon)
        # The clock of the server moves by microseconds, and is set back again.
        self.pass_time(1)

    def some_held(self, worker: Worker) -> list[Handle]:
        self.random.shuffle(worker.held)
        return worker.held[: self.random.choice((1, 1, 2, 3))]

    def end(self, worker: Worker, some: list[Handle], call: Callable[[], Any]) -> Reply:
        """End claims; those of a cleared filter are ended too, though it is lost."""
        self.note([(one.item, one.number) for one in some])
        generation, worker.generation = worker.generation, self.generation
        reply = self.ask(worker, call)
        worker.generation = generation
        assert reply is not None
        if reply.how == OK:
            worker.held = [one for one in worker.held if one not in some]
        self.note(reply.how, reply.value)
        return reply

    def _extend(self, worker: Worker) -> None:
        if not worker.held:
            return
        one = self.random.choice(worker.held)
        given = self.random.choice((None, 30.5, 300.5))
        lease = given or one.lease
        reply = self.end(worker, [one], lambda: _whether_kept(lambda: one.claim.extend(given)))

        def renew(world: World, one: Handle) -> bool:
            token = world.tokens[one.number]
            return world.extend(self.now, one.generation, one.item, token, lease)

        self.settle(reply, [one], renew, [reply.value])
        if reply.how == OK:
            worker.held.append(one)
            one.refused = not reply.value
            if reply.value:
                one.lease, one.until = lease, max(one.until, self.now + lease)

    def _retry(self, worker: Worker) -> None:
        retry = lambda world, item: world.retry(self.now, item)  # noqa: E731
        self.administer(worker, worker.filter.retry_failed, retry)
        self.pass_time(1)

    def _drop(self, worker: Worker) -> None:
        drop = lambda world, item: world.drop(self.now, item)  # noqa: E731
        self.administer(worker, worker.filter.drop_failed, drop)

    def administer(
        self, worker: Worker, call: Callable[[Any], Any], apply: Callable[[World, Any], Any]
    ) -> None:
        items = self.random.sample(ITEMS, self.random.choice((1, 2, 4)))
        reply = self.ask(worker, lambda: call(items))
        if reply is not None:
            self.note(items, reply.value)
            self.settle(reply, items, apply, None if reply.is_repeated else reply.value)

    def _let_time_pass(self, _worker: Worker) -> None:
        self.pass_time(self.random.choice((1, 60, 60, 91, HOUR)))

    def pass_time(self, seconds: int) -> None:
        """Move the clock; an item is in a window for certain until its end, and a slice longer."""
        self.clock.go_on(seconds)
        self.note(f"+{seconds} s")
        if self.kind != "window":
            return
        there = dict(zip(ITEMS, self.observer.exists_many(ITEMS), strict=True))
        for world in self.worlds:
            for item, since in list(world.done.items()):
                age = self.now - since
                if age > WINDOW and (age >= WINDOW + SLICE or not there[item]):
                    del world.done[item]

    def _add(self, worker: Worker) -> None:
        item = self.random.choice(ITEMS)
        is_new = self.in_peace(worker, lambda: worker.filter.add(item))
        self.note(item, is_new)

        add = lambda world, item: world.add(self.now, item)  # noqa: E731
        # An add that finds out that the filter was cleared may mark the item in the new one.
        self.settle(Reply(ERROR if is_new is None else OK), [item], add, [is_new])

    def _discard(self, worker: Worker) -> None:
        item = self.random.choice(ITEMS)
        was_there = self.in_peace(worker, lambda: worker.filter.discard(item))
        self.note(item, was_there)

        if was_there is not None:
            self.settle(Reply(OK), [item], World.discard, [was_there])

    def _fill(self, worker: Worker) -> None:
        """Add items that nobody claims, so that the filter grows."""
        number = next(self.numbers)
        self.in_peace(worker, lambda: worker.filter.add_many([f"{number}.{n}" for n in range(15)]))

    def in_peace(self, worker: Worker, call: Callable[[], Any]) -> Any:
        """Make a call over a connection that loses nothing; None: the filter was cleared."""
        is_direct, worker.direct = worker.direct, True
        try:
            reply = self.ask(worker, call)
        finally:
            worker.direct = is_direct
        return None if reply is None else reply.value

    def _clear(self, worker: Worker) -> None:
        if worker.generation != self.generation:
            return
        self.wait(worker.filter.clear)
        self.observer.reattach()
        self.generation = worker.generation = next(self.numbers)
        for world in self.worlds:
            world.clear(self.generation)

    def _crash(self, worker: Worker) -> None:
        """Let a process end with all that it has, in order or not; another takes its place."""
        place = self.workers.index(worker)
        if self.random.random() < 0.5:
            self.wait(worker.filter.close)
        made = Worker(next(self.numbers), self.makers[place](), self.generation, worker.direct)
        self.workers[place] = made

    def drain(self) -> None:
        """Let all that is open be over, and be committed by one who asks: none is forgotten."""
        self.pass_time(HOUR)
        self.look()
        last = self.make(BloomFilter, self.clock.url)
        wanted = {
            frozenset(
                item
                for item, one in world.open.items()
                if item not in world.done and not 0 < one.limit <= one.attempts
            )
            for world in self.worlds
        }
        claims = list(last.expired(LEASE, renew=False))
        assert {one.item for one in claims} in wanted
        assert all(last.commit_many(claims))
        counts = last.count_claims()
        ended = counts.committed + counts.abandoned + counts.failed + counts.expired
        assert (counts.open, counts.claimed) == (0, ended), counts

    def payload(self) -> str | bytes | None:
        payload = f"payload {next(self.numbers)} \r\n\0 é"
        return self.random.choice((payload, payload.encode(), None, "", b""))


async def _listed_later(found: Any) -> list[Any]:
    return [one async for one in found]


def _listed(found: Any) -> Any:
    return _listed_later(found) if hasattr(found, "__aiter__") else list(found)


def _whether_kept(end: Callable[[], Any], claims: Sequence[Any] = ()) -> Any:
    """End claims; False: it was lost, or what was answered last is not what the first try did."""

    def why_not(error: Exception) -> Any:
        if isinstance(error, OutcomeUnknownError):
            assert any(one._session.is_repeated for one in claims), "sent more than once"
            return [one._session.ended == "committed" for one in claims]
        return False

    async def later(answer: Any) -> Any:
        try:
            answer = await answer
        except (ClaimLostError, OutcomeUnknownError) as error:
            return why_not(error)
        return True if answer is None else answer

    try:
        answer = end()
    except (ClaimLostError, OutcomeUnknownError) as error:
        return why_not(error)
    if inspect.isawaitable(answer):
        return later(answer)
    return True if answer is None else answer


def _subsets(things: list[Any]) -> Iterator[list[Any]]:
    for number in range(len(things) + 1):
        yield from map(list, itertools.combinations(things, number))


def _different(worlds: Iterable[World]) -> list[World]:
    found: list[World] = []
    for world in worlds:
        if world not in found:
            found.append(world)
    return found


def _limit(item: Any) -> int | None:
    return MAX_ATTEMPTS if str(item).startswith("failing") else None
