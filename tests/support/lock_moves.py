"""What may happen next in a world of one lock and its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lock_model as model
from lock_model import FINISHED, TICK_MS, Client, World

from bloomlock.locks.protocol.steps import Granted

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    after, answer = model.ask(world, who)
    if world.budget.losses:
        yield "asks, unanswered", after.spend("losses").with_client(who, phase="asking")
    if isinstance(answer, Granted):
        deadline = model.direct_deadline(world.clients[who])
        yield "asks and gets", _hold(after, who, deadline)
    else:
        look = world.now_ms + TICK_MS
        waits = after.with_client(who, phase="waiting", look=look, floor=answer.fence)
        yield "asks and waits", waits
        if world.budget.mutes and after.clients[who].inbox:
            yield "misses a message", waits.spend("mutes").with_client(who, inbox=())


def _wait(world: World, who: int, client: Client) -> Iterator[Move]:
    if client.inbox:
        heard, deadline = model.hear(world, who)
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
    after, _ = model.give_up(world, who)
    yield f"is done {phase}", _finish(after, who)
    if world.budget.losses:
        yield f"is {phase}, unanswered", _enter(after.spend("losses"), who, phase)


def _renew(world: World, who: int) -> Iterator[Move]:
    after, held = model.renew(world, who)
    assert held, "who may rely on the lock has it"
    if world.budget.losses:
        yield "renews, unanswered", after.spend("losses")
    deadline = model.direct_deadline(Client(sent=world.now_ms))
    yield "renews", after.with_client(who, deadline=deadline)


def _finish(world: World, who: int) -> World:
    following = world.clients[who].round + 1
    phase = "idle" if following < world.kinds[who].rounds else "done"
    fresh = Client(phase, following if phase == "idle" else world.clients[who].round)
    return world.with_client(who, **fresh._asdict())
