"""Workers that are killed while replies get lost: what becomes of the items?

Each worker goes through all items until all are done, in an order of its own. It takes a batch,
works on what is new, one after the other, and finishes each. What it does is written to the server
on a connection that loses nothing: an item before it is worked on, and what came of finishing it.
A worker that is killed is replaced.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .contenders import Entry, make
from .jobs import cut
from .loss_proxy import LossProxy
from .place import Place, connect
from .workloads import items

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.process import BaseProcess

SHARE = 0.02
LEASE = 2.0
BATCH = 20
WORK_SECONDS = 0.0005
REST_SECONDS = 0.02
"""Pause of a worker that found nothing to do."""
TAG = "rig"
LOOK_SECONDS = 0.02
LONGEST = 300.0
"""Seconds after which a contender that is not done has failed."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker does.

    Attributes:
        made_by: See Entry.
        options: The same.
        place: Where the contender works; with losses.
        direct: URL of the same server, without them.
        items: How many items there are.
        number: Of the worker.
    """

    made_by: str
    options: Mapping[str, Any]
    place: Place
    direct: str
    items: int
    number: int = 0


@dataclass(slots=True)
class Row:
    """What became of the items with one contender.

    Attributes:
        contender: Its name.
        title: Its title.
        items: How many there were.
        workers: At the same time.
        done: Items that the contender reports as done in the end.
        open: Claims that are left in the end.
        again: Items that were worked on more than once.
        killed: Of the works that were not the item's last: their worker was killed.
        unanswered: The same: finishing ended in an error.
        lost: The same: finishing was refused.
        finished_twice: Items that were finished by two workers.
        kills: Workers killed.
        lost_before: Exchanges lost before the server saw them.
        lost_after: Exchanges lost after it carried them out.
        errors: What claiming and finishing raised, by name.
        seconds: Until all workers had seen all items done.
    """

    contender: str
    title: str
    items: int
    workers: int
    done: int = 0
    open: int = 0
    again: int = 0
    killed: int = 0
    unanswered: int = 0
    lost: int = 0
    finished_twice: int = 0
    kills: int = 0
    lost_before: int = 0
    lost_after: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def run(entry: Entry, url: str, prefix: str, row: Row, kill_every: float) -> None:
    """Let the workers do all items while they are killed; fill in the row.

    Raises:
        RuntimeError: If a worker failed, or they are not done after LONGEST.
    """
    with LossProxy(url, SHARE) as proxy, connect(url) as direct:
        place = Place(proxy.url, prefix, TAG, max(2 * row.items, 1000), 1e-9)
        make(entry.made_by, place, entry.options)  # what it needs is there before losses begin
        proxy.losing = True
        started = time.monotonic()
        _supervise(entry, place, url, row, kill_every)
        row.seconds = time.monotonic() - started
        proxy.losing = False
        row.lost_before, row.lost_after = proxy.lost_before, proxy.lost_after
        scheme: Any = make(entry.made_by, place, entry.options)
        row.done = sum(scheme.exists_many(items(TAG, row.items)))
        row.open = scheme.left()
        _explain(direct, prefix, row)


def _supervise(entry: Entry, place: Place, url: str, row: Row, kill_every: float) -> None:
    chance = random.Random(0)
    order = Order(entry.made_by, dict(entry.options), place, url, row.items)
    # Its children start in milliseconds: else most of the time would go into imports.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "bloomlock.filters._sync.bloom", __name__])

    def start(number: int) -> BaseProcess:
        process = context.Process(target=work, args=(replace(order, number=number),))
        process.start()
        return process

    running = [start(number) for number in range(row.workers)]
    begun = time.monotonic()
    kill_at = begun + kill_every
    try:
        while any(one.is_alive() for one in running):
            if failed := [one.exitcode for one in running if one.exitcode]:
                raise RuntimeError(f"a worker of {entry.name} ended with status {failed[0]}")
            now = time.monotonic()
            if now - begun > LONGEST:
                raise RuntimeError(f"the workers of {entry.name} are not done in {LONGEST:g} s")
            # The first that ends by itself has seen all items done.
            if now >= kill_at and all(one.is_alive() for one in running):
                index = chance.randrange(len(running))
                running[index].kill()
                running[index].join()
                running[index] = start(row.workers + row.kills)
                row.kills += 1
                kill_at = now + kill_every
            time.sleep(LOOK_SECONDS)
    finally:
        for one in running:
            one.kill()
            one.join()


def work(order: Order) -> None:
    """Work until all items are done; a process of its own."""
    _Worker(order).run()


class _Worker:
    def __init__(self, order: Order) -> None:
        self._scheme: Any = make(order.made_by, order.place, order.options)
        self._direct = connect(order.direct)
        self._prefix = order.place.prefix
        self._number = order.number
        self._random = random.Random(order.number)
        self._items = items(TAG, order.items)

    def run(self) -> None:
        left = self._items
        while left:
            self._random.shuffle(left)
            before = len(left)
            left = [item for some in cut(left, BATCH) for item in self._do(some)]
            if len(left) == before:
                time.sleep(REST_SECONDS)

    def _do(self, some: Sequence[str]) -> list[str]:
        """Do the items that can be had; return those that are not known to be done."""
        try:
            taken = self._scheme.take(some, LEASE)
        except Exception as error:  # noqa: BLE001 - whatever a contender raises is its result
            self._note("errors", type(error).__name__)
            return list(some)
        for item, one in zip(some, taken, strict=True):
            if one.state == "new":
                self._work(item, one.handle)
        return [item for item, one in zip(some, taken, strict=True) if one.state != "seen"]

    def _work(self, item: str, handle: Any) -> None:
        line = f"{item} {self._number}"
        self._note("worked", line)
        time.sleep(WORK_SECONDS)
        try:
            (done,) = self._scheme.finish([handle])
        except Exception as error:  # noqa: BLE001 - the same
            self._note("errors", type(error).__name__)
            self._note("unanswered", line)
        else:
            self._note("finished" if done else "lost", line)

    def _note(self, what: str, line: str) -> None:
        self._direct.rpush(f"{self._prefix}{what}", line)


def _explain(direct: Any, prefix: str, row: Row) -> None:
    """Count the items that were worked on more than once, and why."""
    noted: dict[str, list[str]] = {
        what: [line.decode() for line in direct.lrange(f"{prefix}{what}", 0, -1)]
        for what in ("worked", "finished", "unanswered", "lost", "errors")
    }
    row.errors.update(noted["errors"])
    works: defaultdict[str, list[str]] = defaultdict(list)
    for line in noted["worked"]:
        works[line.split()[0]].append(line)
    ends = {what: Counter(noted[what]) for what in ("finished", "unanswered", "lost")}
    for lines in works.values():
        row.again += len(lines) > 1
        row.finished_twice += sum(ends["finished"][line] for line in set(lines)) > 1
        for line in lines[:-1]:
            if ends["unanswered"][line]:
                row.unanswered += 1
            elif ends["lost"][line]:
                row.lost += 1
            elif not ends["finished"][line]:
                row.killed += 1
