"""The random model of filters: walks over all features, each answer held against plain sets.

One step comes after the other, and the clocks of the server and of the clients stand still between
them, so what is expected is exact: items and their epochs, claims, expiry, names, copies and
files, and the loss of all keys. Objects of different kinds share each filter. What a lost reply
leaves unknown a fresh object is asked for at once.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from contract.backends import Awaited
from flat_options import given
from near_cache_tools import Clock
from proxy import Proxy, deliver
from window_clocks import BEGIN, SLICE, SLICES, WINDOW

from bloomlock import AsyncBloomFilter, BloomFilter, ClaimState
from bloomlock.errors import (
    FilterLostError,
    FilterNotFoundError,
    OutcomeUnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    Server = tuple[redis.Redis, Callable[[int], None], str]

NAMES = ("alpha", "beta", "gamma")
ITEMS = [f"item {number}" for number in range(24)]
UNDONE, LONGER = "claimed", 10**7
OBJECTS = 3
"""Of each filter at most."""
STALENESS = 30.0
LATER = 10
"""Seconds after which further shards expire."""

KINDS: dict[str, dict[str, Any]] = {
    "bitmap": {"capacity": 2000},
    "plain": {"capacity": 2000},
    "growing": {"capacity": 20, "growth": 2, "on_full": "grow"},
    "window": {"capacity": 6000, "window": WINDOW, "slices": SLICES},
}
STRATEGIES = {
    "bitmap": ("atomic", "lua"),
    "plain": ("atomic", "lua", "transaction", "lock", "pipeline"),
    "growing": ("atomic", "lua"),
    "window": ("atomic", "lua"),
}
MANY = ("add_many", "update", "exists_many")
CALLS = ("add", *MANY, "discard")
SCRIPT = "local new = {} for i = 1, #ARGV do new[i] = add(i) and 1 or 0 end return new"


@dataclass(eq=False)
class Model:
    """What is in one generation of a filter.

    Attributes:
        epochs: By item the epoch in which its bits were set last.
        is_claimed: Whether a worker has a claim of UNDONE, which it never ends.
        expires: When it goes; None: not by `expire`.
        before: The generations whose objects follow to this one.
    """

    epochs: dict[str, int] = field(default_factory=dict)
    is_claimed: bool = False
    expires: float | None = None
    before: tuple[Model, ...] = ()

    def copied(self) -> Model:
        return Model(dict(self.epochs))


@dataclass(eq=False)
class Handle:
    """An object of a filter.

    Attributes:
        made: The object; one of asyncio has its methods as those of a BloomFilter.
        model: Of the generation it is attached to.
        options: How it was made.
        is_async: Whether it is one of asyncio.
        owed: Items that it may have added without an answer, and may report as new yet.
    """

    made: Any
    name: str
    model: Model
    clock: Clock
    options: dict[str, Any]
    is_async: bool
    owed: set[str] = field(default_factory=set)

    @property
    def follows(self) -> bool:
        return self.options.get("on_lost") == "recreate"

    @property
    def refresh(self) -> bool:
        return self.options.get("refresh", False)


class Walk:
    """Steps by chance, and the model of each filter by its name.

    Args:
        server: One whose clock stands still: a client, what sets the clock, and its URL.
        kind: Of the filters.
        seed: Of all that is drawn.
        folder: For files.
    """

    def __init__(self, server: Server, kind: str, seed: str, folder: Path) -> None:
        self.client, self._stop_at, self.url = server
        self.kind, self.seed, self.folder = kind, seed, folder
        self.chance = random.Random(seed)
        self.now = 0
        self.shape = {"error_rate": 1e-9, "shards": self.chance.choice((1, 3))} | KINDS[kind]
        self.models: dict[str, Model] = {}
        self.handles: list[Handle] = []
        self.done: list[str] = []
        self.what: Counter[str] = Counter()
        # When the shards of a filter that expired are gone.
        self.left_until: dict[str, float] = {}

    def __str__(self) -> str:
        return f"seed {self.seed!r}, {self.kind}, {self.shape}, after {self.done[-12:]}"

    # -- what is there ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.now // SLICE

    def is_there(self, model: Model, item: str) -> bool:
        epoch = model.epochs.get(item)
        return epoch is not None and (self.kind != "window" or epoch >= self.epoch - SLICES)

    def there(self, model: Model, items: Iterable[str]) -> list[bool]:
        return [self.is_there(model, item) for item in items]

    def added(self, handle: Handle, items: Iterable[str]) -> list[bool]:
        """Take items into the model of an object; return what an add of each is to answer."""
        answers = []
        for item in items:
            is_new = not self.is_there(handle.model, item)
            if is_new or handle.refresh:
                handle.model.epochs[item] = self.epoch
            answers.append(is_new)
        return answers

    def some(self, most: int = 6) -> list[str]:
        items = self.chance.choices(ITEMS, k=self.chance.randrange(1, most))
        return items + items[: self.chance.randrange(2)]

    # -- time ------------------------------------------------------------------------------------

    def pass_staleness(self) -> None:
        """Let what objects have kept of before be too old for them."""
        for handle in self.handles:
            handle.clock.now += STALENESS + 1

    def later(self, _handle: Handle) -> None:
        end = (self.now // SLICE + 1) * SLICE
        steps = (1, 200, 600, end - 1 - self.now, end - self.now, end - self.now)
        some = [end + SLICE - self.now, 12]
        some += [(SLICES + 1) * SLICE] * (self.chance.random() < 0.1)
        self.set_clock(self.now + self.chance.choice([*steps, *some]))

    def set_clock(self, seconds: int) -> None:
        """Let time go by, for the server and for all objects."""
        for handle in self.handles:
            handle.clock.now += seconds - self.now
        self.now = seconds
        self._stop_at(BEGIN + seconds)
        over = [name for name, model in self.models.items() if self.is_over(name, model)]
        for name in over:
            del self.models[name]
            self.what["expired"] += 1
            self.pass_staleness()
        if over and self.shape["shards"] > 1:
            # Until then objects that are attached may be answered by its further shards.
            self.set_clock(self.now + LATER + 2)

    def is_over(self, name: str, model: Model) -> bool:
        if model.expires is None:
            return False
        self.left_until[name] = model.expires + LATER
        return self.now > model.expires

    # -- objects ---------------------------------------------------------------------------------

    def attach(self, name: str) -> Handle:
        """Make an object of a filter, which creates it where it is not there."""
        is_async = self.chance.random() < 0.25
        options: dict[str, Any] = {
            "strategy": self.chance.choice(STRATEGIES[self.kind]),
            "on_lost": self.chance.choice(("raise", "recreate")),
            "on_unknown": self.chance.choice(("raise", "new")),
            "near_cache": self.chance.choice((0, 100)),
            "max_staleness": STALENESS,
        }
        if self.kind == "window":
            options["refresh"] = self.chance.random() < 0.4
        model = self.models.get(name)
        creates = model is None or options["on_lost"] == "recreate" or self.chance.random() < 0.5
        clock = Clock()
        made = self.make(name, is_async=is_async, **(self.shape if creates else {}), **options)
        if model is None:
            model = self.created(name)
        handle = Handle(made, name, model, clock, options, is_async)
        self.wind(handle)
        self.handles.append(handle)
        return handle

    def make(self, name: str, *, is_async: bool, **options: Any) -> Any:
        creates, options = "capacity" in options, given(options)
        if is_async:
            kind = AsyncBloomFilter if creates else AsyncBloomFilter.open

            async def attach() -> AsyncBloomFilter:
                return await kind(name, client=self.async_client, **options)

            return Awaited(self.runner, self.runner.run(attach()))
        if creates:
            return BloomFilter(name, client=self.proxied, **options)
        return BloomFilter.open(name, client=self.proxied, **options)

    def wind(self, handle: Handle) -> None:
        """Let an object go by its clock of the walk."""
        state, clock = handle.made._state, handle.clock
        state.clock = clock
        if state.caching is not None:
            state.near_clock = clock
        if state.near is not None:
            state.near.end()
            state.near = None

    def created(self, name: str) -> Model:
        self.models[name] = model = Model()
        return model

    def is_lost(self, handle: Handle) -> bool:
        """Return whether an object finds its filter lost; else go on with what it follows to."""
        now = self.models.get(handle.name)
        if now is handle.model:
            return False
        if now is not None and handle.model in now.before:
            handle.model = now
            return False
        if handle.follows:
            handle.model = now if now is not None else self.created(handle.name)
            return False
        return True

    def use(self, handle: Handle) -> bool:
        """Return whether an object is to be used; one that lost its filter says so first."""
        if not self.is_lost(handle):
            return True
        self.what["lost"] += 1
        made, item = handle.made, self.chance.choice(ITEMS)
        notice = [made.count, made.info]
        notice += [lambda: made.exists(item), lambda: made.exists_many([item])]
        if self.kind != "plain":
            notice += [
                lambda: made.discard(item),
                lambda: made.claim(item, renew=False),
                lambda: made.run_script("return 1", [item], (), ()),
            ]
        if handle.name not in self.models:
            notice += [lambda: made.add(item), lambda: made.update([item])]
        for act in self.chance.sample(notice, 2):
            with pytest.raises(FilterLostError):
                act()
        self.handles.remove(handle)
        if handle.name in self.models:
            made.reattach()
            handle.model = self.models[handle.name]
            handle.owed = set()
            self.wind(handle)
            self.handles.append(handle)
            return True
        return False

    # -- steps on items --------------------------------------------------------------------------

    def add(self, handle: Handle) -> None:
        for item in self.some(3):
            self.compare(handle, [item], [handle.made.add(item)])

    def add_many(self, handle: Handle) -> None:
        items = self.some()
        routes = ("auto", "items", "bitmap") if self.kind == "bitmap" else ("auto",)
        answers = handle.made.add_many(items, route=self.chance.choice(routes))
        self.compare(handle, items, answers)

    def compare(self, handle: Handle, items: list[str], answers: list[bool]) -> None:
        """Hold the answers to adds against the model; what is owed may be new."""
        expected = self.added(handle, items)
        for item, answer, is_new in zip(items, answers, expected, strict=True):
            assert answer is is_new or (answer and item in handle.owed), item
            handle.owed.discard(item)

    def update(self, handle: Handle) -> None:
        items = self.some()
        handle.made.update(items)
        self.added(handle, items)

    def script(self, handle: Handle) -> None:
        items = list(dict.fromkeys(self.some()))
        answers = handle.made.run_script(SCRIPT, items, (), [""] * len(items))
        self.compare(handle, items, [answer == 1 for answer in answers])

    def exists(self, handle: Handle) -> None:
        for item in self.some(4):
            assert [handle.made.exists(item)] == self.there(handle.model, [item])

    def exists_many(self, handle: Handle) -> None:
        items = self.some(12)
        assert handle.made.exists_many(items) == self.there(handle.model, items)

    def discard(self, handle: Handle) -> None:
        items = self.some()
        expected = []
        for item in items:
            expected.append(self.is_there(handle.model, item))
            handle.model.epochs.pop(item, None)
            handle.owed.discard(item)
        if len(items) == 1:
            assert [handle.made.discard(items[0])] == expected
        else:
            assert handle.made.discard_many(items) == expected
        self.what["discarded"] += sum(expected)
        # By this object it is known at once.
        assert handle.made.exists_many(items) == [False] * len(items)
        self.pass_staleness()

    # -- what goes wrong -------------------------------------------------------------------------

    def lose_reply(self, handle: Handle) -> None:
        """Lose a command of a call, or its reply; then see what is there, and go on from it."""
        name = self.chance.choice(CALLS[: 5 if self.kind != "plain" else 4])
        items = list(dict.fromkeys(self.some() if name in MANY else self.some()[:1]))
        before = self.there(handle.model, items)
        verdict = self.chance.choice(("before", "after"))
        lost = len(self.proxy.seen) + self.chance.choice((0, 0, 1, 2))
        self.proxy.judge = lambda _name, number: verdict if number == lost else "pass"
        answers: Any = None
        try:
            answers = getattr(handle.made, name)(items if name in MANY else items[0])
        except OutcomeUnknownError:
            assert handle.options["on_unknown"] == "raise" or name == "discard"
            assert not name.startswith("exists"), "a read is repeated"
            self.what["unknown"] += 1
        except redis.ConnectionError:
            self.what["not done"] += 1
        finally:
            self.proxy.judge = deliver
        is_lost = len(self.proxy.seen) > lost
        self.what[f"{verdict} {name}"] += is_lost
        with BloomFilter.open(handle.name, client=self.url) as fresh:
            there = fresh.exists_many(items)
        adds = name in ("add", "add_many", "update")
        asked = list(zip(items, before, there, strict=True))
        for item, was, now in asked:
            assert now is was or (now if adds else name == "discard"), item
        if answers is not None:
            answered = answers if isinstance(answers, list) else [answers]
            self.judge_answers(handle, name, asked, answered)
        if adds and handle.refresh:
            # Whether what was there before was marked once more is not known: it is now.
            handle.made.update([item for item, _, now in asked if now])
        for item, _, now in asked:
            self.take_found(handle, item, now, adds)
        self.pass_staleness()

    def judge_answers(
        self, handle: Handle, name: str, asked: Sequence[tuple[str, bool, bool]], answers: Any
    ) -> None:
        """Hold the answers to a call that lost a reply against what was there, and is.

        With on_unknown="new" an item of which that is not known counts as new.
        """
        is_new = handle.options["on_unknown"] == "new"
        for (item, was, now), answer in zip(asked, answers, strict=True):
            if name.startswith("exists"):
                assert answer is now, item
            elif name.startswith("add"):
                assert now or (answer and is_new), f"{item} was answered and is not there"
                assert answer is not was or (answer and (is_new or item in handle.owed)), item
            elif name == "discard":
                assert answer is was, item
                assert not now, item

    def take_found(self, handle: Handle, item: str, now: bool, adds: bool) -> None:
        """Let the model go on from what was found after a lost reply."""
        if not now:
            handle.model.epochs.pop(item, None)
        elif adds:
            if not self.is_there(handle.model, item) or handle.refresh:
                handle.model.epochs[item] = self.epoch
            handle.owed.add(item)

    def flush(self, _handle: Handle) -> None:
        self.client.flushall()
        for name in list(self.models):
            self.replace(name, None)

    def claim(self, handle: Handle) -> None:
        """Claim an item and commit it, and maybe one that nobody commits."""
        item = self.chance.choice(ITEMS)
        is_there = self.is_there(handle.model, item)
        with handle.made.claim(item, renew=False) as claim:
            assert claim.state is (ClaimState.SEEN if is_there else ClaimState.NEW), item
        if not is_there:
            handle.model.epochs[item] = self.epoch
        if self.chance.random() < 0.3:
            assert handle.made.claim(UNDONE, LONGER, renew=False).state is not ClaimState.SEEN
            handle.model.is_claimed = True

    # -- steps on filters ------------------------------------------------------------------------

    def replace(self, name: str, model: Model | None) -> None:
        """Let a name have another filter, or none."""
        self.models.pop(name, None)
        if model is not None:
            self.models[name] = model
        self.pass_staleness()

    def free(self) -> str:
        return self.chance.choice([name for name in NAMES if name not in self.models])

    def clear(self, handle: Handle) -> None:
        handle.made.clear()
        self.replace(handle.name, Model())
        handle.model = self.models[handle.name]

    def delete(self, handle: Handle) -> None:
        assert handle.made.delete() is True
        self.replace(handle.name, None)

    def expire(self, handle: Handle) -> None:
        seconds = self.chance.choice((0.5, 300.5, 2500.5))
        handle.made.expire(seconds)
        handle.model.expires = self.now + seconds

    def persist(self, handle: Handle) -> None:
        left = handle.made.ttl()
        if handle.model.expires is None:
            assert left is None
        else:
            assert abs(left - (handle.model.expires - self.now)) < 0.5
        handle.made.persist()
        handle.model.expires = None

    def copy(self, handle: Handle) -> None:
        if len(self.models) == len(NAMES):
            # The object that is used has made another filter anew.
            return
        name = self.free()
        way = self.chance.choice(("copy", "copy_to", "file"))
        if way == "copy":
            handle.made.copy(name)
        elif way == "copy_to":
            handle.made.copy_to(self.async_client if handle.is_async else self.url, name)
        else:
            self.through_file(handle, name)
        self.replace(name, handle.model.copied())

    def unite(self, handle: Handle) -> None:
        scripted = [one for one in self.handles if one.options["strategy"] in ("atomic", "lua")]
        others = [one for one in scripted if one.name != handle.name and not one.is_async
                  and self.models.get(one.name) is one.model]  # fmt: skip
        if others and handle in scripted:
            other = self.chance.choice(others)
            handle.made.update(other.made)
            handle.model.epochs |= other.model.epochs
            self.what["united"] += 1

    def through_file(self, handle: Handle, name: str, **options: bool) -> None:
        path = self.folder / "exported"
        handle.made.export_file(path)
        BloomFilter.import_file(name, path, client=self.url, **options).close()
        path.unlink()

    def put_in_place(self, handle: Handle) -> None:
        """Put a copy in the place of a filter, maybe of the same one."""
        name = self.chance.choice(sorted(self.models))
        self.through_file(handle, name, replace=True)
        self.replace(name, handle.model.copied())

    def rename(self, handle: Handle) -> None:
        if len(self.models) == len(NAMES):
            return
        name = self.free()
        model = handle.model
        handle.made.rename(name)
        del self.models[handle.name]
        # A generation of its own: renamed back, it is lost to the objects of before.
        self.replace(name, Model(model.epochs, model.is_claimed, model.expires))

    def rebuild(self, handle: Handle) -> None:
        model = handle.model
        there = [item for item in model.epochs if self.is_there(model, item)]
        handle.made.rebuild(there, late=list, shards=self.shape["shards"])
        new = Model(dict(model.epochs), before=(*model.before, model))
        self.replace(handle.name, new)
        handle.model = new

    # -- the walk --------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare all filters with their models, by new objects, and all keys with both."""
        self.look_at_keys()
        for name in NAMES:
            model = self.models.get(name)
            if model is None:
                with pytest.raises(FilterNotFoundError):
                    BloomFilter.open(name, client=self.url)
                continue
            with BloomFilter.open(name, client=self.url) as made:
                items = [*ITEMS, "never"]
                found = dict(zip(items, made.exists_many(items), strict=True))
                assert found == dict(zip(items, self.there(model, items), strict=True)), name
                opened = [claim.item for claim in made.open_claims()]
                assert opened == [UNDONE] * model.is_claimed, name

    def look_at_keys(self) -> None:
        """Compare the time-outs of all keys with that of their filter."""
        for key in self.client.scan_iter("bloomlock:*"):
            name = next(name for name in NAMES if name in key.decode())
            left_ms, model = self.client.pttl(key), self.models.get(name)
            if key.endswith(b":fence") or left_ms == -2:
                continue
            if model is None:
                until = self.left_until.get(name, -math.inf)
                assert self.now < until, f"{key} is left"
            elif model.expires is not None:
                left = model.expires - self.now
                assert -500 < left_ms - 1000 * left <= 1000 * LATER, f"{key}: {left_ms}, {left}"
            else:
                assert left_ms < 0, f"{key}: {left_ms}"

    def run(self, steps: int) -> None:
        with asyncio.Runner() as self.runner, Proxy(self.url, handshake=False) as self.proxy:
            self.proxied = self.proxy.client()
            self.async_client = redis.asyncio.Redis.from_url(self.url)
            try:
                self._walk(steps)
            finally:
                self.runner.run(self.async_client.aclose())
                for handle in self.handles:
                    handle.made.close()
                self.proxied.close()

    def _walk(self, steps: int) -> None:
        often, seldom = self.steps()
        makes_nothing = {
            self.clear, self.delete, self.rename, self.copy, self.put_in_place, self.unite,
            self.lose_reply,
        }  # fmt: skip
        self.set_clock(0)
        for number in range(steps):
            handle = self.pick()
            act = self.chance.choice(seldom if self.chance.random() < 0.15 else often)
            self.done.append(f"{act.__name__} {handle.name} {handle.options}")
            if act in (self.later, self.flush) or (self.may(act, handle) and self.use(handle)):
                if act in makes_nothing:
                    handle.made.exists("never")
                act(handle)
                self.what[act.__name__] += 1
            if number % 4 == 3:
                self.look()

    def steps(self) -> tuple[Sequence[Callable[[Handle], None]], ...]:
        """Return what is done often, and what seldom."""
        often = [self.add, self.add_many, self.update, self.exists, self.exists_many, self.later]
        seldom = [
            self.clear, self.delete, self.expire, self.expire, self.persist, self.copy, self.copy,
            self.put_in_place, self.rename, self.flush,
        ]  # fmt: skip
        often += [self.lose_reply]
        # So often that slices are used again in a round.
        often += [self.later] * 8 * (self.kind == "window")
        if self.kind == "plain":
            return often, [*seldom, self.unite, self.unite]
        often += [self.script, self.discard, self.discard, self.claim]
        return often, [*seldom, self.rebuild]

    def may(self, act: Callable[[Handle], None], handle: Handle) -> bool:
        if act == self.lose_reply:
            # A lock whose holder was cut off is in the way for the rest of its lease.
            return not handle.is_async and handle.options["strategy"] != "lock"
        if act == self.unite:
            return not handle.is_async and handle.options["strategy"] in STRATEGIES["bitmap"]
        if act in (self.copy, self.rename):
            return len(self.models) < len(NAMES)
        return act != self.rebuild or self.kind != "window"

    def pick(self) -> Handle:
        name = self.chance.choice(NAMES[:2] if self.chance.random() < 0.8 else NAMES)
        there = [handle for handle in self.handles if handle.name == name]
        if len(there) < OBJECTS and (not there or self.chance.random() < 0.2):
            self.done.append(f"attach to {name}")
            return self.attach(name)
        handle = self.chance.choice(there)
        if len(there) == OBJECTS and self.chance.random() < 0.1:
            self.handles.remove(handle)
            handle.made.close()
            return self.pick()
        return handle
