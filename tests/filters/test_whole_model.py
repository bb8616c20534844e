"""A randomized model: clients add while filters are combined, rebuilt, moved, cleared and expire.

Workers add to filters by name and note, for each item, in which generation it was answered. A
conductor changes the filters as wholes, one change after the other, and derives for each new
generation what must be in it and what may be. When all rest it is compared with what is there:

    lost       an item that must be there is not
    invented   an item is there that nothing can have brought there
    two        two workers were answered "new" for one item in one generation
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import redis
import servers

from bloomlock import (
    BloomFilter,
    BloomlockError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
)

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("a", "b", "c", "d")
WORKERS = 3
ITEMS = 3000
CAPACITY = 5000
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


@dataclass
class Generation:
    """What is known of one generation of a filter.

    Attributes:
        born: The tick before which no item was added to it.
        must: Items that have to be there, from the generations it was made of.
        may: Items that may be there besides those added to it.
    """

    born: int
    must: set[str] = field(default_factory=set)
    may: set[str] = field(default_factory=set)


class Model:
    def __init__(self, url: str, seed: str, kind: str, folder: Path) -> None:
        self.url = url
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
        self.tried: dict[str, int] = {}
        self.answers = 0
        self.renamed: list[tuple[int, int]] = []
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.failures: list[BaseException] = []
        self.changes: Counter[str] = Counter()

    def make(self, name: str) -> BloomFilter:
        return BloomFilter(name, error_rate=1e-9, client=self.url, **self.shape)

    def open(self, name: str) -> BloomFilter | None:
        with contextlib.suppress(FilterNotFoundError, FilterLostError, FilterMismatchError):
            return BloomFilter.open(name, client=self.url)
        return None

    # -- workers ---------------------------------------------------------------------------------

    def work(self, number: int) -> None:
        try:
            self._work(random.Random(f"{self.seed} worker {number}"))
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self.failures.append(error)

    def _work(self, rng: random.Random) -> None:
        opened: dict[str, BloomFilter] = {}
        while not self.over.is_set():
            name = rng.choice(NAMES)
            made = opened[name] if name in opened else self.open(name)
            if made is None:
                continue
            opened[name] = made
            items = [f"{rng.randrange(ITEMS)}" for _ in range(rng.choice((1, 1, 10, 60)))]
            # (A lost update may have set bits in a generation that comes later.)
            self._try(items, 10**9)
            before = made.generation
            try:
                answers = made.add_many(items)
            except (FilterLostError, FilterMismatchError):
                opened.pop(name).close()
                continue
            if made.generation == before:
                self._note(before, items, answers)
            self._try(items, 0)

    def _try(self, items: list[str], later: int) -> None:
        with self.lock:
            for item in items:
                self.tried[item] = next(self.ticks) + later

    def _note(self, generation: int, items: list[str], answers: list[bool]) -> None:
        with self.lock:
            for item, is_new in zip(items, answers, strict=True):
                self.added[generation].setdefault(item, next(self.ticks))
                self.answers += 1
                if is_new:
                    self.winners[generation, item] += 1

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
            tried = {item for item, tick in self.tried.items() if tick >= one.born}
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
                self.generations[made.generation] = Generation(start)
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
            getattr(one, change)(two)
            return one
        if change in ("union", "intersection"):
            return None if two is None else getattr(one, change)(two, free)
        if change in ("copy", "rename"):
            return getattr(one, change)(free)
        return getattr(self, f"_{change}")(one, free)

    def _copy_to(self, one: BloomFilter, free: str) -> BloomFilter:
        return one.copy_to(self.url, free)

    def _file(self, one: BloomFilter, free: str) -> BloomFilter:
        one.export_file(self.folder / free)
        return BloomFilter.import_file(free, self.folder / free, client=self.url)

    def _clear(self, one: BloomFilter, _free: str) -> BloomFilter:
        one.clear()
        return one

    def _rebuild(self, one: BloomFilter, _free: str) -> BloomFilter:
        # What is tried is noted before it is added, so it may stand for the source.
        items = self.known(one.generation, next(self.ticks))
        one.rebuild(items, late=lambda: list(self.tried), shards=one.shards)
        return one

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
        new = self.generations[made.generation] = Generation(start)
        if change == "union":
            new.must, new.may = mine | other, may_mine | may_other
        elif change in ("intersection", "intersection_update"):
            new.must, new.may = mine & other, may_mine & may_other
        elif change in ("copy", "copy_to", "file"):
            new.must, new.may = mine, may_mine
        elif change in ("rename", "rebuild"):
            # All that was answered in the generation before, whenever: no answer came after.
            self.renamed.append((before, made.generation))
            new.must, new.may = mine, may_mine
        if change == "rebuild":
            with self.lock:
                new.may = may_mine | set(self.tried)

    def run(self) -> list[str]:
        for name in NAMES[:3]:
            with self.make(name) as made:
                self.generations[made.generation] = Generation(0)
        workers = [threading.Thread(target=self.work, args=(n,)) for n in range(WORKERS)]
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


@pytest.mark.parametrize("kind", KINDS)
def test_no_item_is_lost_or_invented(r, valkey, tmp_path, kind):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    changes: Counter[str] = Counter()
    answers = 0
    for number in range(ROUNDS):
        r.flushall()
        model = Model(valkey, f"{seed} {number}", kind, tmp_path)
        try:
            violations = model.run()
        except BloomlockError as error:
            pytest.fail(f"seed {seed} {number}: {error!r}")
        assert violations == [], f"seed {seed} {number}: {model.changes}"
        changes += model.changes
        answers += model.answers
        left = [key for key in r.scan_iter("*:next:*") if r.ttl(key) < 0]
        assert left == []
        assert all(r.type(key) != b"string" or r.ttl(key) >= -1 for key in r.scan_iter())
    print(f"{answers} answers: {dict(changes)}")
    assert sum(changes.values()) > ROUNDS
    with contextlib.suppress(redis.RedisError):
        r.flushall()
