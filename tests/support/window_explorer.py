"""Visits every world that a few clients and one item of a window can get into.

The clients are the production cores (strategies/sliced.py), the server is a model of the commands
they send, its script the model of windows.py. A step is one command at the server, so the clock
may go on between the command and the TIME behind it. Replies may be lost, clients may crash.

A core cannot be copied, so each world is made anew by going its way from the start; worlds in which
all clients have had the same replies, and the server is the same, are one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from window_turns import turn

from bloomlock.effects import ConnectionLost, Pipeline
from bloomlock.strategies import Shard
from bloomlock.strategies.sliced import TRUST_S, Known, SlicedStrategy
from bloomlock.windows import State, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = Window(6_000_000, 6)
SLICES = WINDOW.slices
HEADER = 0x42 << 56 | 7
CELLS = 4
OFFSETS = [64, 67]
"""One cell of the item in each part."""
SHARD = Shard("shard", HEADER, 2, CELLS)
START = 1000
"""The epoch of the clock at first."""
JUMP = SLICES + 2
SPENT = {"tick": "ticks", "jump": "jumps", "set": "sets", "loss": "losses", "crash": "crashes"}


class Budget(NamedTuple):
    """What may happen, each as often.

    Attributes:
        ticks: An epoch is over.
        jumps: All slices are over.
        sets: The server's clock is set forward by an epoch.
        losses: A reply is lost.
        crashes: A client dies.
    """

    ticks: int = 0
    jumps: int = 0
    sets: int = 0
    losses: int = 0
    crashes: int = 0


class Setting(NamedTuple):
    """How a world begins; epochs are relative to that of the clock.

    Attributes:
        beliefs: For each client the epoch it believes the shard has turned to; None: unknown.
        turned_to: The epoch of the shard; None: it is new.
        wiped: Parts of the shard of which the slice that comes next is wiped.
        there_since: The epoch in which the item was added before; None: it was not.
        dirty: Whether all cells have the bit of the slice that comes next.
        parts: Of the shard.
        timed: Whether the clients know the time of the server at first.
    """

    beliefs: tuple[int | None, ...]
    refresh: bool = False
    turned_to: int | None = 0
    wiped: int = 1
    there_since: int | None = None
    dirty: bool = False
    parts: int = 1
    timed: bool = False


@dataclass
class Client:
    """One add, and how far it is."""

    core: Any
    replies: list[object] = field(default_factory=list)
    history: list[object] = field(default_factory=list)
    step: Any = None
    answer: object = None
    began: int = -1
    ended: int = -1
    written: list[int] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.answer is not None


class World:
    """The server and its clients."""

    def __init__(self, setting: Setting, budget: Budget) -> None:
        self.setting, self.budget = setting, budget
        self.now = START
        self.elapsed = 0
        self.cells = [0] * CELLS
        self.state = State(0)
        if setting.turned_to is not None:
            epoch = START + setting.turned_to
            self.state = State(epoch, 1, setting.wiped)
            if setting.dirty:
                self.cells = [1 << (epoch + 1) % WINDOW.cell_bits] * CELLS
        if setting.there_since is not None:
            for offset in OFFSETS:
                self.cells[offset - 64] |= 1 << (START + setting.there_since) % WINDOW.cell_bits
        self.clients = []
        for belief in setting.beliefs:
            strategy = SlicedStrategy(WINDOW, refresh=setting.refresh, clock=self._clock)
            if belief is not None:
                strategy._epochs[SHARD.key] = START + belief, self._clock(), HEADER
            if setting.timed:
                until = self._clock() + TRUST_S
                strategy._now[SHARD.key] = Known(START, until, until)
            client = Client(strategy.one(SHARD, OFFSETS, write=True))
            self._go_on(client, None)
            self.clients.append(client)

    def _clock(self) -> float:
        """Return the seconds of the clients' clock."""
        return self.elapsed * WINDOW.slice_us / 10**6

    def key(self) -> object:
        clients = tuple(
            (repr(one.history), repr(one.replies), one.answer, one.began, one.ended,
             tuple(one.written))
            for one in self.clients
        )  # fmt: skip
        return self.now, self.elapsed, tuple(self.cells), self.state, clients, self.budget

    # -- moves -----------------------------------------------------------------------------------

    def moves(self) -> list[tuple[str, int]]:
        budget = self.budget
        found = []
        for number, one in enumerate(self.clients):
            if one.is_over:
                continue
            found.append(("command", number))
            if budget.losses and len(one.replies) == len(one.step.commands) - 1:
                found.append(("loss", number))
            if budget.crashes and (one.history or one.replies):
                found.append(("crash", number))
        if any(not one.is_over for one in self.clients) or self.setting.refresh:
            found += [("tick", 1)] if budget.ticks else []
            found += [("jump", JUMP)] if budget.jumps else []
            found += [("set", 1)] if budget.sets else []
        return found

    def move(self, what: str, which: int) -> None:
        if (spent := SPENT.get(what)) is not None:
            self.budget = self.budget._replace(**{spent: getattr(self.budget, spent) - 1})
        if what in ("tick", "jump", "set"):
            self.now += which
            self.elapsed += which if what != "set" else 0
            return
        client = self.clients[which]
        if what == "crash":
            client.answer, client.ended = "crashed", self.now
            client.core.close()
            return
        client.began = self.now if client.began < 0 else client.began
        client.replies.append(self._carry_out(client, client.step.commands[len(client.replies)]))
        if what == "loss":
            cause = redis.ConnectionError("lost")
            self._go_on(client, ConnectionLost(cause, sent=True, replies=client.replies[:-1]))
        elif len(client.replies) == len(client.step.commands):
            self._go_on(client, client.replies)

    def _go_on(self, client: Client, replies: object) -> None:
        client.replies = []
        try:
            while True:
                if isinstance(replies, Exception):
                    client.history.append(("lost", self.elapsed))
                    client.step = client.core.throw(replies)
                else:
                    client.history.append((replies, self.elapsed))
                    client.step = client.core.send(replies)
                assert not isinstance(client.step, Pipeline)
                if hasattr(client.step, "commands"):
                    return
                replies = None  # a pause
        except StopIteration as stop:
            (segment,) = (stop.value,)
            assert segment.rows == 1
            client.ended = self.now
            if segment.error is not None:
                assert isinstance(segment.error, ConnectionLost)
                client.answer = "unknown" if segment.error.sent else "not done"
            else:
                assert segment.header == HEADER
                client.answer = "new" if segment.missing[0] else "seen"

    # -- the server ------------------------------------------------------------------------------

    def _carry_out(self, client: Client, command: bytes) -> object:
        name, *arguments = parse(command)
        if name == b"TIME":
            # In the middle of an epoch.
            now_us = self.now * WINDOW.slice_us + WINDOW.slice_us // 2
            return [b"%d" % (now_us // 10**6), b"%d" % (now_us % 10**6)]
        if name.startswith(b"EVAL"):
            return self._turn()
        return self._bitfield(client, arguments[1:])

    def _bitfield(self, client: Client, operations: Sequence[bytes]) -> list[int]:
        found, left = [], list(operations)
        while left:
            operation, _kind, place = left.pop(0), left.pop(0), int(left.pop(0))
            if place < 128:
                found.append((HEADER, self.state.word)[place // 64])
                continue
            cell, bit = divmod(place - 128, WINDOW.cell_bits)
            if operation == b"GET":
                assert bit == 0
                found.append(self.cells[cell])
            else:
                assert left.pop(0) == b"1"
                number = WINDOW.cell_bits - 1 - bit
                found.append(self.cells[cell] >> number & 1)
                self.cells[cell] |= 1 << number
                if client.written[-1:] != [self.now]:
                    client.written.append(self.now)
        return found

    def _turn(self) -> list[object]:
        self.state, wiped = turn(WINDOW, self.state, self.now, self.setting.parts)
        if wiped is not None:
            part, slices = wiped
            size = CELLS // self.setting.parts
            for cell in range(part * size, (part + 1) * size):
                for number in slices:
                    self.cells[cell] &= ~(1 << number)
        word = self.state.word.to_bytes(8, "big")
        is_left = int(self.state.parts < self.setting.parts)
        return [HEADER.to_bytes(8, "big"), word, int(self.now > self.state.epoch), is_left]

    # -- what must hold --------------------------------------------------------------------------

    def is_there(self) -> bool:
        mask = WINDOW.live_mask(self.state.epoch, self.now)
        for offset in OFFSETS:
            mask &= self.cells[offset - 64]
        return mask != 0

    def check(self, *, late: int = 0) -> None:
        """Check the promises; late: slices by which an item may be forgotten too late."""
        there_since = self.setting.there_since
        writes = [epoch for one in self.clients for epoch in one.written]
        if there_since is not None:
            writes.append(START + there_since)
        if self.is_there():
            assert any(epoch >= self.now - SLICES - late for epoch in writes), "remembered too long"
        winners = [one for one in self.clients if one.answer == "new"]
        for one in winners:
            assert one.written[-1] + SLICES < self.now or self.is_there(), "forgotten too early"
            if there_since is not None:
                assert one.ended > START + there_since + SLICES, "new, though it was there"
        for one in winners:
            for other in winners:
                if one is not other:
                    apart = max(one.ended, other.ended) - min(one.began, other.began)
                    assert apart > SLICES, "two winners"
        if all(one.answer in ("new", "seen") for one in self.clients):
            was_there = there_since is not None and any(
                one.began <= START + there_since + SLICES for one in self.clients
            )
            assert winners or was_there, "seen by all, and reported as new to none"


def parse(command: bytes) -> list[bytes]:
    """Return the arguments of a command in RESP."""
    arguments, at = [], command.index(b"\r\n") + 2
    while at < len(command):
        end = command.index(b"\r\n", at)
        size = int(command[at + 1 : end])
        arguments.append(command[end + 2 : end + 2 + size])
        at = end + size + 4
    assert int(command[1 : command.index(b"\r\n")]) == len(arguments)
    return arguments


def explore(setting: Setting, budget: Budget, *, late: int = 0) -> tuple[int, set[tuple[str, ...]]]:
    """Visit all worlds; return how many, and all ends: the answers of the clients."""
    seen, ends = set(), set()
    left: list[tuple[tuple[str, int], ...]] = [()]
    while left:
        way = left.pop()
        world = World(setting, budget)
        try:
            for what, which in way:
                world.move(what, which)
            while (key := world.key()) not in seen:
                seen.add(key)
                world.check(late=late)
                moves = world.moves()
                if not moves or all(one.is_over for one in world.clients):
                    ends.add(tuple(str(one.answer) for one in world.clients))
                if not moves:
                    break
                # The world goes one way itself.
                first, *others = moves
                left += [(*way, one) for one in others]
                way = (*way, first)
                world.move(*first)
        except AssertionError as error:
            raise AssertionError(f"{error}; after {way} of {setting}, {world.key()}") from error
    return len(seen), ends
