"""A randomized model of one lock that threads and tasks use through objects of all kinds at once.

Several objects of one name, for threads and for asyncio, are shared by workers that acquire them in
every way there is, nest, extend, check, hand over to each other, give up, are interrupted and
cancelled, while connections are cut, scripts are flushed and keys are deleted. Each hold is noted
with the ticks at which it was asked for, obtained, and known to be valid last. Then:

    overlap     two holds that exclude each other were valid at one moment
    fence       a later grant has no higher fence, or two grants have one
    lost        a lock was lost though nothing can have taken it
    kept        a hold was valid after another thread had got the lock through the same object
    events      an observer was not told of each hold: acquired, renewed, released or lost
    forgotten   a waiter did not end, or a worker had an error that nothing explains
    left        a key, a connection or a place in the queue is there when all have ended
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from interrupting import InterruptedAt
from proxy import HANDSHAKE, Proxy, Verdict

from bloomlock import (
    AsyncFairLock,
    AsyncLock,
    AsyncReadWriteLock,
    AsyncReentrantLock,
    FairLock,
    Lock,
    LockError,
    LockLostError,
    LockNotOwnedError,
    ReadWriteLock,
    ReentrantLock,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

THREADS, TASKS = 4, 4
LOSSES = 1 / 40
INTERRUPTED = 1 / 5
PATIENCE = 120.0
LONG, SHORT = 60.0, 2.0
READ, OWNERS = "read", "owners"
"""Groups whose holds share the lock."""
KINDS = ("lock", "fair", "read", "write", "reentrant", "owner")
FAULTS = (redis.RedisError, OSError, KeyboardInterrupt, asyncio.CancelledError)
PARTS = ("", ":holders", ":queue", ":alive", ":fence")
APART = 0.25
"""How often a task of its own carries something out, or another one releases."""
WAYS: tuple[dict[str, Any], ...] = ({}, {}, {"timeout": 0.02}, {"blocking": False})
ACTIONS = ("rest", "extend", "again", "look")


@dataclass(eq=False)
class Shared:
    """A lock object.

    Attributes:
        lock: The object.
        kind: One of KINDS.
        thread_local: Whether a hold belongs to who acquired it.
        events: What its observer was told: kind and fence.
        losses: How often `on_lost` was called.
        answers: What its acquires answered, but for nested ones.
    """

    lock: Any
    kind: str
    thread_local: bool
    events: list[tuple[str, int | None]] = field(default_factory=list)
    losses: list[None] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)

    @property
    def group(self) -> str:
        """Which holds share the lock; empty: none."""
        return {"read": READ, "owner": OWNERS}.get(self.kind, "")

    @property
    def is_reentrant(self) -> bool:
        return self.kind in {"reentrant", "owner"}

    @property
    def is_own(self) -> bool:
        """Whether what the object says is of the caller's hold for certain."""
        return self.thread_local or not self.group

    @property
    def loss(self) -> type[LockError]:
        """What is raised for a hold that was lost.

        Who releases for another gives back the oldest hold that is not lost; once that of the other
        is, it may be a third one's, who has none then.
        """
        return LockLostError if self.thread_local else LockNotOwnedError


@dataclass(eq=False)
class Held:
    """A hold, with the ticks of what happened to it."""

    shared: Shared
    asked: int
    obtained: int
    fence: int | None
    valid: int = -1
    ended: str = ""

    def __repr__(self) -> str:
        where = f"{self.shared.kind} {id(self.shared) % 9999}"
        return f"[{where} {self.asked}..{self.obtained}..{self.valid} {self.fence} {self.ended}]"


class LockRound:
    """One lock and all that happens to it; the seed gives everything that is random.

    Args:
        seed: See above.
    """

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.name = f"lock {seed}"
        choose = self.random.choice
        self.ttl = choose((LONG, LONG, SHORT))
        kind = choose(("", "wipes", "faults", "interrupts"))
        self.faults, self.wipes = kind == "faults", kind == "wipes"
        self.interrupts = kind in {"faults", "interrupts"}
        self.held: list[Held] = []
        self.wiped: list[tuple[int, int]] = []
        self.what: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self.found: list[str] = []
        self.looks: list[tuple[Held, int]] = []
        self.client = f"model-{seed}".replace(" ", "-")
        self._ticks = itertools.count()

    def __str__(self) -> str:
        kinds = f"wipes={self.wipes} faults={self.faults} interrupts={self.interrupts}"
        return f"seed {self.seed}: ttl={self.ttl} {kinds}"

    def now(self) -> int:
        return next(self._ticks)

    def objects(self, client: Any, *, is_async: bool) -> list[Shared]:
        """Return some lock objects of all kinds, over one client."""
        made = []
        for kind in KINDS:
            # A re-entrant one that belongs to no thread is held by all that share the object.
            thread_local = kind in {"reentrant", "owner"} or self.random.random() < 0.6
            shared = Shared(None, kind, thread_local)
            options: dict[str, Any] = {
                "client": client,
                "ttl": self.ttl,
                "thread_local": thread_local,
                "observer": partial(_observe, shared),
                "on_lost": partial(_count_loss, shared),
            }
            if kind == "owner":
                options["owner"] = "all of them"
            name = {"fair": "FairLock", "read": "ReadWriteLock", "write": "ReadWriteLock"}
            name |= {"reentrant": "ReentrantLock", "owner": "ReentrantLock"}
            found = (_ASYNC if is_async else _SYNC)[name.get(kind, "Lock")](self.name, **options)
            shared.lock = getattr(found, kind) if kind in {"read", "write"} else found
            made.append(shared)
        return made

    # -- judging ---------------------------------------------------------------------------------

    def is_wiped(self, first: int, last: int) -> bool:
        return any(start <= last and end >= first for start, end in self.wiped)

    def violations(self) -> list[str]:
        found = list(self.found)
        for one, other in itertools.combinations(sorted(self.held, key=lambda h: h.obtained), 2):
            first, second = one.shared.group, other.shared.group
            excluded = not (first and first == second)
            if excluded and other.obtained < one.valid and other.valid >= 0:
                if not self.is_wiped(min(one.asked, other.asked), other.obtained):
                    found.append(f"overlap: {one} {other}")
                elif one.shared is other.shared and one.shared.thread_local:
                    # (One that is of no thread speaks of the later hold to both.)
                    found.append(f"kept: {one} {other}")
            if one.obtained < other.asked and one.fence and other.fence:
                if one.fence >= other.fence:
                    found.append(f"fence: {one} {other}")
            elif one.fence == other.fence and one.fence:
                found.append(f"fence: {one} {other}")
        losses = [(one, self.now()) for one in self.held if one.ended == "lost"]
        for one, noticed in (losses + self.looks) * (self.ttl == LONG):
            first = one.asked if one.shared.thread_local else 0
            if not self.faults and not self.is_wiped(first, noticed):
                found.append(f"lost: {noticed} {one}")
        return found

    def wrong_events(self, shared: Shared) -> list[str]:
        """Judge what an observer was told of."""
        found = []
        kinds = Counter(kind for kind, _ in shared.events)
        where = f"events: {shared.kind} {shared.thread_local}"
        counted = kinds["acquired"], kinds["timeout"]
        answers = shared.answers.count(True), shared.answers.count(False)
        # Of an acquire that was interrupted the answer may be missing, or the event.
        missing = self.what["KeyboardInterrupt"]
        enough = all(
            number + missing >= least for number, least in zip(counted, answers, strict=True)
        )
        if counted != answers and not (self.interrupts and enough):
            found.append(f"{where}: {kinds} {answers}")
        by_fence: dict[int | None, list[str]] = defaultdict(list)
        for kind, fence in shared.events:
            if kind != "timeout":
                by_fence[fence].append(kind)
        for fence, told in by_fence.items():
            start, *renewed, end = told if len(told) > 1 else (*told, "nothing")
            wrong = (start != "acquired" and not missing) or set(renewed) - {"renewed"}
            # A release whose every reply was lost is not reported; nor is an acquire undone.
            may_end = {"released", "lost"} | ({"nothing", "renewed"} if self.interrupts else set())
            if wrong or end not in may_end:
                found.append(f"{where}: {fence} {told}")
        lost = kinds["lost"]
        if len(shared.losses) != lost:
            found.append(f"{where}: on_lost {len(shared.losses)} times, lost {lost} times")
        return found


_SYNC = {"Lock": Lock, "FairLock": FairLock, "ReadWriteLock": ReadWriteLock}
_SYNC |= {"ReentrantLock": ReentrantLock}
_ASYNC = {"Lock": AsyncLock, "FairLock": AsyncFairLock, "ReadWriteLock": AsyncReadWriteLock}
_ASYNC |= {"ReentrantLock": AsyncReentrantLock}


def _observe(shared: Shared, event: Any) -> None:
    shared.events.append((event.kind, event.fence))


def _count_loss(shared: Shared, _: object) -> None:
    shared.losses.append(None)


class Worker:
    """A thread, or a task of a loop, that acquires the lock again and again.

    Args:
        round_: What it writes down.
        number: Its own.
        objects: What it shares with other workers.
        is_async: Whether these are for asyncio.
    """

    def __init__(
        self, round_: LockRound, number: int, objects: Sequence[Shared], *, is_async: bool
    ) -> None:
        self.round = round_
        self.random = random.Random(f"{round_.seed} worker {number}")
        self.objects = objects
        self.is_async = is_async

    async def work(self, steps: int) -> None:
        for _ in range(steps):
            shared = self.random.choice(self.objects)
            if (held := await self._acquire(shared)) is None:
                continue
            await self._hold(held)
            await self._release(held)

    async def _ask(self, call: Callable[[], Any], *, interrupted: bool = False) -> Any:
        at = self.random.randrange(500)
        if not self.is_async:
            if not interrupted:
                return call()
            with InterruptedAt(at):
                return call()
        if not (interrupted or self.random.random() < APART):
            return await call()
        task = asyncio.ensure_future(call())
        if interrupted:
            asyncio.get_running_loop().call_later(at / 20_000, task.cancel)
        return await task

    async def _acquire(self, shared: Shared) -> Held | None:
        options = self.random.choice(WAYS)
        interrupted = self.round.interrupts and self.random.random() < INTERRUPTED
        asked = self.round.now()
        try:
            got = await self._ask(lambda: shared.lock.acquire(**options), interrupted=interrupted)
        except FAULTS as error:
            if not self.round.interrupts:
                raise
            self.round.what[type(error).__name__] += 1
            return None
        now = self.round.now()
        shared.answers.append(got)
        self.round.what["acquired" if got else "refused"] += 1
        if not got:
            if not options:
                self.round.found.append(f"forgotten: no limit, and refused: {shared.kind}")
            return None
        held = Held(shared, asked, now, self._fence(shared))
        self.round.held.append(held)
        try:
            self._check(held)
        except shared.loss:
            if not shared.thread_local:
                # Of several holds that are lost the object speaks of the oldest.
                held.fence = None
        return held

    def _check(self, held: Held) -> None:
        """Note that a hold is valid, if what the object says is of the caller's hold."""
        if held.shared.is_own:
            now = self.round.now()
            held.shared.lock.check()
            held.valid = now

    @staticmethod
    def _fence(shared: Shared) -> int | None:
        # Where holds are shared and of no thread, it may be that of another hold.
        fence: int | None = shared.lock.fence if shared.is_own else None
        return fence

    async def _hold(self, held: Held) -> None:
        for _ in range(self.random.randrange(5)):
            action = self.random.choice(ACTIONS)
            self.round.what[action] += 1
            try:
                await getattr(self, f"_{action}")(held)
                self._check(held)
            except held.shared.loss:
                held.ended = "lost"
                return
            except FAULTS:
                if not self.round.faults:
                    raise

    async def _rest(self, _: Held) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 0.005))

    async def _extend(self, held: Held) -> None:
        ttl = self.random.choice((None, 1.2 * self.round.ttl))
        await held.shared.lock.extend(ttl) if self.is_async else held.shared.lock.extend(ttl)

    async def _again(self, held: Held) -> None:
        """Acquire the lock once more, as only a re-entrant one may be."""
        shared = held.shared
        if shared.is_reentrant:
            before = self._fence(shared)
            if not await answer_of(shared.lock.acquire()) or self._fence(shared) != before:
                self.round.found.append(f"fence: of a nested hold: {held}")
            await answer_of(shared.lock.release())
        elif shared.thread_local:
            for options in ({"blocking": False}, {"timeout": 0.01}):
                try:
                    got = await answer_of(shared.lock.acquire(**options))
                except LockError:
                    continue
                shared.answers.append(got)
                if got or "timeout" in options:
                    # It did not hold the lock any more, and could wait.
                    self.round.looks.append((held, self.round.now()))
                if got:
                    raise LockLostError("it is another hold")

    async def _look(self, held: Held) -> None:
        owned = await answer_of(held.shared.lock.owned())
        locked = await answer_of(held.shared.lock.locked())
        if not (owned and locked):
            self.round.looks.append((held, self.round.now()))

    async def _release(self, held: Held) -> None:
        shared = held.shared
        by_another = shared.is_own and not shared.thread_local and self.random.random() < APART
        try:
            if by_another and self.is_async:
                await asyncio.create_task(_call_and_await(shared.lock.release))
            elif by_another:
                await asyncio.to_thread(shared.lock.release)
            else:
                cancelled = self.is_async and self.round.interrupts
                cancelled = cancelled and self.random.random() < INTERRUPTED
                await self._ask(shared.lock.release, interrupted=cancelled)
            held.ended = held.ended or "released"
        except shared.loss:
            held.ended = "lost"
        except FAULTS as error:
            held.ended = held.ended or "unknown"
            if not self.round.interrupts:
                raise
            self.round.what[f"release {type(error).__name__}"] += 1


async def answer_of(answer: Any) -> Any:
    """Await what has to be awaited."""
    return await answer if inspect.isawaitable(answer) else answer


async def _call_and_await(call: Callable[[], Any]) -> None:
    await call()


def _disturb(
    round_: LockRound, direct: redis.Redis, keys: list[str], over: threading.Event
) -> None:
    """Hurt what the round may be hurt by, again and again."""
    rng = random.Random(f"{round_.seed} disturbing")
    while not over.wait(rng.uniform(0.005, 0.08)):
        kind = rng.choice(("wipe", "scripts", "kill")) if round_.faults else "wipe"
        if round_.wipes and kind == "wipe":
            start = round_.now()
            direct.delete(*rng.choice((keys[:1], keys[:2], keys)))
            round_.wiped.append((start, round_.now()))
        elif not round_.faults:
            continue
        elif kind == "scripts":
            direct.script_flush()
        elif kind == "kill":
            ours = [each["id"] for each in direct.client_list() if each["name"] == round_.client]
            if ours:
                direct.execute_command("CLIENT", "KILL", "ID", rng.choice(ours))
        round_.what[kind] += 1


def run_round(url: str, round_: LockRound, steps: int) -> None:
    """Carry a round out, and judge it.

    Raises:
        AssertionError: If a promise was broken.
    """
    rng = random.Random(f"{round_.seed} losses")
    over = threading.Event()

    def judge(name: str, _number: int) -> Verdict:
        if over.is_set() or name in HANDSHAKE or rng.random() > LOSSES:
            return "pass"
        return rng.choice(("before", "after"))

    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(redis.Redis.from_url(url))
        if round_.faults:
            url = stack.enter_context(Proxy(url, judge)).url
        client = redis.Redis.from_url(url, client_name=round_.client, socket_timeout=PATIENCE / 4)
        objects = round_.objects(client, is_async=False)
        keys = [f"{objects[0].lock.key}{part}" for part in PARTS]
        acts: list[Callable[[], Any]] = [
            partial(asyncio.run, Worker(round_, number, objects, is_async=False).work(steps))
            for number in range(THREADS)
        ]
        acts.append(lambda: asyncio.run(_work_in_tasks(round_, url, steps)))
        disturbing = threading.Thread(target=_disturb, args=(round_, direct, keys, over))
        disturbing.start()
        is_over = _run(round_, acts)
        over.set()
        disturbing.join()
        if round_.failures:
            raise round_.failures[0]
        if not is_over:
            round_.found.append("forgotten: a waiter did not end")
        for shared in objects:
            shared.lock.close()
            round_.found += _settled(partial(round_.wrong_events, shared))
        if not round_.interrupts:
            used = _settled(partial(_in_use, client, objects))
            round_.found += [f"left: {len(used)} connections in use"] * bool(used)
        client.close()
        found = round_.violations() + _leftovers(round_, direct, keys)
        assert not found, f"{len(found)} violations:\n" + "\n".join(found[:8])


def _in_use(client: redis.Redis, objects: Sequence[Shared]) -> list[Any]:
    """Return the connections that no lock object gives back when it is closed."""
    for shared in objects:
        # Again: a renewal that was under way at the first time keeps its connection idle.
        shared.lock.close()
    return list(client.connection_pool._in_use_connections)


def _run(round_: LockRound, acts: Sequence[Callable[[], Any]]) -> bool:
    """Do things in threads; return whether all ended."""
    threads = [threading.Thread(target=_guard, args=(round_, act), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    # Where nothing goes wrong the end of a lease is not what is waited for.
    undisturbed = round_.ttl == LONG and not (round_.faults or round_.wipes)
    until = time.monotonic() + (LONG / 2 if undisturbed else PATIENCE)
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


async def _work_in_tasks(round_: LockRound, url: str, steps: int) -> None:
    client = redis.asyncio.Redis.from_url(
        url, client_name=round_.client, socket_timeout=PATIENCE / 4
    )
    objects = round_.objects(client, is_async=True)
    workers = [Worker(round_, THREADS + number, objects, is_async=True) for number in range(TASKS)]
    await asyncio.gather(*(worker.work(steps) for worker in workers))
    for shared in objects:
        await shared.lock.close()
        until = time.monotonic() + LONG / 2
        while (found := round_.wrong_events(shared)) and time.monotonic() < until:  # noqa: ASYNC110 - reports set no event
            await asyncio.sleep(0.01)
        round_.found += found
    await client.aclose()


def _settled(look: Callable[[], list[Any]]) -> list[Any]:
    """Return what a look finds wrong, unless it is so for a moment only.

    What is reported from another thread may come a moment after the end of who caused it.
    """
    until = time.monotonic() + LONG / 2
    while (found := look()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def _guard(round_: LockRound, act: Callable[[], Any]) -> None:
    """Do something in a thread; what it raises is for the main thread."""
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - raised in the main thread
        round_.failures.append(error)


def _leftovers(round_: LockRound, direct: redis.Redis, keys: list[str]) -> list[str]:
    """Return what is left although all have ended; what a fault has left ends by itself."""
    lasting = [key for key in keys if direct.pttl(key) == -1]
    if round_.faults or round_.wipes:
        return [f"left: {lasting}"] if lasting else []

    def left() -> list[Any]:
        connections = [each for each in direct.client_list() if each["name"] == round_.client]
        there = [key for key in keys[:-1] if direct.exists(key)]
        return there + (connections if not round_.interrupts else [])

    # The server may hear a little later of what has ended, and of what was given up; not as late as
    # a lease that nobody ends.
    found = _settled(left) + lasting
    return [f"left: {found}"] if found else []
