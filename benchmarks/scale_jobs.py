"""What the processes of the parts of `scale` do, and the links of a crawl."""

from __future__ import annotations

import multiprocessing
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from bloomlock import BloomFilter

from .cluster_rig import client_of
from .workloads import fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

Answer = dict[str, Any]

IRLBOT_NEW = 0.104
"""Of the 394e9 links that IRLbot checked 41e9 were new."""
LONGEST_WAIT = 1800.0


def links(tag: str, count: int) -> list[str]:
    """Return links of a crawl: each is new with probability 0.104, else one from before.

    Repeats are Zipf distributed with exponent 1 over all that came before: n ** u of a uniform u
    is at most k with probability ln k / ln n.

    >>> some = links("a", 10_000)
    >>> 0.09 < len(set(some)) / len(some) < 0.12
    True
    """
    generator = np.random.default_rng(zlib.crc32(tag.encode()))
    fresh = generator.random(count) < IRLBOT_NEW
    fresh[0] = True
    known = np.cumsum(fresh)
    ranks = np.floor(known ** generator.random(count)).astype(np.int64)
    numbers = np.where(fresh, known, ranks) - 1
    names = fingerprints(tag, int(known[-1]))
    return [names[number] for number in numbers.tolist()]


def cut(items: Sequence[str], size: int) -> list[list[str]]:
    """Return batches."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def check_links(pipe: Connection, url: str, name: str, options: dict[str, Any]) -> None:
    """Add the links of each order in batches, as a crawler does with what pages link to."""
    with BloomFilter.open(name, client=url, **options) as made:
        _serve(pipe, lambda order: _adding(made, links(*order["links"]), order["batch"]))


def add_new(pipe: Connection, port: int, name: str) -> None:
    """Add new items of each order in batches to a filter on a cluster."""
    with client_of(port) as client, BloomFilter.open(name, client=client) as made:
        _serve(pipe, lambda order: _adding(made, fingerprints(*order["items"]), order["batch"]))


def offer_all(pipe: Connection, port: int, name: str) -> None:
    """Offer the same items as others, in an order of one's own; each must be there at once."""
    with client_of(port) as client, BloomFilter.open(name, client=client) as made:
        _serve(pipe, lambda order: _offering(made, order))


def _serve(pipe: Connection, prepare: Callable[[Answer], Callable[[], Answer]]) -> None:
    """Prepare what is ordered, say so, and do it when all are ready."""
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        work = prepare(order)
        pipe.send(None)
        pipe.recv()
        pipe.send(work())


def _adding(made: BloomFilter, items: Sequence[str], size: int) -> Callable[[], Answer]:
    batches = cut(items, size)
    warm_up = fingerprints("warm-up", size)
    made.add_many(warm_up)

    def work() -> Answer:
        cpu, start = time.process_time(), time.monotonic_ns()
        new = sum(sum(made.add_many(batch)) for batch in batches)
        end, cpu = time.monotonic_ns(), time.process_time() - cpu
        return {"start": start, "end": end, "cpu": cpu, "new": new, "unique": len(set(items))}

    return work


def _offering(made: BloomFilter, order: Answer) -> Callable[[], Answer]:
    items = fingerprints(*order["items"])
    generator = np.random.default_rng(order["seed"])

    def work() -> Answer:
        won = np.zeros(len(items), np.bool_)
        denied = 0
        start = time.monotonic_ns()
        places = generator.permutation(len(items))
        for mine in np.array_split(places, max(1, len(items) // order["batch"])):
            batch = [items[place] for place in mine.tolist()]
            won[mine] = made.add_many(batch)
            denied += made.exists_many(batch).count(False)
        end = time.monotonic_ns()
        return {"start": start, "end": end, "won": np.packbits(won).tobytes(), "denied": denied}

    return work


class Workers:
    """Processes that take orders; see `working`."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def run(self, orders: Sequence[Answer]) -> list[Answer]:
        """Give each of the first processes an order, start them together, return the answers."""
        some = self.prepare(orders)
        return self.go(some)

    def prepare(self, orders: Sequence[Answer]) -> Sequence[Connection]:
        """Let each of the first processes do what is not timed."""
        some = self._pipes[: len(orders)]
        for pipe, order in zip(some, orders, strict=True):
            pipe.send(order)
        for pipe in some:
            _hear(pipe)
        return some

    def go(self, some: Sequence[Connection]) -> list[Answer]:
        """Start them and wait for their answers."""
        for pipe in some:
            pipe.send(None)
        return [_hear(pipe) for pipe in some]


def _hear(pipe: Connection) -> Any:
    if not pipe.poll(LONGEST_WAIT):
        raise TimeoutError(f"a process did not answer within {LONGEST_WAIT:.0f} s")
    return pipe.recv()


@contextmanager
def working(count: int, work: Callable[..., None], *arguments: Any) -> Iterator[Workers]:
    """Run processes that take orders over a pipe."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(count)]
    processes = [
        context.Process(target=work, args=(theirs, *arguments), daemon=True) for _, theirs in pairs
    ]
    for process in processes:
        process.start()
    pipes = [mine for mine, _ in pairs]
    try:
        for pipe in pipes:
            _hear(pipe)
        yield Workers(pipes)
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(LONGEST_WAIT)
    finally:
        for process in processes:
            process.kill()
