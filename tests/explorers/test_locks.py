"""Clients of a lock ask, wait, hold, renew and release in every order, with crashes and losses.

The server runs the scripts. Who relies on the lock has it, alone or with other readers; waiters are
served in order; nobody who is awake waits for ever, and nobody leaves anything behind.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import lock_model as model
import pytest
from explorer import explore
from lock_model import (
    FINISHED,
    LEASE_MS,
    LIVENESS_MS,
    Budget,
    Client,
    Kind,
    World,
    moves,
    record_of,
)
from lock_scripts import Scripts

from bloomlock.locks.protocol.steps import NO_CHANNEL, SLICE_MS, Granted

if TYPE_CHECKING:
    from collections.abc import Hashable

ONE = Kind()
TWICE = Kind(rounds=2)
READER = Kind(is_shared=True)
LOOKS = Kind(channel=NO_CHANNEL)
UNHEARD = Kind(channel=b"elsewhere")
TRIES = Kind(tries=True)
ALL = Budget(crashes=1, losses=1, naps=1, renewals=1, mutes=1)

WORLDS = [
    ((ONE, ONE), Budget(naps=1, losses=1)),
    ((ONE, ONE), Budget(crashes=1, mutes=1)),
    ((LOOKS, ONE, UNHEARD), Budget()),
    ((LOOKS, UNHEARD), Budget(crashes=1, naps=1)),
    ((ONE, ONE, TRIES), Budget(crashes=1)),
    ((READER, ONE, READER._replace(tries=True)), Budget(losses=1)),
    ((READER, READER, ONE), Budget(crashes=1)),
    ((READER, READER, ONE), Budget(renewals=1)),
    ((ONE, ONE, ONE), Budget()),
]
LARGE = [
    ((ONE, ONE), ALL),
    ((TWICE, TWICE), Budget(crashes=1, losses=1)),
    ((READER, ONE), ALL._replace(mutes=0)),
    ((ONE, ONE, ONE), Budget(crashes=1)),
    ((ONE, ONE, ONE), Budget(losses=1)),
    ((ONE, ONE, ONE), Budget(naps=1)),
    ((READER, READER, ONE), Budget(losses=1)),
    ((READER, ONE, ONE), Budget(crashes=1)),
]


@pytest.fixture(scope="module")
def scripts(stopped):
    return Scripts(stopped())


@pytest.mark.parametrize(
    ("kinds", "budget"),
    [*WORLDS, *(pytest.param(*one, marks=pytest.mark.long) for one in LARGE)],
    ids=str,
)
def test_every_interleaving(scripts, kinds, budget):
    start = World(scripts, kinds, (Client(),) * len(kinds), budget)
    explored = explore(lambda: start, moves, key_of, check, check_circle)
    print(explored)
    assert explored.states > 100


def check_circle(world: World) -> None:
    """A world that comes back, for ever perhaps, is one in which nobody is waiting."""
    for who, client in enumerate(world.clients):
        assert client.phase in ("idle", *FINISHED), f"{who} may wait for ever"


def check(world: World) -> None:
    state = world.state()
    relying = [
        who
        for who, client in enumerate(world.clients)
        if client.phase == "holding" and world.now_ms < client.deadline
    ]
    for who in relying:
        assert world.holds(who), f"{who} relies on a lock that it does not have"
    assert len(relying) < 2 or all(world.kinds[who].is_shared for who in relying), "one, or readers"
    tokens = state.tokens() | {record.split(b" ")[0] for record in state.records()}
    for who, client in enumerate(world.clients):
        token, record = world.asking(who).token, record_of(world.asking(who))
        old = {b"%d.%d" % (who, earlier) for earlier in range(client.round)}
        assert not tokens & old, f"{who} left something behind"
        assert client.phase != "done" or token not in tokens, f"{who} left something behind"
        assert not world.holds(who) or record not in state.records(), f"{who} waits behind itself"
        # Whoever sleeps through a grant has to ask anew.
        over_ms = client.contact + LEASE_MS + SLICE_MS
        if client.phase == "waiting" and world.is_waiter_alive(who) and world.now_ms < over_ms:
            assert world.holds(who) or record in state.records(), f"{who} was forgotten"
            check_next_look(world, who)


def check_next_look(world: World, who: int) -> None:
    """If the lock is free, a look of anybody who waits gives it to the first live waiter."""
    if world.state().value is not None:
        return
    first = next(other for other in world.order if world.is_in_line(other))
    after, answer = model.ask(world, who)
    assert after.holds(first), f"the look of {who} left the lock free"
    assert isinstance(answer, Granted) == after.holds(who)


def key_of(world: World) -> Hashable:
    """Return what tells a world from all that go on differently.

    Clients of one kind do the same, so of worlds in which they have changed places one is enough.
    """
    clients = sorted(
        range(len(world.clients)),
        key=lambda who: (
            world.kinds[who],
            world.clients[who],
            [who == one for one in world.order],
            world.asking(who).token in world.server.tokens(),
        ),
    )
    places = tuple(map(clients.index, range(len(clients))))
    now_ms, server = world.now_ms, world.server
    fences = {server.fence}
    for client in world.clients:
        fences |= {client.floor, *client.inbox}
    # The next fence depends on those of this very moment; of older ones only the order counts.
    ranks = {
        fence: fence - now_ms * 1000 if fence >= now_ms * 1000 else rank - len(fences)
        for rank, fence in enumerate(sorted(fences))
    }
    return (
        world.budget,
        tuple(places[who] for who in world.order),
        in_places(server.value, places),
        max(0, server.expires_ms - now_ms) if server.value else 0,
        *(
            frozenset((in_places(token, places), max(0, until - now_ms)) for token, until in times)
            for times in (server.holders, server.alive)
        ),
        tuple(
            (in_places(record, places), max(-LIVENESS_MS, ticket // 1000 - now_ms))
            for record, ticket in server.queue
        ),
        ranks[server.fence],
        tuple(
            (
                client.phase,
                client.round,
                max(-2 * LIVENESS_MS, client.sent - now_ms),
                max(-LIVENESS_MS, client.contact - now_ms),
                max(0, client.look - now_ms),
                ranks[client.floor],
                max(0, client.deadline - now_ms) if client.phase == "holding" else 0,
                tuple(ranks[fence] for fence in client.inbox),
                client.nap,
            )
            for client in map(world.clients.__getitem__, clients)
        ),
    )


@cache
def in_places(name: bytes | None, places: tuple[int, ...]) -> bytes | None:
    """Return a token or a record with the place of its client in place of the client's number."""

    def renamed(found: re.Match[bytes]) -> bytes:
        return b"%b%d" % (found[1], places[int(found[2])])

    return name and re.sub(rb"(^| c)(\d)(?=\.|$)", renamed, name)
