"""Rounds of claim_model.py: workers, and a conductor who changes what they work with."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from claim_model import (
    COMMIT,
    FAILING,
    NEW,
    NOT_THERE,
    OK,
    STALENESS,
    THERE,
    UNKNOWN,
    History,
    Look,
)
from claim_tools import let_expire
from claim_workers import LARGEST_BATCH, PATIENCE, Worker
from proxy import HANDSHAKE, Proxy, Verdict

from bloomlock import AsyncBloomFilter, BloomFilter, BloomlockError

if TYPE_CHECKING:
    from collections.abc import Callable

NAME, MOVED = "model", "moved"
THREADS, TASKS, OBJECTS = 3, 3, 2
LOSSES = 1 / 40
"""Part of the commands of which they, or their replies, are lost, in rounds with faults."""
CHANGES = {
    "let_leases_end": 6,
    "discard": 4,
    "settle": 4,
    "expire": 1,
    "copy": 1,
    "flush_scripts": 1,
    "reset": 2,
    "move": 2,
}
"""What the conductor does, and how often."""


class Conductor:
    """Does what no worker does, one thing after the other, over a connection that loses nothing."""

    def __init__(self, history: History, direct: redis.Redis) -> None:
        self.history = history
        self.random = history.random
        self.direct = direct
        self.made = make(history, BloomFilter, direct)

    def conduct(self, ready: threading.Event, over: threading.Event) -> None:
        # Who makes an object while the filter moves would make a filter.
        ready.wait()
        while not over.wait(self.random.uniform(0.001, 0.02)):
            change = self.random.choices(list(CHANGES), CHANGES.values())[0]
            getattr(self, f"_{change}")()
            self.history.what[change] += 1

    def _let_leases_end(self) -> None:
        start = self.history.now()
        let_expire(self.direct)
        self.history.expiries.append((start, self.history.now()))

    def _discard(self) -> None:
        if self.history.kind == "window":
            return
        items = list({self.history.item(self.random) for _ in range(3)})
        start = self.history.now()
        found = self.made.discard_many(items)
        end = self.history.now()
        for item, was_there in zip(items, found, strict=True):
            said = THERE if was_there else NOT_THERE
            self.history.looks[item].append(Look(start, end, said, near=False))
            if was_there:
                self.history.discards[item].append((start, end))

    def _settle(self) -> None:
        items = list({self.history.item(self.random) for _ in range(5)})
        start = self.history.now()
        if self.random.random() < 0.5:
            self.made.retry_failed(items)
            noted = self.history.retried
        else:
            self.made.drop_failed(items)
            noted = self.history.dropped
        for item in items:
            noted[item].append((start, self.history.now()))

    def _expire(self) -> None:
        if self.random.random() < 0.5:
            self.made.expire(3600)
        else:
            self.made.persist()

    def _copy(self) -> None:
        copied = self.made.copy("copied")
        assert copied.count_claims().open == 0
        copied.delete()

    def _flush_scripts(self) -> None:
        self.direct.script_flush()

    def _reset(self) -> None:
        if not self.history.resetting:
            return
        start = self.history.now()
        kind = self.random.choice(("clear", "delete", "flush"))
        if kind == "flush":
            self.direct.flushall()
        else:
            getattr(self.made, kind)()
        self._attach()
        self.history.resets.append((start, self.history.now()))

    def _attach(self) -> None:
        """Find the filter, or make it anew unless another client has."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.made = make(self.history, BloomFilter, self.direct)
            except BloomlockError:
                if time.monotonic() > until:
                    raise
            else:
                return

    def _move(self) -> None:
        if self.history.moving:
            start = self.history.now()
            with self.history.at_home:
                for name in (MOVED, NAME):
                    self._rename(name)
            self.history.moves.append((start, self.history.now()))

    def _rename(self, name: str) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.made = self.made.rename(name)
            except BloomlockError:
                # What an update of a filter that is gone leaves takes its name for a moment.
                if time.monotonic() > until:
                    raise
            else:
                return


def make(history: History, kind: Any, client: Any, *, only_open: bool = False) -> Any:
    """Return a filter of this round, or what is awaited for one."""
    options = {
        "client": client,
        "strategy": history.random.choice(history.strategies),
        "on_lost": history.on_lost,
        "near_cache": 50 if history.near else 0,
        "max_staleness": STALENESS,
    }
    if only_open:
        return kind.open(NAME, **options)
    return kind(NAME, error_rate=1e-9, **options, **history.shape)


def run_round(url: str, history: History, steps: int) -> None:
    """Carry a round out, and judge it.

    Raises:
        AssertionError: If a promise was broken.
    """
    rng = random.Random(f"{history.seed} losses")
    ready, over = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def judge(name: str, _number: int) -> Verdict:
        if not ready.is_set() or over.is_set() or name in HANDSHAKE or rng.random() > LOSSES:
            return "pass"
        verdict: Verdict = rng.choice(("before", "after"))
        if verdict == "after":
            history.unanswered.append(name)
        return verdict

    def guard(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            failures.append(error)

    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(redis.Redis.from_url(url))
        direct.flushall()
        conductor = Conductor(history, direct)
        if history.faults:
            url = stack.enter_context(Proxy(url, judge)).url
        objects = [
            stack.enter_context(make(history, BloomFilter, url, only_open=history.moving))
            for _ in range(OBJECTS)
        ]
        acts: list[Callable[[], Any]] = [
            partial(asyncio.run, Worker(history, number, objects).work(steps))
            for number in range(THREADS)
        ]
        acts.append(lambda: asyncio.run(_work_in_tasks(history, url, steps, ready)))
        threads = [threading.Thread(target=guard, args=(act,), daemon=True) for act in acts]
        conducting = threading.Thread(
            target=guard, args=(partial(conductor.conduct, ready, over),), daemon=True
        )
        for thread in (conducting, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        ready.set()
        conducting.join()
        if failures:
            raise failures[0]
        _judge(history, conductor)


async def _work_in_tasks(history: History, url: str, steps: int, ready: threading.Event) -> None:
    client = redis.asyncio.Redis.from_url(url, socket_timeout=PATIENCE / 4)
    objects = [
        await make(history, AsyncBloomFilter, client, only_open=history.moving)
        for _ in range(OBJECTS)
    ]
    ready.set()
    workers = [Worker(history, THREADS + number, objects) for number in range(TASKS)]
    await asyncio.gather(*(worker.work(steps) for worker in workers))
    await client.aclose()


def _judge(history: History, conductor: Conductor) -> None:
    """Compare what is left with what was said."""
    made, direct = conductor.made, conductor.direct
    found = history.violations()
    items = list(history.claims.keys() | history.looks.keys())
    for item, is_there in zip(items, made.exists_many(items), strict=True):
        must, may = history.left(item)
        if (must and not is_there) or (is_there and not may):
            wrong = "denied" if must else "invented"
            found.append(f"{item!r}: {wrong} at the end: {history.claims[item]}")
    wanted = {item: last for item in items if (last := history.must_be_offered(item))}
    offered = _drain(made, direct)
    failed = {one.item for one in made.failed()}
    for item, last in wanted.items():
        if item not in offered and not (item in failed and str(item).startswith(FAILING)):
            found.append(f"{item!r}: forgotten: {last} {history.claims[item]}")
    for item, payload in offered.items():
        known = [one.given for one in history.claims[item]]
        if payload not in known:
            found.append(f"{item!r}: payload of nobody: {payload!r} not in {known}")
    assert not found, f"{len(found)} violations:\n" + "\n".join(found[:5])
    _judge_counts(history, made, len(offered))
    _judge_keys(direct)


def _drain(made: BloomFilter, direct: redis.Redis) -> dict[Any, Any]:
    """Claim and commit what is left; each item is offered once."""
    offered: dict[Any, Any] = {}
    let_expire(direct)
    while claims := made.claim_expired(1000, renew=False):
        for claim in claims:
            assert claim.item not in offered, f"{claim.item!r} is offered twice"
            offered[claim.item] = claim.payload
        assert all(made.commit_many(claims))
    return offered


def _judge_counts(history: History, made: BloomFilter, drained: int) -> None:
    counts = made.count_claims()
    ended = counts.committed + counts.abandoned + counts.failed + counts.expired
    assert (counts.open, ended) == (0, counts.claimed), counts
    if history.resetting:
        return
    every = [*history.unnamed, *(one for several in history.claims.values() for one in several)]
    states = [one.state for one in every]
    least = states.count(NEW) + drained
    # A search that raised may have claimed some.
    most = least + states.count(UNKNOWN) + 5 * len(history.unnamed)
    if history.expiries:
        # What was granted without a reply may be over before the call tries again.
        most += LARGEST_BATCH * len(history.unanswered)
    assert least <= counts.claimed <= most, (least, counts, most)
    commits = [one.became for one in every if one.how == COMMIT]
    most = commits.count(OK) + commits.count(UNKNOWN) + drained
    assert drained <= counts.committed <= most, (commits.count(OK), drained, counts)


def _judge_keys(direct: redis.Redis) -> None:
    """Nothing is left of claims that are over, and all of a filter expires together."""
    keys = list(direct.scan_iter())
    parts = {key.rpartition(b":")[2] for key in keys}
    assert not parts & {b"claims", b"open", b"waiting"}, keys
    lasting = {direct.ttl(key) < 0 for key in keys}
    assert len(lasting) == 1, [(key, direct.ttl(key)) for key in keys]
