"""Walks the ways in which clients of a filter with a time window mix that also forget an item.

As forget_explorer.py, with the production cores and a real server, and with a clock that only the
walk moves: the server's scripts, its TIME and the clients read it at a key. A turn of the slice may
come before any step.

What was there at first may be remembered until the first turn, or for longer; all else is
remembered until the walk is over. So a set whose old item goes at the turn is what the answers are
held against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import forget_explorer
from forget_explorer import ITEM, OTHER, STARTS, Done, is_linearizable

import bloomlock.filters.discards
import bloomlock.strategies.cells
import bloomlock.strategies.sliced
from bloomlock import BloomFilter
from bloomlock.commands import encode_command
from bloomlock.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    import redis

SLICES, SLICE = 6, 10
START = 1_000_000 * SLICE
"""When a walk begins: the first second of an epoch."""
CLOCK = "the clock"
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

    def after(one: Done, now: str) -> list[str]:
        ways = _ways(one, now, refresh)
        is_at_turn = any(one.start < at < one.end for at in turned)
        if not ways and refresh and there == OLD and is_at_turn:
            # Cells are read before the clock. So what goes at a turn in between is not there,
            # though another client may have renewed it before that turn.
            return [LASTING if one.kind.startswith("add") else now]
        return ways

    return is_linearizable(history, there, after)


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
        self._open_all(client, shards, refresh=refresh)
        for one in [made, *self._objects]:
            one._state.strategy._clock = one._state.clock = lambda: self._seconds
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
                    assert getattr(made, method)(ITEM)
                now = self._seconds
                self._set_clock(START)
                # The shard has turned since, and another item is there.
                fresh = self.open()
                kept = self._snapshot()
                for shard in range(50):
                    fresh.add(f"{shard} turns")
                assert fresh.add(OTHER)
                self._contents[start, is_old] = self._snapshot()
                self._restore(kept)
                self._set_clock(now)
        self._versions = [
            self._version_in(self._contents["forgotten", is_old]) for is_old in (False, True)
        ]

    def _set_clock(self, seconds: float) -> None:
        self._seconds = seconds
        self._client.set(CLOCK, int(seconds))

    def begin(self, way: Way) -> None:
        """Begin anew."""
        self.history = []
        self._set_clock(START)
        self._restore(self._contents[way.start, way.is_old])
        self._begin_objects(way.heard, self._versions[way.is_old])
        for one, plain, knows in zip(self._objects, self._plain, way.knows, strict=False):
            strategy = one._state.strategy
            strategy._epochs.clear()
            strategy._now.clear()
            if knows:
                known = START // SLICE, self._seconds, plain.header
                strategy._epochs.update(dict.fromkeys(self._bits, known))

    def turn(self) -> None:
        """Let the next epoch begin."""
        begun = self.tick()
        self._set_clock(self._seconds + SLICE)
        self.history.append(Done(begun, self.tick(), "turn", None))

    def open(self) -> BloomFilter:
        """Return an object that has not heard of anything."""
        fresh = super().open()
        fresh._state.strategy._clock = lambda: self._seconds
        return fresh

    def is_right(self, way: Way) -> bool:
        """Return whether the history is right."""
        there = ABSENT
        if way.start in ("there", "again"):
            there = OLD if way.is_old else LASTING
        return is_right(self.history, there, refresh=self._refresh)
