"""Walks the ways in which clients of a filter with a time window mix that also forget an item.

As forget_explorer.py, with the production cores and a real server, and with a clock that only the
walk moves: the server's scripts, its TIME and the clients read it at a key. A turn of the slice may
come before any step.

What was there at first may be remembered until the first turn, or for longer; all else is
remembered until the walk is over. So a set whose old item goes at the turn is what the answers are
held against.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import forget_explorer
from forget_explorer import FAULTS, NEVER, OTHER, STARTS, Choices, Client, Done

import bloomlock.filters.discards
import bloomlock.strategies.cells
import bloomlock.strategies.sliced
from bloomlock import BloomFilter
from bloomlock.commands import encode_command
from bloomlock.filters.state import Unreported
from bloomlock.keys import FilterKeys, forgotten_key
from bloomlock.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest
    import redis

SLICES, SLICE = 6, 10
START = 1_000_000 * SLICE
"""When a walk begins: the first second of an epoch."""
CLOCK = "the clock"
TURN = -1
ABSENT, OLD, LASTING = "absent", "old", "lasting"


class Way(NamedTuple):
    """How a walk begins.

    Attributes:
        start: What was done with the item before.
        is_old: Whether that was so long ago that it is remembered until the next turn only.
        heard: Which clients have heard of forgotten items.
        knows: Which of them know to which epoch the shard has turned.
    """

    start: str
    is_old: bool
    heard: Sequence[bool]
    knows: Sequence[bool]


def move_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts, and what clients send for TIME, read the clock of the walk."""
    time = encode_command("EVAL", f"return {{redis.call('GET', '{CLOCK}'), '0'}}", 0)
    for module in (bloomlock.strategies.cells, bloomlock.strategies.sliced):
        monkeypatch.setattr(module, "TIME", time)
    sources = (
        (bloomlock.strategies.cells, ("header", "window_turn")),
        (bloomlock.filters.discards, ("header", "cells", "discard")),
    )
    for module, names in sources:
        script = Script(*names)
        assert script.source.count("call('TIME')") == 1
        moved = script.source.replace("call('TIME')", f"{{call('GET', '{CLOCK}'), 0}}")
        monkeypatch.setattr(script, "source", moved)
        # By the source alone.
        monkeypatch.setattr(script, "by_digest", script.by_source)
        monkeypatch.setattr(module, "_SCRIPT", script)


def is_right(history: Sequence[Done], there: str, *, refresh: bool) -> bool:
    """Return whether a set whose old item goes at a turn may have given the answers of a history.

    Args:
        history: What was done, and the turns.
        there: The item at first: absent, old or lasting.
        refresh: Whether an add renews an old item.
    """
    turned = [one.start for one in history if one.kind == "turn"]
    seen = set()

    def search(left: frozenset[int], now: str) -> bool:
        if all(math.isinf(history[index].end) for index in left):
            return True
        if (left, now) in seen:
            return False
        seen.add((left, now))
        first_end = min(history[index].end for index in left)
        for index in left:
            one = history[index]
            if one.start > first_end:
                continue
            ways = _ways(one, now, refresh)
            is_at_turn = any(one.start < at < one.end for at in turned)
            if not ways and refresh and there == OLD and is_at_turn:
                # Cells are read before the clock. So what goes at a turn in between is not there,
                # though another client may have renewed it before that turn.
                ways = [LASTING if one.kind.startswith("add") else now]
            if any(search(left - {index}, way) for way in ways):
                return True
        return False

    return search(frozenset(range(len(history))), there)


def _ways(one: Done, now: str, refresh: bool) -> list[str]:
    """Return what may be there after an operation."""
    is_there = now != ABSENT
    if one.kind == "turn":
        return [ABSENT if now == OLD else now]
    if one.kind == "exists":
        return [now] if one.answer in (None, is_there) else []
    if one.kind == "discard":
        return [ABSENT] if one.answer in (None, is_there) else []
    added = now if is_there and not refresh else LASTING
    return [added] if one.answer in (None, not is_there) else []


class World(forget_explorer.World):
    """A filter with a window on a server, and the clients of one walk.

    Args:
        client: Of an empty server.
        shards: Of the filter.
        refresh: Whether adds renew.
    """

    def __init__(self, client: redis.Redis, shards: int, *, refresh: bool) -> None:
        self._client, self._refresh = client, refresh
        self._connection = client.connection_pool.get_connection()
        self._set_clock(START - SLICES * SLICE)
        options = {"window": SLICES * SLICE, "slices": SLICES, "refresh": refresh}
        made = BloomFilter("x", 2000, 1e-9, client=client, shards=shards, **options)
        made.add("what came first")
        placed = FilterKeys("x").spread(shards)
        self._bits = [placed.bits(number) for number in range(shards)]
        self._tables = [forgotten_key(key) for key in self._bits]
        self._objects = [BloomFilter.open("x", client=client, refresh=refresh) for _ in range(3)]
        for one in [made, *self._objects]:
            one._state.strategy._clock = one._state.clock = lambda: self._seconds
        self._plain = [one._state.view for one in self._objects]
        self._identity = self._plain[0].hasher.identify(forget_explorer.ITEM.encode())
        self._contents: dict[Any, Any] = {}
        empty = self._snapshot()
        for is_old in (False, True):
            self._restore(empty)
            self._set_clock(START - SLICES * SLICE if is_old else START)
            made._state.strategy._epochs.clear()
            made._state.strategy._now.clear()
            made.add("what turns the shard")
            for start, method in zip(STARTS, ("", "add", "discard", "add"), strict=True):
                if method:
                    assert getattr(made, method)(forget_explorer.ITEM)
                now = self._seconds
                self._set_clock(START)
                # The shard has turned since, and another item is there.
                fresh = BloomFilter.open("x", client=client)
                fresh._state.strategy._clock = lambda: self._seconds
                kept = self._snapshot()
                for shard in range(50):
                    fresh.add(f"{shard} turns")
                assert fresh.add(OTHER)
                self._contents[start, is_old] = self._snapshot()
                self._restore(kept)
                self._set_clock(now)
        self._first_version = {
            is_old: next(filter(None, (table.get(self._identity) for table in tables)))
            for is_old in (False, True)
            for _, tables in [self._contents["forgotten", is_old]]
        }
        self.history: list[Done] = []
        self._ticks = itertools.count()

    def _set_clock(self, seconds: float) -> None:
        self._seconds = seconds
        self._client.set(CLOCK, int(seconds))

    def _snapshot(self) -> tuple[list[bytes], list[dict[bytes, bytes]]]:
        strings = [self._client.get(key) for key in self._bits]
        return strings, [self._client.hgetall(key) for key in self._tables]

    def _restore(self, contents: tuple[list[bytes], list[dict[bytes, bytes]]]) -> None:
        strings, tables = contents
        with self._client.pipeline(transaction=False) as pipe:
            pipe.delete(*self._tables)
            for key, value in zip(self._bits, strings, strict=True):
                pipe.set(key, value)
            for key, value in zip(self._tables, tables, strict=True):
                if value:
                    pipe.hset(key, mapping=value)
            pipe.execute()

    def begin(self, way: Way) -> None:
        """Begin anew."""
        self.history = []
        self._set_clock(START)
        self._restore(self._contents[way.start, way.is_old])
        each = zip(self._objects, self._plain, way.heard, way.knows, strict=False)
        for one, plain, has_heard, knows in each:
            state = one._state
            state.unreported = Unreported()
            view = replace(plain, unreported=state.unreported.of(plain.header))
            if has_heard:
                view = view.with_forgotten()
                # What it knows may be of long ago.
                view.forgotten.learn(self._identity, self._first_version[way.is_old])
            state.view, state.lost = view, None
            epoch = START // SLICE
            state.strategy._epochs.clear()
            state.strategy._now.clear()
            if knows:
                known = epoch, self._seconds, plain.header
                state.strategy._epochs.update(dict.fromkeys(self._bits, known))
            state.fill._until_look = 10**9
            state.fill._stale_at = math.inf
            if state.fill._clock is not None:
                state.fill._clock = lambda: 0.0

    def turn(self) -> None:
        """Let the next epoch begin."""
        begun = self.tick()
        self._set_clock(self._seconds + SLICE)
        self.history.append(Done(begun, self.tick(), "turn", None))

    def go(
        self,
        way: Way,
        programs: Sequence[Sequence[str]],
        choose: Callable[[int], int],
        faults: int = 0,
        turns: int = 1,
    ) -> tuple[list[str], list[Done]]:
        """Walk once; return what was done, and what came of it.

        Raises:
            AssertionError: If the history is wrong, or another item was touched.
        """
        self.begin(way)
        clients = [
            Client(self, one._state, program)
            for one, program in zip(self._objects, programs, strict=False)
        ]
        done = []
        while going := [n for n, client in enumerate(clients) if not client.is_over]:
            ways = [(number, "") for number in going] + [(TURN, "")] * bool(turns)
            if faults:
                ways += [(number, fault) for number in going for fault in FAULTS]
            number, fault = ways[choose(len(ways))]
            done.append(f"{number} {fault}".strip())
            if number == TURN:
                turns -= 1
                self.turn()
                continue
            faults -= bool(fault)
            clients[number].go_on(fault)
        fresh = BloomFilter.open("x", client=self._client)
        fresh._state.strategy._clock = lambda: self._seconds
        for kind in ("exists", "add", "add", "exists"):
            begun = self.tick()
            answer = getattr(fresh, kind)(forget_explorer.ITEM)
            self.history.append(Done(begun, self.tick(), kind, answer))
        there = ABSENT
        if way.start in ("there", "again"):
            there = OLD if way.is_old else LASTING
        shown = f"{way}, {programs}, steps {done}: {self.history}"
        assert is_right(self.history, there, refresh=self._refresh), shown
        assert fresh.exists(OTHER), f"another item is lost: {shown}"
        assert not fresh.exists(NEVER), shown
        return done, self.history


def go_all(
    world: World, way: Way, programs: Sequence[Sequence[str]], faults: int = 0, turns: int = 1
) -> int:
    """Walk all ways; return how many there are."""
    choices, walks = Choices(), 0
    while True:
        choices.begin()
        world.go(way, programs, choices.choose, faults, turns)
        walks += 1
        if not choices.advance():
            return walks
