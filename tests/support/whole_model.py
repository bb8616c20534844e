"""A randomized model: clients add while filters are combined, rebuilt, moved, cleared and expire.

Workers add to filters by name and note, for each item, in which generation it was answered. A
conductor changes the filters as wholes, one change after the other, and derives for each new
generation what must be in it and what may be. When all rest it is compared with what is there:

    lost       an item that must be there is not
    invented   an item is there that nothing can have brought there
    two        two workers were answered "new" for one item in one generation
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import redis
import redis.asyncio
import servers
from proxy import Proxy

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ClaimState,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
    OutcomeUnknownError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from redis.cluster import RedisCluster

NAMES = ("a", "b", "c", "d")
WORKERS = 3
ITEMS = 3000
CAPACITY = 12_000
ROUNDS = 5
TURNS = 20
ROOM = 0.7
"""How often a name is made free."""
ANSWERS_PER_TURN = 300
CHANGES = (
    "union_update",
    "intersection_update",
    "union",
    "intersection",
    "copy",
    "file",
    "copy_to",
    "rename",
    "rename",
    "rebuild",
    "clear",
    "expire",
)
KINDS = {
    "bitmap": {},
    "window": {"window": 86_400.0},
    "growing": {"capacity": 100, "on_full": "grow"},
}
"""By kind what is unlike a filter of one bitmap; what a kind cannot do it refuses."""

STRATEGIES = {
    "bitmap": ("atomic", "lua", "transaction"),
    "window": ("atomic",),
    "growing": ("atomic", "lua"),
}
LOSSES = 0.01
"""Part of the commands of the workers of which they, or their replies, are lost, in some rounds."""

WAYS = {"add_many": 10, "add": 4, "update": 2, "script": 2, "claim": 4, "together": 1}
"""How workers add, and how often."""

SCRIPT = "local new = {} for i = 1, #ARGV do new[i] = add(i) and 1 or 0 end return new"

UNDER_WAY = 10**9
"""Ticks that are later than all others: of an item of which nobody knows yet when it is added."""

LOST = (FilterNotFoundError, FilterLostError, FilterMismatchError)
"""What is raised where a filter is not there, or not the one that was opened."""

NEVER = 10**12
"""The tick at which an operation ended of which it is not known what it did."""

Answers = tuple[list[str], list[bool]]


@dataclass
class Generation:
    """What is known of one generation of a filter.

    Attributes:
        born: The tick before which no item was added to it.
        name: That of the filter.
        must: Items that have to be there, from the generations it was made of.
        may: Items that may be there besides those added to it.
    """

    born: int
    name: str
    must: set[str] = field(default_factory=set)
    may: set[str] = field(default_factory=set)


@dataclass
class Origin:
    """What a generation has its volatile items from.

    Attributes:
        generation: The one it is a copy of.
        start: The tick before the copy.
        end: The one after it; None: the generation before ended with it.
    """

    generation: int
    start: int
    end: int | None


class Change(NamedTuple):
    """A volatile item was added, or forgotten.

    Attributes:
        start: The tick before that.
        end: The one after it.
        adds: Whether it is there from then on.
    """

    start: int
    end: int
    adds: bool


class Model:
    """Workers, and a conductor.

    Args:
        client: The URL of a server, or a client of a cluster.
        seed: Of all that is drawn.
        kind: Of the filters; see KINDS.
        folder: For files.
    """

    def __init__(self, client: str | RedisCluster, seed: str, kind: str, folder: Path) -> None:
        self.client = client
        self.kind = kind
        self.folder = folder
        self.random = random.Random(seed)
        self.shape = {"capacity": CAPACITY, "shards": self.random.choice((1, 3))} | KINDS[kind]
        if kind == "bitmap":
            self.shape["layout"] = self.random.choice(("classic", "blocked"))
        self.seed = seed
        self.ticks = itertools.count()
        self.generations: dict[int, Generation] = {}
        # By generation and item, the tick at which it was answered; who was answered "new".
        self.added: dict[int, dict[str, int]] = defaultdict(dict)
        self.winners: Counter[tuple[int, str]] = Counter()
        # By worker and item: another worker that is done with an item says nothing about this one.
        self.tried: dict[tuple[int, str], int] = {}
        self.answers = 0
        self.renamed: list[tuple[int, int]] = []
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.failures: list[BaseException] = []
        self.changes: Counter[str] = Counter()
        # By generation and item of a namespace of its own, whether it was added last or forgotten.
        self.forgets = self.random.random() < 0.5
        self.state: dict[int, dict[str, bool]] = defaultdict(dict)
        # By generation and item all that was done to it.
        self.history: dict[int, dict[str, list[Change]]] = defaultdict(lambda: defaultdict(list))
        self.origins: dict[int, Origin] = {}
        # By name and item when an add met another generation last: it may have set bits there.
        self.strays: dict[tuple[str, str], int] = {}
        # Generations that got what is in another filter, volatile items too.
        self.united: set[int] = set()
        self.inherited = 0
        self.forgotten = 0
        self.loses = self.random.random() < 0.4 and isinstance(client, str)
        self.lost = 0

    def make(self, name: str) -> BloomFilter:
        return BloomFilter(name, error_rate=1e-9, client=self.client, **self.shape)

    def open(self, name: str, **options: object) -> BloomFilter | None:
        with contextlib.suppress(*LOST, redis.ConnectionError):
            return BloomFilter.open(name, **{"client": self.client} | options)
        return None

    def options(self, rng: random.Random) -> dict[str, object]:
        """Return what an object of a worker may have, for a filter of this kind."""
        options = {"strategy": rng.choice(STRATEGIES[self.kind])}
        if rng.random() < 0.5:
            options["near_cache"] = 200
        return options

    # -- workers ---------------------------------------------------------------------------------

    def work(self, number: int) -> None:
        try:
            self._work(number, random.Random(f"{self.seed} worker {number}"))
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self.failures.append(error)

    def _work(self, number: int, rng: random.Random) -> None:
        if not self.loses:
            self._add_all_the_time(number, rng, self.client)
            return

        def judge(_name: str, _number: int) -> str:
            return rng.choice(("before", "after")) if rng.random() < LOSSES else "pass"

        with (
            Proxy(self.client, judge, handshake=False) as proxy,
            proxy.client() as client,
        ):
            self._add_all_the_time(number, rng, client)
            self.lost += proxy.lost

    def _add_all_the_time(
        self, number: int, rng: random.Random, client: str | redis.Redis | RedisCluster
    ) -> None:
        opened: dict[str, BloomFilter] = {}
        while not self.over.is_set():
            name = rng.choice(NAMES)
            if name in opened:
                made = opened[name]
            else:
                made = self.open(name, client=client, **self.options(rng))
            if made is None:
                continue
            opened[name] = made
            way = rng.choices(list(WAYS), WAYS.values())[0]
            items = [f"{rng.randrange(ITEMS)}" for _ in range(rng.choice((1, 1, 10, 60)))]
            if way == "claim":
                items = [f"claimed {item}" for item in dict.fromkeys(items)]
            # (A lost update may have set bits in a generation that comes later.)
            self._try(number, items, UNDER_WAY)
            before = made.generation
            try:
                done, answers = getattr(self, f"_{way}")(made, items)
            except LOST:
                opened.pop(name).close()
                continue
            except (OutcomeUnknownError, redis.ConnectionError):
                continue
            if made.generation == before:
                self._note(before, done, answers)
                self._look(made, before, rng)
            self._try(number, items, 0)

    def _add_many(self, made: BloomFilter, items: list[str]) -> Answers:
        return items, made.add_many(items)

    def _add(self, made: BloomFilter, items: list[str]) -> Answers:
        return items[:1], [made.add(items[0])]

    def _update(self, made: BloomFilter, items: list[str]) -> Answers:
        made.update(items)
        return items, [False] * len(items)

    def _script(self, made: BloomFilter, items: list[str]) -> Answers:
        if made.shards > 1 and not isinstance(self.client, str):
            # A script reaches one slot only.
            return self._add_many(made, items)
        answers = made.run_script(SCRIPT, items[:20], (), [""] * len(items[:20]))
        return items[:20], [answer == 1 for answer in answers]

    def _claim(self, made: BloomFilter, items: list[str]) -> Answers:
        claims = made.claim_many(items, renew=False)
        new = [claim for claim in claims if claim]
        done = made.commit_many(new)
        mine = [claim.item for claim, is_in in zip(new, done, strict=True) if is_in]
        seen = [claim.item for claim in claims if claim.state is ClaimState.SEEN]
        return [*mine, *seen], [True] * len(mine) + [False] * len(seen)

    def _together(self, made: BloomFilter, items: list[str]) -> Answers:
        """Add by single calls of an asyncio object, which go out together."""

        async def add() -> list[bool]:
            async with (
                self._async_client() as client,
                await AsyncBloomFilter.open(made.name, client=client) as opened,
            ):
                if opened.generation != made.generation:
                    raise FilterLostError(made.name)
                answers = await asyncio.gather(*map(opened.add, items))
                if opened.generation != made.generation:
                    raise FilterLostError(made.name)
                return answers

        return items, asyncio.run(add())

    @contextlib.asynccontextmanager
    async def _async_client(self) -> AsyncIterator[str | redis.asyncio.RedisCluster]:
        if isinstance(self.client, str):
            yield self.client
            return
        node = self.client.get_random_node()
        client = redis.asyncio.RedisCluster(host=node.host, port=node.port)
        try:
            yield client
        finally:
            await client.aclose()

    def _look(self, made: BloomFilter, generation: int, rng: random.Random) -> None:
        """Look for some of what was answered in a generation, which has to be there."""
        with self.lock:
            added = list(self.added[generation])
        some = rng.sample(added, min(20, len(added)))
        with contextlib.suppress(*LOST, redis.ConnectionError):
            there = made.exists_many(some)
            if made.generation == generation and not all(there):
                raise AssertionError(f"lost of {made.name}: {dict(zip(some, there, strict=True))}")

    def forget(self) -> None:
        try:
            self._forget(random.Random(f"{self.seed} forget"))
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self.failures.append(error)

    def _forget(self, rng: random.Random) -> None:
        """Add and discard some items, which no other worker touches."""
        opened: dict[str, BloomFilter] = {}
        while not self.over.is_set():
            name = rng.choice(NAMES)
            made = opened[name] if name in opened else self.open(name)
            if made is None:
                continue
            opened[name] = made
            item, adds = f"volatile {rng.randrange(30)}", rng.random() < 0.5
            before, start = made.generation, next(self.ticks)
            try:
                answer = made.add(item) if adds else made.discard(item)
            except LOST:
                opened.pop(name).close()
                self.state[before].pop(item, None)
                self.history[before][item].append(Change(start, NEVER, adds))
                if adds:
                    self.strays[name, item] = next(self.ticks)
                continue
            state = self.state[before]
            if made.generation != before:
                state.pop(item, None)
                for generation in (before, made.generation):
                    self.history[generation][item].append(Change(start, NEVER, adds))
                continue
            self.history[before][item].append(Change(start, next(self.ticks), adds))
            is_other = item in state and answer is not (adds is not state[item])
            if is_other and before not in self.united:
                raise AssertionError(f"{item}: {answer}, but it was {state[item]} in {before}")
            state[item] = adds
            self.forgotten += answer and not adds

    def _try(self, number: int, items: list[str], later: int) -> None:
        with self.lock:
            for item in items:
                self.tried[number, item] = next(self.ticks) + later

    def _note(self, generation: int, items: list[str], answers: list[bool]) -> None:
        with self.lock:
            for item, is_new in zip(items, answers, strict=True):
                self.added[generation].setdefault(item, next(self.ticks))
                self.answers += 1
                if is_new:
                    self.winners[generation, item] += 1

    def volatile(self, generation: int) -> dict[str, bool]:
        """Return which volatile items are known to be there in a generation, or not."""
        if generation in self.united:
            return {}
        known = self._inherited(generation)
        for item, changes in self.history[generation].items():
            known.pop(item, None)
            if all(change.end < NEVER for change in changes):
                known[item] = changes[-1].adds
        return self._without_strays(known, generation)

    def _inherited(self, generation: int) -> dict[str, bool]:
        """Return the same for what a generation began with."""
        origin = self.origins.get(generation)
        if origin is None or origin.generation in self.united:
            return {}
        if origin.end is None:
            return self.volatile(origin.generation)
        known = self._inherited(origin.generation)
        for item, changes in self.history[origin.generation].items():
            before = [change for change in changes if change.start < origin.end]
            if before:
                known.pop(item, None)
                if all(change.end < origin.start for change in before):
                    known[item] = before[-1].adds
        return self._without_strays(known, origin.generation)

    def _without_strays(self, known: dict[str, bool], generation: int) -> dict[str, bool]:
        here = self.generations[generation]
        strays = {
            item for (name, item), at in self.strays.items() if name == here.name and at > here.born
        }
        return {item: is_in for item, is_in in known.items() if item not in strays}

    # -- the conductor ---------------------------------------------------------------------------

    def known(self, generation: int, until: int) -> set[str]:
        """Return what must have been in a generation at a tick."""
        with self.lock:
            there = {item for item, tick in self.added[generation].items() if tick < until}
        return there | self.generations[generation].must

    def possible(self, generation: int) -> set[str]:
        """Return what may be in a generation."""
        one = self.generations[generation]
        with self.lock:
            tried = {item for (_, item), tick in self.tried.items() if tick >= one.born}
        return one.must | one.may | tried

    def change(self) -> None:
        """Change a filter, or two, as wholes."""
        choose = self.random.choice
        change = choose(CHANGES)
        name, other, free = self.random.sample(NAMES, 3)
        one, two = self.open(name), self.open(other)
        start = next(self.ticks)
        if one is None:
            with self.make(name) as made:
                self.generations[made.generation] = Generation(start, name)
            return
        before = one.generation
        if self.random.random() < ROOM and (there := self.open(free)) is not None:
            there.delete()
        theirs = two.generation if two is not None else None
        with contextlib.suppress(ConfigurationError):
            made = self._carry_out(change, one, two, free)
            if made is not None:
                self._derive(change, made, before, theirs, start)
                self.changes[change] += 1

    def _carry_out(
        self, change: str, one: BloomFilter, two: BloomFilter | None, free: str
    ) -> BloomFilter | None:
        if change in ("union_update", "intersection_update"):
            if two is None:
                return None
            if change == "intersection_update":
                one.intersection_update(two)
            else:
                with self._uniting(one.generation):
                    one.union_update(two)
            return one
        if change in ("union", "intersection"):
            return None if two is None else getattr(one, change)(two, free)
        if change in ("copy", "rename"):
            return getattr(one, change)(free)
        return getattr(self, f"_{change}")(one, free)

    @contextlib.contextmanager
    def _uniting(self, generation: int) -> Iterator[None]:
        """Judge no volatile items of a generation from now on, unless the union is refused.

        One that was not there when it was discarded comes with the other filter.
        """
        is_first = generation not in self.united
        self.united.add(generation)
        try:
            yield
        except ConfigurationError:
            if is_first:
                self.united.remove(generation)
            raise

    def _copy_to(self, one: BloomFilter, free: str) -> BloomFilter:
        return one.copy_to(self.client, free)

    def _file(self, one: BloomFilter, free: str) -> BloomFilter:
        one.export_file(self.folder / free)
        return BloomFilter.import_file(free, self.folder / free, client=self.client)

    def _clear(self, one: BloomFilter, _free: str) -> BloomFilter:
        one.clear()
        return one

    def _rebuild(self, one: BloomFilter, _free: str) -> BloomFilter:
        # What is tried is noted before it is added, so it may stand for the source.
        items = self.known(one.generation, next(self.ticks))
        one.rebuild(items, late=self._all_tried, shards=one.shards)
        return one

    def _all_tried(self) -> list[str]:
        with self.lock:
            return list({item for _, item in self.tried})

    def _expire(self, one: BloomFilter, _free: str) -> BloomFilter:
        one.expire(0.001)
        servers.wait_until(lambda: self.open(one.name) is None)
        return self.make(one.name)

    def _derive(
        self, change: str, made: BloomFilter, before: int, theirs: int | None, start: int
    ) -> None:
        mine = self.known(before, start)
        other = self.known(theirs, start) if theirs is not None else set()
        may_mine, may_other = self.possible(before), set()
        if theirs is not None:
            may_other = self.possible(theirs)
        if change == "union_update":
            known = self.generations[before]
            known.must |= other
            known.may |= may_other
            return
        new = self.generations[made.generation] = Generation(start, made.name)
        if change == "union":
            new.must, new.may = mine | other, may_mine | may_other
        elif change in ("intersection", "intersection_update"):
            new.must, new.may = mine & other, may_mine & may_other
        elif change in ("copy", "copy_to", "file"):
            new.must, new.may = mine, may_mine
            self.origins[made.generation] = Origin(before, start, next(self.ticks))
        elif change in ("rename", "rebuild"):
            # All that was answered in the generation before, whenever: no answer came after.
            self.renamed.append((before, made.generation))
            new.must, new.may = mine, may_mine
        if change == "rename":
            self.origins[made.generation] = Origin(before, start, None)
        if change == "rebuild":
            with self.lock:
                new.may = may_mine | {item for _, item in self.tried}

    def __str__(self) -> str:
        return f"seed {self.seed!r}, {self.kind}: {dict(self.changes)}"

    def run(self) -> list[str]:
        for name in NAMES[:3]:
            with self.make(name) as made:
                self.generations[made.generation] = Generation(0, name)
        workers = [threading.Thread(target=self.work, args=(n,)) for n in range(WORKERS)]
        workers += [threading.Thread(target=self.forget)] * self.forgets
        for worker in workers:
            worker.start()
        try:
            for turn in range(TURNS):
                self.change()
                enough = (turn + 1) * ANSWERS_PER_TURN
                servers.wait_until(lambda enough=enough: self.failures or self.answers >= enough)
        finally:
            self.over.set()
            for worker in workers:
                worker.join()
        if self.failures:
            raise self.failures[0]
        return list(self._violations())

    def _violations(self):
        for before, after in self.renamed:
            self.generations[after].must |= set(self.added[before])
        for (generation, item), number in self.winners.items():
            if number > 1:
                yield f"two: {item} in {generation}"
        every = [str(number) for number in range(ITEMS)]
        every += [f"claimed {item}" for item in every]
        for name in NAMES:
            made = self.open(name)
            if made is None:
                continue
            known = self.generations[made.generation]
            there = {i for i, yes in zip(every, made.exists_many(every), strict=True) if yes}
            must = known.must | set(self.added[made.generation])
            for item in sorted(must - there):
                yield f"lost: {item} of {name}"
            for item in sorted(there - must - self.possible(made.generation)):
                yield f"invented: {item} in {name}"
            self.inherited += len(self._inherited(made.generation))
            for item, is_there in self.volatile(made.generation).items():
                if made.exists(item) is not is_there:
                    yield f"{'lost' if is_there else 'not forgotten'}: {item} of {name}"
