"""A randomized model of a filter that many clients use at once, judged by interval.

A round is one filter of a random shape and some objects on it, of random strategies and policies,
used by several threads or tasks, while somebody clears, deletes or flushes; in some rounds they
forget items as well. Every call is recorded
with the moment it began and the moment it ended, and so is every reset. Resets come one after the
other, so they divide time into epochs, and a call that overlaps none belongs to one epoch for
certain, any other to a range of them. Each answer about an item is then judged:

    denied       "not there", although an add of it had ended, in the same epoch for certain
    invented     "there" or "seen", although nobody can have added it in that epoch
    unreported   "seen", although no call was reported "new" or a definite "not known" for it
    two winners  "new" twice in one epoch, although nothing went wrong in it
    kept         "there" or "seen", although it was forgotten and nobody can have added it since
    forgotten    forgotten twice, although nobody can have added it in between
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
import redis.asyncio
from proxy import HANDSHAKE, Proxy, Verdict
from randomized import naming

from bloomlock import (
    AsyncBloomFilter,
    BatchError,
    BloomFilter,
    BloomlockError,
    FilterLostError,
    OutcomeUnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "model"
ERROR_RATE = 1e-9
STALENESS = 0.05
WORKERS = 4
OBJECTS = 3
ITEMS = 240
"""So few, or eight times as many; a false positive among them is out of the question."""
KINDS: dict[str, dict[str, Any]] = {
    "bitmap": {"capacity": 5000},
    "full": {"capacity": 100, "on_full": "raise"},
    "growing": {"capacity": 30, "on_full": "grow"},
    "window": {"capacity": 100_000, "window": 86_400.0},
}
STRATEGIES = {
    "bitmap": ("atomic", "lua", "transaction", "lock"),
    "full": ("atomic", "lua", "transaction", "lock"),
    "growing": ("atomic", "lua"),
    "window": ("atomic",),
}
"""By kind those that are exact."""
PATIENCE = 120.0
CALLS = 400
"""Of a round; a quarter with faults."""

NEW, SEEN, THERE, NOT_THERE = "new", "seen", "there", "not there"
ADDED = "added"
FORGOT, ABSENT, MAYBE_FORGOT = "forgot", "nothing to forget", "may have been forgotten"
NOT_KNOWN, LOST, NOT_DONE = "not known", "lost", "not done"


class Moment(NamedTuple):
    """A place in the order of all moments of the round, and the time."""

    tick: int
    time: float


class Answer(NamedTuple):
    """What one call said about one item."""

    start: Moment
    end: Moment
    number: int
    what: str


@dataclass
class Round:
    """One filter, those who use it, and what they were answered.

    Attributes:
        seed: Gives everything that is random.
    """

    seed: str
    faults: bool = False
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    resets: list[tuple[Moment, Moment]] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._ticks = itertools.count()
        choose = self.random.choice
        self.shards = choose((1, 3, 4))
        self.kind = choose(("bitmap", "bitmap", "full", "growing", "window"))
        self.shape = dict(KINDS[self.kind])
        if self.kind in ("bitmap", "full"):
            self.shape["layout"] = choose(("classic", "blocked"))
        self.pipeline = self.kind == "bitmap" and self.random.random() < 0.2
        strategies = [*STRATEGIES[self.kind], *(["pipeline"] if self.pipeline else [])]
        if self.faults:
            # A lock whose holder was cut off is in the way for the rest of its lease.
            strategies = [name for name in strategies if name != "lock"]
        # Where others add the same items, or nobody asks what is new, less can be told for certain.
        self.apart, self.updates = choose((True, False)), choose((True, False))
        self.items = choose((ITEMS, 8 * ITEMS))
        self.forgets = choose((True, False))
        # Through the proxy a look at the filter takes long, and comes between the steps of a reset.
        self.rest = 0.6 if self.faults else choose((0.05, 0.3))
        self.options = [
            {
                "strategy": choose(strategies),
                "on_lost": choose(("raise", "recreate")),
                "on_unknown": choose(("raise", "new")),
                "near_cache": choose((0, 0, 50)),
                "max_staleness": STALENESS,
            }
            for _ in range(OBJECTS)
        ]

    def __str__(self) -> str:
        objects = "; ".join(
            f"{one['strategy']} on_lost={one['on_lost']} on_unknown={one['on_unknown']} "
            f"near={one['near_cache']}"
            for one in self.options
        )
        return (
            f"seed {self.seed}: {self.shards} shards, {self.kind}, {self.shape}"
            f"{', forgets' * self.forgets}: {objects}"
        )

    def now(self) -> Moment:
        return Moment(next(self._ticks), time.monotonic())

    def make(self, kind: Any, number: int, client: Any) -> Any:
        return kind(
            NAME,
            error_rate=ERROR_RATE,
            client=client,
            shards=self.shards,
            **self.shape,
            **self.options[number],
        )

    def pick(self, rng: random.Random, number: int) -> tuple[str, list[str], dict[str, str]]:
        """Return the next call of an object: a method, items, options."""
        methods = ["add", "exists", "add_many", "add_many", "exists_many", "exists_many"]
        methods += ["update"] * self.updates + ["discard", "discard_many"] * self.forgets
        method = rng.choice(methods)
        if method in {"add", "exists", "discard"}:
            return method, [self.item(rng, number)], {}
        items = [self.item(rng, number) for _ in range(rng.choice((2, 10, 60, 150)))]
        if method == "discard_many":
            return method, items[:60], {}
        routes = ("auto", "items")
        if self.kind in ("bitmap", "full") and self.options[number]["strategy"] != "lock":
            routes = ("auto", "items", "script", "bitmap")
        return method, items, {"route": rng.choice(routes)}

    def item(self, rng: random.Random, number: int) -> str:
        """Return an item for an object to add or ask for."""
        return f"item {number if self.apart else 0}.{rng.randrange(self.items)}"

    def record(
        self, start: Moment, number: int, method: str, items: list[str], outcome: object
    ) -> None:
        """Note what a call said, or why it failed."""
        end = self.now()
        self.calls += 1
        for item, what in _said(method, items, outcome):
            self.answers[item].append(Answer(start, end, number, what))

    # -- judging ---------------------------------------------------------------------------------

    @property
    def judged(self) -> int:
        return sum(map(len, self.answers.values()))

    def violations(self) -> list[str]:
        """Judge every answer."""
        self._starts = [start.tick for start, _ in self.resets]
        self._ends = [end.tick for _, end in self.resets]
        self._times = [end.time for _, end in self.resets]
        found = []
        for item, answers in self.answers.items():
            found += [f"{item}: {wrong}" for wrong in self._judge(sorted(answers))]
        return found

    def _first(self, answer: Answer) -> int:
        """Return the first epoch the answer may be about."""
        first = bisect_left(self._ends, answer.start.tick)
        if self.options[answer.number]["near_cache"] and answer.what in {SEEN, THERE}:
            stale = bisect_left(self._times, answer.start.time - STALENESS)
            first = min(first, stale)
        return first

    def _last(self, answer: Answer) -> int:
        return bisect_left(self._starts, answer.end.tick)

    def epochs(self, answer: Answer) -> tuple[int, int]:
        """Return the first and the last epoch the answer may be about."""
        return self._first(answer), self._last(answer)

    def proves(self, answer: Answer) -> bool:
        """Tell whether the item is there once the call has ended."""
        options = self.options[answer.number]
        if self.faults and options["on_unknown"] == "new" and answer.what != ADDED:
            # Of concurrent calls through one object the first add may count as new although its
            # reply was lost; other adds are seen, and the item is there, because of it.
            return False
        if answer.what in {SEEN, THERE}:
            return not options["near_cache"]
        return answer.what in {NEW, ADDED}

    def _fade(self, one: Answer, other: Answer) -> bool:
        """Tell whether an answer "there" may be one that was kept since before a discard."""
        return (
            bool(self.options[one.number]["near_cache"])
            and one.number != other.number
            and other.end.time >= one.start.time - STALENESS
        )

    def _judge(self, answers: list[Answer]) -> list[str]:
        known = _Known.of(self, answers)
        found = []
        for one in answers:
            first, last = self._first(one), self._last(one)
            if (
                one.what in {NOT_THERE, ABSENT}
                and known.proven[last] < one.start.tick
                and not known.may_be_forgotten(one, last)
            ):
                found.append(f"denied: {one}")
            if one.what in {SEEN, THERE, FORGOT} and known.tried[first] > one.end.tick:
                found.append(f"invented: {one}")
            if one.what in {SEEN, THERE, FORGOT}:
                since = self._forgotten(one, known)
                if since is not None and not known.is_tried_between(since, one, first):
                    kind = "forgotten twice" if one.what == FORGOT else "kept"
                    found.append(f"{kind}: {one} after {since}")
            reported = known.reported[first] <= one.end.tick
            excused = self._owed_to_others(one, first, known.lost) or known.is_taken_back(one)
            if one.what == SEEN and not (reported or excused):
                found.append(f"unreported: {one}")
        if not self.faults:
            found += [
                f"two winners: {several}"
                for epoch, several in known.winners.items()
                if len(several) > 1 + len(known.discards) and epoch not in known.troubled
            ]
            found += known.winners_without_a_discard()
        if self.pipeline:
            # It promises neither.
            found = [wrong for wrong in found if not wrong.startswith(("unreported", "two"))]
        return found

    def _forgotten(self, one: Answer, known: _Known) -> Answer | None:
        """Return the last discard after which the item was not there, before an answer began."""
        ended = [
            other
            for other in known.discards
            if other.what in {FORGOT, ABSENT}
            and other.end.tick < one.start.tick
            and not (one.what != FORGOT and self._fade(one, other))
        ]
        return max(ended, default=None)

    @staticmethod
    def _owed_to_others(one: Answer, first: int, lost: list[tuple[Answer, int]]) -> bool:
        """Tell whether a call that lost the filter may have added it, and is to be repeated.

        Not one of the same object that had ended: that one's item is owed to this very call.
        """
        return any(
            last >= first
            and other.start.tick < one.end.tick
            and (other.number != one.number or other.end.tick > one.start.tick)
            for other, last in lost
        )


@dataclass
class _Known:
    """What the answers about one item say together.

    Attributes:
        proven: By epoch, when a call had ended after which the item is there for certain.
        tried: By epoch, when the first call began that may have added it then or later.
        reported: The same of calls that were reported "new", or are excused from it.
        lost: Calls that found the filter lost, and the last epoch they may be about.
        winners: By epoch, the calls that were reported "new" and are about it for certain.
        troubled: Epochs in which a call may have gone wrong.
        discards: Calls that forgot it, may have done so, or did not find it.
        adds: Calls that may have added it, and the last epoch they may be about.
        proofs: Calls after which it is there for certain, by the first epoch they may be about.
    """

    proven: list[float]
    tried: list[float]
    reported: list[float]
    lost: list[tuple[Answer, int]]
    winners: dict[int, list[Answer]]
    troubled: set[int]
    discards: list[Answer] = field(default_factory=list)
    adds: list[tuple[Answer, int]] = field(default_factory=list)
    proofs: dict[int, list[Answer]] = field(default_factory=lambda: defaultdict(list))

    def may_be_forgotten(self, one: Answer, epoch: int) -> bool:
        """Tell whether a discard may have come between the last proof and an answer."""
        last = max(proof for proof in self.proofs[epoch] if proof.end.tick < one.start.tick)
        return any(
            other is not one
            and other.what != ABSENT
            and other.start.tick < one.end.tick
            and _ends(other) > last.start.tick
            for other in self.discards
        )

    def is_tried_between(self, since: Answer, one: Answer, first: int) -> bool:
        """Tell whether a call may have added it after a discard, and before an answer ended."""
        return any(
            add.start.tick <= one.end.tick and _ends(add) > since.start.tick and last >= first
            for add, last in self.adds
        )

    def is_taken_back(self, one: Answer) -> bool:
        """Tell whether the same object forgets the item at the time of an answer.

        What is owed to it is not owed any more then, while the answer is on its way.
        """
        return any(
            other.number == one.number
            and other.what != ABSENT
            and other.start.tick < one.end.tick
            and _ends(other) > one.start.tick
            for other in self.discards
        )

    def winners_without_a_discard(self) -> list[str]:
        """Return what is wrong with winners of which one came after the other."""
        found = []
        for epoch, several in self.winners.items():
            for one, other in itertools.pairwise(sorted(several)):
                if epoch in self.troubled or one.end.tick >= other.start.tick:
                    continue
                if not any(
                    each.what != ABSENT
                    and each.start.tick < other.end.tick
                    and _ends(each) > one.start.tick
                    for each in self.discards
                ):
                    found.append(f"two winners: {one}, {other}")
        return found

    @classmethod
    def of(cls, round_: Round, answers: list[Answer]) -> _Known:
        epochs = len(round_.resets) + 1
        proven, tried, reported = ([math.inf] * epochs for _ in range(3))
        known = cls(proven, tried, reported, [], defaultdict(list), set())
        for one in answers:
            known.take(one, round_)
        for minima in (tried, reported):
            for epoch in range(epochs - 2, -1, -1):
                minima[epoch] = min(minima[epoch], minima[epoch + 1])
        return known

    def take(self, one: Answer, round_: Round) -> None:
        first, last = round_.epochs(one)
        if round_.proves(one):
            self.proven[first] = min(self.proven[first], one.end.tick)
            self.proofs[first].append(one)
        if one.what in {FORGOT, ABSENT, MAYBE_FORGOT}:
            self.discards.append(one)
        if one.what in {THERE, NOT_THERE, SEEN, FORGOT, ABSENT, MAYBE_FORGOT}:
            return
        self.adds.append((one, last))
        self.tried[last] = min(self.tried[last], one.start.tick)
        if one.what in {NEW, ADDED, NOT_KNOWN}:
            self.reported[last] = min(self.reported[last], one.start.tick)
        if one.what == LOST:
            self.lost.append((one, last))
        if one.what in {LOST, NOT_KNOWN, NOT_DONE}:
            self.troubled.update(range(first, last + 1))
        if one.what == NEW and first == last:
            self.winners[first].append(one)


def _ends(one: Answer) -> float:
    """Return until when a call may have had an effect."""
    return one.end.tick if one.what in {NEW, ADDED, FORGOT} else math.inf


def _said(method: str, items: list[str], outcome: object) -> list[tuple[str, str]]:
    """Return what a call said about each of its items."""
    write = method in {"add", "add_many", "update"}
    failed = MAYBE_FORGOT if method.startswith("discard") else _meaning(method, outcome)
    if method == "update":
        return [(item, failed) for item in dict.fromkeys(items)]
    answers = outcome if isinstance(outcome, list) else [outcome]
    if isinstance(outcome, BaseException):
        answers = list(getattr(outcome, "results", ())) if method.endswith("many") else []
    else:
        assert len(answers) == len(items)
    yes, no = (NEW, SEEN) if write else (THERE, NOT_THERE)
    if method.startswith("discard"):
        yes, no = FORGOT, ABSENT
    said: dict[str, str] = {}
    later: list[tuple[str, str]] = []
    for item, answer in itertools.zip_longest(items, answers):
        if answer is None and method.startswith("exists"):
            continue
        what = failed if answer is None else yes if answer else no
        if item not in said:
            said[item] = what
        elif what not in {said[item], SEEN, ABSENT}:
            # (A repeat is seen because of the first, or forgotten by it.)
            later.append((item, what))
    return [*said.items(), *later]


def _meaning(method: str, outcome: object) -> str:
    """Return what is to be thought of an item that a call did not answer."""
    if not isinstance(outcome, BaseException):
        return ADDED
    # An update reports nothing, and may be repeated.
    if method == "update" or isinstance(outcome, OutcomeUnknownError):
        return NOT_KNOWN
    return LOST if isinstance(outcome, FilterLostError) else NOT_DONE


# -- threads -------------------------------------------------------------------------------------


def run_threads(url: str, round_: Round, calls: int) -> None:
    """Carry out a round with threads."""
    rng = round_.random
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(redis.Redis.from_url(url))
        direct.flushall()
        proxy = stack.enter_context(_Losing(url, round_))
        objects = [
            stack.enter_context(round_.make(BloomFilter, number, proxy.url))
            for number in range(OBJECTS)
        ]
        proxy.losing = round_.faults
        over = threading.Event()
        failures: list[BaseException] = []

        def work(worker: int) -> None:
            mine = random.Random(f"{round_.seed} worker {worker}")
            for _ in range(calls // WORKERS):
                number = mine.randrange(OBJECTS)
                _one_call(round_, mine, objects[number], number)
                if over.is_set():
                    return

        def reset() -> None:
            while not over.wait(rng.uniform(0.01, round_.rest)):
                _reset(round_, rng, objects, direct)

        acts = [reset, *(partial(work, worker) for worker in range(WORKERS))]
        threads = [
            threading.Thread(target=_guard, args=(act, failures, over), daemon=True) for act in acts
        ]
        for thread in threads:
            thread.start()
        for thread in threads[1:]:
            thread.join()
        over.set()
        threads[0].join()
        proxy.losing = False
        if failures:
            raise failures[0]


def _guard(act: Callable[[], None], failures: list[BaseException], over: threading.Event) -> None:
    """Do something in a thread; what it raises is for the main thread, and ends the others."""
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - raised in the main thread
        failures.append(error)
        over.set()


class _Losing(contextlib.ExitStack):
    """Loses one command or reply of 200, in rounds with faults.

    Attributes:
        url: Where to connect to.
        losing: Whether it loses any as yet.
    """

    def __init__(self, url: str, round_: Round) -> None:
        super().__init__()
        self.url = url
        self.losing = False
        self._random = random.Random(f"{round_.seed} losses")
        if round_.faults:
            self.url = self.enter_context(Proxy(url, self._judge)).url

    def _judge(self, name: str, _number: int) -> Verdict:
        if not self.losing or name in HANDSHAKE or self._random.random() > 1 / 200:
            return "pass"
        return self._random.choice(("before", "after"))


def _takes_many(method: str) -> bool:
    return method == "update" or method.endswith("many")


def _one_call(round_: Round, rng: random.Random, made: BloomFilter, number: int) -> None:
    method, items, options = round_.pick(rng, number)
    start = round_.now()
    outcome: object
    try:
        outcome = getattr(made, method)(items if _takes_many(method) else items[0], **options)
    except (BloomlockError, redis.RedisError) as error:
        outcome = error
    round_.record(start, number, method, items, outcome)
    if isinstance(outcome, Exception):
        _check_error(round_, outcome)
    until = time.monotonic() + PATIENCE
    while isinstance(outcome, FilterLostError):
        try:
            made.reattach()
        except (BloomlockError, redis.RedisError):
            if time.monotonic() > until:
                raise
            time.sleep(0.002)
        else:
            break


def _check_error(round_: Round, error: Exception) -> None:
    if not round_.faults and not isinstance(error, FilterLostError):
        cause = error.__cause__ if isinstance(error, BatchError) else error
        if not isinstance(cause, (FilterLostError, BloomlockError)):
            raise error


def _reset(
    round_: Round, rng: random.Random, objects: list[BloomFilter], direct: redis.Redis
) -> None:
    kind = rng.choice(("clear", "clear", "own clear", "delete", "flush"))
    start = round_.now()
    until = time.monotonic() + PATIENCE
    while True:
        try:
            if kind == "own clear" and objects and not round_.faults:
                rng.choice(objects).clear()
            elif kind == "delete":
                BloomFilter.open(NAME, client=direct).delete()
            elif kind == "flush":
                direct.flushall()
            else:
                BloomFilter.open(NAME, client=direct).clear()
            # What was deleted is there again when this is over.
            round_.make(BloomFilter, 0, direct)
        except BloomlockError:
            if time.monotonic() > until:
                raise
            # As the message says: "delete it".
            kind = "flush"
        else:
            break
    round_.resets.append((start, round_.now()))


# -- asyncio -------------------------------------------------------------------------------------


def run_tasks(url: str, round_: Round, calls: int) -> None:
    """Carry out a round with tasks of one event loop; single calls come several at a time."""
    asyncio.run(_run_tasks(url, round_, calls))


async def _run_tasks(url: str, round_: Round, calls: int) -> None:
    rng = round_.random
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(redis.Redis.from_url(url))
        direct.flushall()
        proxy = stack.enter_context(_Losing(url, round_))
        client = redis.asyncio.Redis.from_url(proxy.url)
        objects = [await round_.make(AsyncBloomFilter, number, client) for number in range(OBJECTS)]
        proxy.losing = round_.faults

        async def work(worker: int) -> None:
            mine = random.Random(f"{round_.seed} worker {worker}")
            for _ in range(calls // WORKERS):
                number = mine.randrange(OBJECTS)
                if mine.random() < 0.4:
                    await asyncio.gather(
                        *(_one_await(round_, mine, objects, number, single=True) for _ in range(30))
                    )
                else:
                    await _one_await(round_, mine, objects, number, single=False)

        async def reset() -> None:
            while not over:
                await asyncio.sleep(rng.uniform(0.01, round_.rest))
                if rng.random() < 0.3 and not round_.faults:
                    start = round_.now()
                    while True:
                        with contextlib.suppress(BloomlockError):
                            await rng.choice(objects).clear()
                            break
                        await asyncio.to_thread(round_.make, BloomFilter, 0, direct)
                    round_.resets.append((start, round_.now()))
                else:
                    await asyncio.to_thread(_reset, round_, rng, [], direct)

        over: list[bool] = []
        resetting = asyncio.ensure_future(reset())
        try:
            await asyncio.gather(*map(work, range(WORKERS)))
        finally:
            over.append(True)
            await resetting
            await client.aclose()


async def _one_await(
    round_: Round, rng: random.Random, objects: list[Any], number: int, *, single: bool
) -> None:
    made = objects[number]
    if single:
        method = rng.choice(["add", "add", "exists", *["discard"] * round_.forgets])
        items, options = [round_.item(rng, number)], {}
    else:
        method, items, options = round_.pick(rng, number)
    start = round_.now()
    outcome: object
    try:
        outcome = await getattr(made, method)(items if _takes_many(method) else items[0], **options)
    except (BloomlockError, redis.RedisError) as error:
        outcome = error
    round_.record(start, number, method, items, outcome)
    if isinstance(outcome, Exception):
        _check_error(round_, outcome)
    until = time.monotonic() + PATIENCE
    while isinstance(outcome, FilterLostError):
        try:
            await made.reattach()
        except (BloomlockError, redis.RedisError):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.002)
        else:
            break


class Total(NamedTuple):
    """What was done."""

    rounds: int
    calls: int
    answers: int
    resets: int
    kinds: Counter[str]


def run_rounds(url: str, seed: int, *, answers: int) -> Total:
    """Carry out rounds until so many answers were judged.

    Raises:
        AssertionError: At the first round with a violation; the message has its seed.
    """
    rounds = total_calls = total = resets = 0
    kinds: Counter[str] = Counter()
    while total < answers:
        runtime = (run_threads, run_tasks)[rounds % 2]
        # The proxy takes commands apart in Python, so its rounds are short.
        faults = rounds % 5 in {3, 4}
        round_ = Round(f"{seed}/{rounds}", faults=faults)
        with naming(f"{round_}, {runtime.__name__}"):
            runtime(url, round_, CALLS // (4 if faults else 1))
        wrong = round_.violations()
        assert not wrong, f"{round_}, {runtime.__name__}: {len(wrong)}: " + "\n".join(wrong[:10])
        rounds += 1
        total_calls += round_.calls
        total += round_.judged
        resets += len(round_.resets)
        kinds.update(one.what for said in round_.answers.values() for one in said)
    return Total(rounds, total_calls, total, resets, kinds)
