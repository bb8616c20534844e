"""Visits every world that can be reached, each once, and looks at it.

Worlds that differ only in the date and in the values of fences are the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import lock_model as model
from lock_model import FINISHED, Budget, Client, Kind, World
from lock_moves import moves

from bloomlock.locks.protocol.model import LIVENESS_MS, SLICE_MS, Granted

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from lock_moves import Move


class Explored(NamedTuple):
    """How many worlds, steps between them, and worlds in which nobody wants anything more."""

    worlds: int
    steps: int
    ends: int


def explore(kinds: tuple[Kind, ...], budget: Budget) -> Explored:
    """Visit all worlds, depth first; the error of one that is wrong tells the way to it."""
    start = World(kinds, (Client(),) * len(kinds), budget)
    steps = ends = 0
    seen, on_path = {key_of(start)}, {key_of(start)}
    path = [("start", start, _look_at(start))]
    try:
        while path:
            move = next(path[-1][2], None)
            if move is None:
                on_path.remove(key_of(path.pop()[1]))
                continue
            steps += 1
            name, world = move
            key = key_of(world)
            if key not in seen:
                ends += all(client.phase in FINISHED for client in world.clients)
                seen.add(key)
                on_path.add(key)
                path.append((name, world, _look_at(world)))
            elif key in on_path:
                _check_circle(world)
    except AssertionError as error:
        way = "; ".join(name for name, _, _ in path)
        raise AssertionError(f"{error}; after: {way}; {path[-1][1]}") from error
    return Explored(len(seen), steps, ends)


def _look_at(world: World) -> Iterator[Move]:
    check(world)
    yield from moves(world)


def _check_circle(world: World) -> None:
    """A world that comes back, for ever perhaps, is one in which nobody is waiting."""
    for who, client in enumerate(world.clients):
        assert client.phase in ("idle", *FINISHED), f"{who} may wait for ever"


def check(world: World) -> None:
    """Look at one world."""
    state = world.state()
    relying = [
        who
        for who, client in enumerate(world.clients)
        if client.phase == "holding" and world.now_ms < client.deadline
    ]
    for who in relying:
        assert world.holds(who), f"{who} relies on a lock that it does not have"
    groups = {world.kinds[who].group for who in relying}
    assert len(relying) < 2 or (len(groups) == 1 and b"" not in groups), "one holder, or one group"
    tokens = {state.value, *state.holders, *(record.split(b" ")[0] for record in state.queue)}
    for who, client in enumerate(world.clients):
        token, record = world.asking(who).token, world.asking(who).record
        old = {b"%d.%d" % (who, earlier) for earlier in range(client.round)}
        assert not tokens & old, f"{who} left something behind"
        assert client.phase != "done" or token not in tokens, f"{who} left something behind"
        assert not world.holds(who) or record not in state.queue, f"{who} waits behind itself"
        # Whoever sleeps through a grant has to ask anew.
        over_ms = client.contact + world.asking(who).granted_ms + SLICE_MS
        if client.phase == "waiting" and world.is_waiter_alive(who) and world.now_ms < over_ms:
            assert world.holds(who) or record in state.queue, f"{who} was forgotten"
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
    """Return what tells a world from all that go on differently."""
    now_ms, server = world.now_ms, world.server
    fences = {server.fence}
    for client in world.clients:
        fences |= {client.floor, *(fence for fence, _ in client.inbox)}
    # The next fence depends on those of this very moment; of older ones only the order counts.
    ranks = {
        fence: fence - now_ms * 1000 if fence >= now_ms * 1000 else rank - len(fences)
        for rank, fence in enumerate(sorted(fences))
    }
    return (
        world.budget,
        world.order,
        server.value,
        max(0, server.expires_ms - now_ms) if server.value else 0,
        tuple((token, max(0, until - now_ms)) for token, until in server.holders),
        tuple(
            (record, max(-LIVENESS_MS, ticket // 1000 - now_ms)) for record, ticket in server.queue
        ),
        tuple((record, max(0, until - now_ms)) for record, until in server.alive),
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
                client.waiters,
                tuple((ranks[fence], waiters) for fence, waiters in client.inbox),
                client.nap,
            )
            for client in world.clients
        ),
    )
