"""A filter as a set of items: clients add, ask for and discard an item at the same time.

What was done with the item before is a stage: nothing; add; add and discard; and add once more. A
client may have been opened at an earlier stage, and not have heard of what came after it.
"""

from __future__ import annotations

import re
import secrets
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from explorer import (
    Cores,
    Done,
    Operation,
    contents_of,
    core_of,
    followed_by,
    is_linearizable,
    judge_once,
    put_back,
)
from flat_options import given

from bloomlock import BloomFilter
from bloomlock.errors import FilterLostError
from bloomlock.filters.coalescing import CallBatch, WaitingCall

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    import redis

ITEM, OTHER, NEVER = "item", "other", "never"
STAGES = ("absent", "there", "discarded", "again")
STEPS = ("", "add", "discard", "add")
MANY = [f"one of many {number}" for number in range(14)]
GROWN = ["more"]
SLICES, SLICE = 6, 1000
WINDOW = {"capacity": 300, "window": SLICES * SLICE, "slices": SLICES}
START = 2_000_000_000 + SLICES * SLICE
"""When a walk begins: the first second of an epoch of the server's clock."""
ABSENT, OLD, LASTING = "absent", "old", "lasting"
CALLS: dict[str, tuple[str, Any]] = {
    "add both": ("add_many", [ITEM, OTHER]),
    "discard some": ("discard_many", [ITEM, "no such item", ITEM]),
    "grow": ("add_many", GROWN),
}
"""What operations call that are not named as a method."""
_TIME = re.compile(r"\[b'\d{10}', b'\d+'\]")


class Way(NamedTuple):
    """How a walk begins.

    Attributes:
        stage: What was done with the item before.
        since: For each client the stage at which it was opened.
        programs: What each client does: methods, or names in CALLS.
    """

    stage: str
    since: Sequence[str]
    programs: Sequence[Sequence[str]]


class _Found(NamedTuple):
    """What others find after a state: the item in the last slice of its window, and one later, what
    an object is answered that has heard of nothing, and which other items there are.
    """

    times: list[bool]
    answers: list[tuple[str, bool]]
    there: set[str]


class HandClocks:
    """The clocks of a server and of objects, which only the walk moves.

    Args:
        stop_at: Sets the server's; without it there is no window.
    """

    def __init__(self, stop_at: Callable[[int], None] | None = None) -> None:
        self._stop_at = stop_at
        self._now = 0

    @property
    def is_stopped(self) -> bool:
        return self._stop_at is not None

    def __call__(self) -> int:
        return self._now

    def set(self, seconds: int) -> None:
        if seconds != self._now:
            self._now = seconds
            if self._stop_at is not None:
                self._stop_at(seconds)

    def turn(self) -> None:
        self.set(self._now + SLICE)

    def of(self, made: BloomFilter) -> BloomFilter:
        """Let an object have this clock; return it."""
        state = made._state
        state.clock = self
        if state.fill.refuse:
            state.fill._clock = self
        return made


class SetWorld:
    """A filter on a server, and what it has at each stage.

    Args:
        client: Of a server, which is emptied.
        shape: Options of the filter's creation.
        fill: Items that are there from the first.
        clocks: Those of the server and of the objects, if it has a window.
        is_old: Whether the item was added so long ago that it goes at the next turn.
        options: Of each client.

    Attributes:
        sizes: Of the keys in all states of the last way, in bytes.
    """

    def __init__(
        self,
        client: redis.Redis,
        shape: Mapping[str, Any],
        *,
        fill: Sequence[str] = (),
        clocks: HandClocks | None = None,
        is_old: bool = False,
        **options: Any,
    ) -> None:
        self.client, self._options, self._is_old = client, options, is_old
        self._refresh = options.get("refresh", False)
        self._clocks = clocks or HandClocks()
        self._others = [OTHER, *fill]
        self._contents = {}
        self.sizes: set[int] = set()
        began = START - SLICES * SLICE if is_old else START
        self._clocks.set(began)
        client.flushdb()
        shape = {"capacity": 50, "error_rate": 1e-9, **shape, **options}
        self._shape = shape
        made = self._create()
        for stage, step in zip(STAGES, STEPS, strict=True):
            if step:
                assert getattr(made, step)(ITEM)
            kept = contents_of(client)
            self._clocks.set(START)
            # A shard with a window turns to the slice in which the walk begins.
            self.open().update(self._others)
            self._contents[stage] = contents_of(client)
            put_back(client, kept)
            self._clocks.set(began)

    def _create(self) -> BloomFilter:
        return self._clocks.of(BloomFilter("x", client=self.client, **given(self._shape)))

    def open(self) -> BloomFilter:
        return self._clocks.of(BloomFilter.open("x", client=self.client, **given(self._options)))

    def _clear(self) -> None:
        """Let another object clear the filter, with the same new generation each time."""
        with mock.patch.object(secrets, "randbelow", lambda below: 7**9 % below):
            self.open().clear()

    def _delete(self) -> None:
        self.open().delete()

    def _evict(self) -> None:
        for key in self.client.keys("*:discarded"):
            self.client.delete(key)

    def _add_many(self) -> None:
        """Let another object fill two slices of a filter that grows."""
        self.open().update(MANY)

    def start(self, way: Way, faults: int = 0, **extra: int) -> Callable[[], Cores]:
        """Return what brings all to the start of a way.

        Args:
            way: What is done.
            faults: As of Cores.
            extra: How often a slice turns, others clear or delete the filter or fill two slices, or
                the tombstones are evicted, at most: turn, clear, delete, fill, evict.
        """
        self.sizes.clear()
        acts = {
            "turn": self._clocks.turn,
            "clear": self._clear,
            "delete": self._delete,
            "fill": self._add_many,
            "evict": self._evict,
        }

        def start() -> Cores:
            self._clocks.set(START)
            made = []
            for stage in way.since:
                put_back(self.client, self._contents[stage])
                made.append(self.open())
            put_back(self.client, self._contents[way.stage])
            programs = [
                (_operation(one, kind) for kind in kinds)
                for one, kinds in zip(made, way.programs, strict=True)
            ]
            return Cores(
                self.client,
                programs,
                faults=faults,
                extra={name: (count, acts[name]) for name, count in extra.items()},
                show_answer=lambda answer: answer[0] if isinstance(answer, list) else answer,
                blur=lambda replies: _TIME.sub("TIME", replies),
            )

        return start

    def check(self, way: Way) -> Callable[[Cores], None]:
        """Return the judge: the answers are those of a set, whatever comes after this state."""
        is_there = way.stage in ("there", "again")

        def hint(world: Cores, history: list[Done]) -> tuple[int, bool]:
            self.sizes.add(sum(len(value) for _, value in world.found))
            kinds = [one.kind for one in history]
            return START + SLICE * kinds.count("turn"), "delete" in kinds

        def judge(history: list[Done], _: Any, found: _Found) -> None:
            kinds = {one.kind for one in history}
            if self._clocks.is_stopped:
                self._check_time(history, found)
            history = followed_by(history, found.answers)
            assert self.is_right(history, is_there=is_there), f"no set: {history}"
            if not found.answers:
                # An object that has not heard of it still must not be answered.
                assert "evict" in kinds
                return
            grown = any(one.kind == "grow" and one.answer for one in history)
            added = [*self._others, *GROWN * grown, *MANY * ("fill" in kinds)]
            assert {*added} <= found.there or {"clear", "delete"} & kinds, "another is lost"
            assert NEVER not in found.there

        return judge_once(hint, self._probe, judge)

    def _probe(self, hint: tuple[int, bool]) -> _Found:
        (now, is_deleted), times = hint, []
        for slices in (SLICES, SLICES + 1) if self._clocks.is_stopped else ():
            self._clocks.set(now + slices * SLICE)
            times.append(self.open().exists(ITEM))
        self._clocks.set(now)
        try:
            fresh = self._create() if is_deleted else self.open()
        except FilterLostError:
            return _Found(times, [], set())
        kinds = ("exists", "add", "add", "exists")
        answers = [(kind, getattr(fresh, kind)(ITEM)) for kind in kinds]
        others = [*self._others, *GROWN, *MANY, NEVER]
        found = zip(others, fresh.exists_many(others), strict=True)
        return _Found(times, answers, {item for item, is_there in found if is_there})

    def _check_time(self, history: Sequence[Done], found: _Found) -> None:
        """What was added in this slice is there in the last one of its window, and not after."""
        turns = sum(one.kind == "turn" for one in history)
        added = any(
            one.kind.startswith("add")
            and one.extras == turns
            and (one.answer or (self._refresh and one.answer is False))
            for one in history
        )
        is_there, is_there_later = found.times
        if added and not {"discard", "clear"} & {one.kind for one in history}:
            assert is_there, f"forgotten too early: {history}"
        assert not is_there_later, f"remembered too long: {history}"

    def is_right(self, history: Sequence[Done], *, is_there: bool) -> bool:
        """Return whether a set may have given the answers, of which an old item goes at a turn."""
        first = (OLD if self._is_old else LASTING) if is_there else ABSENT

        def after(one: Done, now: str) -> list[str]:
            return after_in_a_set(one, now, refresh=self._refresh)

        return is_linearizable(history, first, after)


def _operation(made: BloomFilter, kind: str) -> Operation:
    if kind == "coalesced":
        return Operation("add", _coalesced(made))
    method, argument = CALLS.get(kind, (kind, ITEM))
    return Operation(kind, core_of(made, method, argument))


def _coalesced(made: BloomFilter) -> Generator[Any, Any, Any]:
    """Add the item twice and ask for it in one batch of calls; return what was added."""
    calls = [WaitingCall(Future(), ITEM, write) for write in (True, True, False)]
    yield from CallBatch(made._state, calls).run()
    first, second, _ = (call.future for call in calls)
    assert first.exception(0) is not None or not second.result(), "of two adds one is new"
    return first.result()


def after_in_a_set(one: Done, now: str, *, refresh: bool = False) -> list[str]:
    is_there = now != ABSENT
    if one.kind == "turn":
        return [ABSENT if now == OLD else now]
    if one.kind in ("clear", "delete"):
        return [ABSENT]
    if one.kind in ("grow", "fill", "evict"):
        return [now]
    if one.kind == "exists":
        return [now] if one.answer in (None, is_there) else []
    if one.kind.startswith("discard"):
        return [ABSENT] if one.answer in (None, is_there) else []
    added = now if is_there and not refresh else LASTING
    return [added] if one.answer in (None, not is_there) else []
