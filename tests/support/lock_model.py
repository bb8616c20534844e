"""A lock and its clients as one frozen value: every step of one of them gives a new one.

The server is the scripts; what a waiter makes of a message is `Attempt._wait` itself. Each step is
checked as it is taken: fences rise, and waiters are served in order.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from lock_scripts import LockState

from bloomlock.locks.options import deadline_of
from bloomlock.locks.protocol.steps import (
    ACQUIRE,
    NO_CHANNEL,
    RELEASE,
    RENEW,
    SLICE_MS,
    Busy,
    Granted,
    LockRequest,
)
from bloomlock.locks.protocol.waiting import Attempt

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from lock_scripts import Scripts, Step

    from bloomlock.locks.protocol.steps import LockOperation

LIVENESS_MS = 3 * SLICE_MS
"""lock.lua has the same number."""
LEASE_MS = 2 * SLICE_MS
TICK_MS = SLICE_MS
"""Time goes in steps of this; leases and liveness are multiples of it."""
FINISHED = ("done", "crashed")


class Kind(NamedTuple):
    """What a client is; it takes the lock `rounds` times. See `LockRequest` for the rest.

    `channel` is one on which no message reaches it; empty: it listens on its own. One that only
    `tries` does not wait.
    """

    is_shared: bool = False
    rounds: int = 1
    channel: bytes = b""
    tries: bool = False


class Client(NamedTuple):
    """One client.

    phase is one of: idle, asking (no answer yet), waiting, holding, releasing and leaving (no
    answer yet), done, crashed. Times are server times in ms; nobody's clock is wrong here.
    """

    phase: str = "idle"
    round: int = 0
    sent: int = 0
    contact: int = -LIVENESS_MS
    look: int = 0
    floor: int = 0
    deadline: int = 0
    inbox: tuple[int, ...] = ()
    nap: int = -1


class Budget(NamedTuple):
    crashes: int = 0
    losses: int = 0
    naps: int = 0
    renewals: int = 0
    mutes: int = 0


class World(NamedTuple):
    """Everything; `order` are the clients that wait, as the server heard of them."""

    scripts: Scripts
    kinds: tuple[Kind, ...]
    clients: tuple[Client, ...]
    budget: Budget
    server: LockState = LockState()
    now_ms: int = 10 * LIVENESS_MS
    order: tuple[int, ...] = ()

    def with_client(self, who: int, **changes: object) -> World:
        client = self.clients[who]._replace(**changes)
        return self._replace(clients=(*self.clients[:who], client, *self.clients[who + 1 :]))

    def spend(self, what: str) -> World:
        left = getattr(self.budget, what)
        return self._replace(budget=self.budget._replace(**{what: left - 1}))

    def asking(self, who: int) -> LockRequest:
        kind = self.kinds[who]
        token = b"%d.%d" % (who, self.clients[who].round)
        channel = b"" if kind.tries else kind.channel or b"c%d" % who
        return LockRequest(token, LEASE_MS, kind.is_shared, channel)

    def run(self, script: LockOperation[Any], request: Any) -> Step:
        # The connection of a client that has crashed is closed.
        heard = [
            b"c%d" % who for who, client in enumerate(self.clients) if client.phase != "crashed"
        ]
        return self.scripts.run(script, self.server, self.now_ms, request, heard)

    def state(self) -> LockState:
        """Return the server's state without what has expired by now."""
        return self.server.at(self.now_ms)

    def holds(self, who: int) -> bool:
        return self.asking(who).token in self.state().tokens()

    def is_waiter_alive(self, who: int) -> bool:
        # The script marks by half a millisecond who listens where no message reaches it.
        mark = 0.5 * (self.kinds[who].channel not in (b"", NO_CHANNEL))
        return self.now_ms < self.clients[who].contact + LIVENESS_MS + mark

    def is_in_line(self, who: int) -> bool:
        """Tell whether a waiter is to be given the lock when it is its turn."""
        is_gone = self.clients[who].phase == "crashed" and not self.kinds[who].channel
        return self.is_waiter_alive(who) and not is_gone


def record_of(request: LockRequest) -> bytes:
    """Return how who asks stands in the queue."""
    word, _, queued_ms, channel, token = request.terms
    return b"%b %d %b %b" % (token, queued_ms, word, channel)


def ask(world: World, who: int) -> tuple[World, Granted | Busy]:
    """Let the server carry out an acquire; the answer is still under way."""
    asking, held = world.asking(who), world.holds(who)
    step = world.run(ACQUIRE, asking)
    was_queued = record_of(asking) in world.server.records()
    handed = asking.token in step.told
    after = world.with_client(who, contact=world.now_ms)
    if not was_queued and (handed or record_of(asking) in step.state.records()):
        # Who was handed the lock in this very step was put last in the queue, and out again.
        after = after._replace(order=(*(c for c in after.order if c != who), who))
    if isinstance(step.answer, Granted) and not handed:
        assert step.answer.fence > world.server.fence, "fences rise"
        if not held:
            _check_nobody_passed(world, who, step.told)
    return _settle(after, step, asking.token), step.answer


def give_up(world: World, who: int) -> tuple[World, bool]:
    asking = world.asking(who)
    step = world.run(RELEASE, asking)
    after = world._replace(order=tuple(client for client in world.order if client != who))
    is_free = not step.state.at(world.now_ms).tokens()
    assert not (is_free and any(map(after.is_in_line, after.order))), "it is handed on"
    return _settle(after, step, asking.token), step.answer


def renew(world: World, who: int) -> tuple[World, bool]:
    asking = world.asking(who)
    step = world.run(RENEW, asking)
    return world._replace(server=step.state), step.answer


def hear(world: World, who: int) -> tuple[World, int | None]:
    """Let a waiter read the next message; returns its deadline if it takes it for a grant."""
    client, asking = world.clients[who], world.asking(who)
    clock = world.now_ms / 1000
    attempt = Attempt(None, asking, None, lambda: clock)  # type: ignore[arg-type]  # sends nothing
    waiting = attempt._wait(Busy(SLICE_MS, client.floor), client.sent / 1000)
    next(waiting)
    deadline = None
    try:
        waiting.send(b"%b %d" % (asking.token, client.inbox[0]))
    except StopIteration as stop:
        if stop.value is not None:
            deadline = round(stop.value[1] * 1000)
    return world.with_client(who, inbox=client.inbox[1:]), deadline


def direct_deadline(client: Client) -> int:
    """Return until when a grant that came as an answer may be relied on."""
    return round(deadline_of(client.sent / 1000, LEASE_MS) * 1000)


def _check_nobody_passed(world: World, who: int, told: Container[bytes]) -> None:
    """Whoever is given the lock by asking passes no live waiter; readers go together."""
    ahead = itertools.takewhile(lambda other: other != who, world.order)
    others = [one for one in ahead if world.is_in_line(one) and world.asking(one).token not in told]
    assert not others, f"{who} passed {others}"


def _settle(world: World, step: Step, asker: bytes) -> World:
    """Check what was handed on, and put the messages on their way."""
    fence, told = world.server.fence, step.told
    new = step.state.at(world.now_ms).tokens() - world.state().tokens()
    handed = [*told, *(new - told.keys() - {asker})]
    expected = _next_in_order(world) if handed else []
    assert [*map(_client_of, handed)] == expected, "in order"
    world = world._replace(order=tuple(who for who in world.order if who not in expected))
    for token, granted in told.items():
        assert granted > fence, "fences rise"
        fence, who = granted, _client_of(token)
        client = world.clients[who]
        if client.phase not in FINISHED and world.asking(who).token == token:
            world = world.with_client(who, inbox=(*client.inbox, granted))
    waiting = [*map(_client_of, step.state.records())]
    order = tuple(who for who in world.order if who in waiting)
    return world._replace(server=step.state, order=order)


def _client_of(token_or_record: bytes) -> int:
    return int(token_or_record.split(b".")[0])


def _next_in_order(world: World) -> list[int]:
    """Return who is to be given the lock now: the first live waiter; a reader's: all readers."""
    line = [who for who in world.order if world.is_in_line(who)]
    if not world.kinds[line[0]].is_shared:
        return line[:1]
    return [who for who in line if world.kinds[who].is_shared]


# -- what may happen next ---------------------------------------------------------------------

LONGEST_NAP = 4
"""Ticks; longer than a grant, and than a waiter counts as alive."""

Move = tuple[str, World]


def moves(world: World) -> Iterator[Move]:
    """Yield everything that may happen now, by name, and the world after it."""
    urgent = False
    for who, client in enumerate(world.clients):
        if client.phase in FINISHED:
            continue
        if client.nap >= 0:
            yield f"{who} wakes", world.with_client(who, nap=-1)
            urgent = urgent or client.nap >= LONGEST_NAP
            continue
        urgent = urgent or _is_urgent(world, client)
        for name, after in _acts(world, who, client):
            yield f"{who} {name}", after
        if world.budget.crashes:
            yield f"{who} crashes", _enter(world.spend("crashes"), who, "crashed")
        if world.budget.naps and client.phase != "idle":
            yield f"{who} sleeps", world.spend("naps").with_client(who, nap=0)
    if not urgent:
        yield "tick", _tick(world)


def _is_urgent(world: World, client: Client) -> bool:
    """Tell whether a client that is awake does something before time goes on."""
    if client.phase == "holding":
        return world.now_ms >= client.deadline
    if client.phase == "waiting":
        return world.now_ms >= client.look
    return client.phase != "idle"


def _tick(world: World) -> World:
    clients = tuple(
        client._replace(nap=client.nap + 1) if client.nap >= 0 else client
        for client in world.clients
    )
    return world._replace(now_ms=world.now_ms + TICK_MS, clients=clients)


def _acts(world: World, who: int, client: Client) -> Iterator[Move]:
    match client.phase:
        case "idle":
            yield from _ask(world.with_client(who, sent=world.now_ms), who)
        case "asking":
            yield from _ask(world, who)
        case "waiting":
            yield from _wait(world, who, client)
        case "holding" if world.now_ms < client.deadline:
            yield from _give_up(world, who, "releasing")
            if world.budget.renewals:
                yield from _renew(world.spend("renewals"), who)
        case "holding" | "releasing":
            yield from _give_up(world, who, "releasing")
        case "leaving":
            yield from _give_up(world, who, "leaving")


def _ask(world: World, who: int) -> Iterator[Move]:
    after, answer = ask(world, who)
    if world.budget.losses:
        yield "asks, unanswered", after.spend("losses").with_client(who, phase="asking")
    if isinstance(answer, Granted):
        deadline = direct_deadline(world.clients[who])
        yield "asks and gets", _hold(after, who, deadline)
    elif world.kinds[who].tries:
        yield "asks in vain", _finish(after, who)
    else:
        look = world.now_ms + TICK_MS
        waits = after.with_client(who, phase="waiting", look=look, floor=answer.fence)
        yield "asks and waits", waits
        if world.budget.mutes and after.clients[who].inbox:
            yield "misses a message", waits.spend("mutes").with_client(who, inbox=())


def _wait(world: World, who: int, client: Client) -> Iterator[Move]:
    if client.inbox:
        heard, deadline = hear(world, who)
        if deadline is None:
            yield "hears nothing of worth", heard.with_client(who, look=world.now_ms)
        else:
            yield "hears of its grant", _hold(heard, who, deadline)
        if world.budget.mutes:
            yield "is not told", world.spend("mutes").with_client(who, inbox=())
    if world.now_ms >= client.look:
        yield from _ask(world.with_client(who, sent=world.now_ms), who)
    yield from _give_up(world, who, "leaving")


def _hold(world: World, who: int, deadline: int) -> World:
    return _enter(world, who, "holding").with_client(who, deadline=deadline)


def _enter(world: World, who: int, phase: str) -> World:
    """Let a client stop waiting; what it knew of that is of no more use."""
    client = world.clients[who]
    fresh = Client(phase, client.round, contact=client.contact)
    return world.with_client(who, **fresh._asdict())


def _give_up(world: World, who: int, phase: str) -> Iterator[Move]:
    after, _ = give_up(world, who)
    yield f"is done {phase}", _finish(after, who)
    if world.budget.losses:
        yield f"is {phase}, unanswered", _enter(after.spend("losses"), who, phase)


def _renew(world: World, who: int) -> Iterator[Move]:
    after, held = renew(world, who)
    assert held, "who may rely on the lock has it"
    if world.budget.losses:
        yield "renews, unanswered", after.spend("losses")
    deadline = direct_deadline(Client(sent=world.now_ms))
    yield "renews", after.with_client(who, deadline=deadline)


def _finish(world: World, who: int) -> World:
    following = world.clients[who].round + 1
    phase = "idle" if following < world.kinds[who].rounds else "done"
    fresh = Client(phase, following if phase == "idle" else world.clients[who].round)
    return world.with_client(who, **fresh._asdict())
