"""The crawl on the server: it is begun, joined or resumed, gone on with, and ended.

Its state is decided by scripts alone: "running"; "ended", when nothing waits, nothing is taken and
every process is idle; "waiting", the same with a process that stays open for more. A crawl that has
ended is begun anew by who comes next, however long the processes of the old one take to close: what
these still write under the old id is refused.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import redis

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError
from scrapy_ext.queue import (
    Answer,
    Step,
    dead_among,
    entry_of,
    keys_of,
    new_worker,
    priority_of,
    script,
    text_of,
)
from scrapy_ext.requests import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scrapy_ext.settings import CrawlSettings


MOST_HOSTS = 1000


@dataclass(frozen=True, slots=True)
class Pace:
    """How many requests of a host a process has at once, and the seconds between two of a host.

    Attributes:
        limit: Of all hosts but those in `slots`.
        delay: The same.
        slots: The two, of some hosts.
    """

    limit: int = 8
    delay: float = 0.0
    slots: Mapping[str, tuple[int, float]] | None = None

    def limit_of(self, host: str) -> int:
        return (self.slots or {}).get(host, (self.limit, 0))[0]

    def fields(self) -> dict[str, Any]:
        slots = {host: [limit, int(s * 1000)] for host, (limit, s) in (self.slots or {}).items()}
        return {"limit": self.limit, "delay": int(self.delay * 1000), "slots": slots}


@dataclass(frozen=True, slots=True)
class Begun:
    """How a process came to its crawl.

    Attributes:
        what: "begun", "joined" (others are at work) or "resumed" (none is).
        workers: How many others are at work.
        begun_at: When it began, in seconds since 1970.
        done: How many requests are done.
        waiting: How many wait.
        failed: How many failed and are kept.
    """

    what: str
    workers: int
    begun_at: float
    done: int
    waiting: int
    failed: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that failed: its form in the queue, and why."""

    entry: bytes
    error: str

    @property
    def url(self) -> str:
        """Its URL; of a pickle, which is not loaded, only that it is one."""
        return url_of(self.entry)


class Crawl:
    """The crawl of a name, as one process takes part in it.

    Args:
        client: A client of the server.
        settings: Those of the crawl.
        pace: How fast requests are taken.
        attributes: What the spider was called with, if that may not differ between processes.
    """

    def __init__(
        self,
        client: Any,
        settings: CrawlSettings,
        pace: Pace | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self.worker = new_worker()
        self.id = ""
        self._client = client
        self._settings = settings
        self._pace = pace or Pace()
        self._attributes = (
            None if attributes is None else json.dumps(dict(sorted(attributes.items())))
        )
        self._lease_ms = int(settings.lease * 1000)

    @cached_property
    def keys(self) -> list[str]:
        return keys_of(self._settings.name)

    def begin(self, *, overwrites: str = "") -> Begun:
        """Begin the crawl, join it, or go on with one that was stopped.

        Args:
            overwrites: An existing file that this process is going to overwrite.

        Raises:
            ConfigurationError: The crawl is another one than this process is for; the sentence
                says what to set.
            BloomlockError, redis.exceptions.RedisError: As BloomFilter.

        Cost: three round trips, and those of attaching to the filter.
        """
        settings = self._settings
        reply = self._run(
            "begin",
            id=secrets.token_hex(6),
            dead=dead_among(map(text_of, self._client.zrange(self.keys[5], 0, -1))),
            resume=settings.resume,
            attributes=self._attributes,
            overwrites=bool(overwrites),
            keeps_failed=settings.persist,
        )
        what, self.id, generation, attributes, before = (
            text_of(reply[at]) for at in (0, 1, 7, 8, 9)
        )
        workers, begun, done, waiting, failed = (int(word) for word in reply[2:7])
        begun_now = Begun(what, workers, begun / 1000, done, waiting, failed)
        self._refuse(begun_now, attributes, overwrites)
        try:
            self._attach(generation)
        except Exception:
            self._leave(finished=False)
            raise
        if what == "begun" and before:
            delete_filter(settings.name, client=self._client, prefix=_prefix(before))
        return begun_now

    def _refuse(self, begun: Begun, attributes: str, overwrites: str) -> None:
        name = self._settings.name
        if begun.what == "lives":
            raise ConfigurationError(
                f"BLOOMLOCK_RESUME is 0, and {begun.workers} processes are at work on the crawl "
                f"{name!r}; stop them first, or leave the setting out to join them"
            )
        if begun.what == "overwrites":
            raise ConfigurationError(
                f"FEEDS would overwrite {overwrites}, which has what the crawl {name!r} found "
                f"before it was stopped ({begun.done} done, {begun.waiting} wait); allowed are -o "
                "in place of -O, another file, or -s BLOOMLOCK_RESUME=0 to begin anew"
            )
        if begun.what == "attributes":
            ours, theirs = json.loads(self._attributes or "{}"), json.loads(attributes or "{}")
            differing = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
            first = differing[0]
            raise ConfigurationError(
                f"the crawl {name!r} runs or was stopped with {first} = {theirs.get(first)!r}, and "
                f"this spider has {ours.get(first)!r}; allowed is one of BLOOMLOCK_NAME = "
                f'"%(name)s:%({first})s", a crawl for each, and BLOOMLOCK_NAME = "%(name)s", one '
                "crawl for all"
            )

    def _attach(self, generation: str) -> None:
        is_cluster = isinstance(self._client, redis.RedisCluster)
        self.shared: BloomFilter = self._settings.open(
            self._client,
            prefix=_prefix(self.id),
            on_lost="raise",
            shards=1 if is_cluster else None,
        )
        if generation and generation != f"{self.shared.generation}":
            self.shared.delete()
            raise FilterLostError(
                f"the filter of the crawl {self._settings.name!r} is gone from the server, so what "
                "it has fetched is not known; begin anew: -s BLOOMLOCK_RESUME=0"
            )
        self._generation = f"{self.shared.generation}"

    def exchange(self, step: Step) -> Answer:
        """Carry out a step; one that failed may be repeated with the same number.

        Raises:
            redis.exceptions.RedisError: The server could not be asked; the step may be done.
            CapacityError: The filter is full, and BLOOMLOCK_FILTER asks for an error.

        Cost: one round trip.
        """
        told = {
            "worker": self.worker,
            "lease": self._lease_ms,
            "dead": step.dead,
            "id": self.id,
            "generation": self._generation,
            "step": step.number,
            "fifo": self._settings.order == "fifo",
            "retries": self._settings.retries,
            "done": step.done,
            "failed": step.failed,
            "wanted": step.wanted,
            "free": step.free,
            "idle": step.is_idle,
            "stays": step.stays,
            **self._pace.fields(),
        }
        words: list[bytes | str] = [json.dumps(told)]
        for push in step.pushes:
            words += push.words()
        items = [push.fingerprint for push in step.pushes]
        try:
            reply = self.shared.run_script(script("exchange"), items, self.keys, words)
        except FilterLostError:
            return Answer("gone")
        return Answer.of(reply)

    def failed_before(self) -> Iterator[list[bytes]]:
        """Yield entries that failed in the crawl before, and drop them when the next are asked for.

        There are none without BLOOMLOCK_PERSIST.
        """
        if not self._settings.persist:
            return
        kept = self._client.hgetall(self.keys[7])
        for first in range(0, len(kept), MOST_HOSTS):
            turns = [*kept][first : first + MOST_HOSTS]
            yield [entry_of(kept[turn].partition(b"\0")[2]) for turn in turns]
            self._client.hdel(self.keys[7], *turns)

    def close(self, *, finished: bool) -> tuple[bool, int, int]:
        """Put back what this process has not done, and leave.

        Args:
            finished: Whether nothing stopped it.

        Returns:
            Whether the crawl is over and no process is left, how many requests wait, and how many
            failed. The filter is deleted then, unless requests failed that may be put back.
        """
        is_over, waiting, failed = self._leave(finished=finished)
        if is_over and not failed:
            self.shared.delete()
        self.shared.close()
        return bool(is_over), waiting, failed

    def _leave(self, *, finished: bool) -> tuple[int, int, int]:
        is_over, waiting, failed = self._run("leave", id=self.id, dead=[], finished=finished)
        return is_over, waiting, failed

    def _run(self, name: str, **told: Any) -> Any:
        told |= {"worker": self.worker, "lease": self._lease_ms}
        return self._client.eval(script(name), len(self.keys), *self.keys, json.dumps(told))


@dataclass(frozen=True, slots=True)
class Figures:
    """How a crawl stands.

    Attributes:
        state: "running", "waiting" or "ended"; empty: there is none.
        by_host: How many requests wait, of the hosts with the most.
    """

    state: str
    workers: int
    done: int
    waiting: int
    taken: int
    failed: int
    by_host: dict[str, int]


class CrawlRecord:
    """The crawl of a name, as a process sees it that takes no part in it.

    Args:
        client: A client of the server.
        name: The name of the crawl.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name
        self._keys = keys_of(name)

    def prepare(self) -> str:
        """Make a crawl that the next process goes on with, unless there is one that has not ended.

        Returns:
            The prefix of the keys of its filter.
        """
        worker = new_worker()
        told = {"worker": worker, "lease": 1000, "dead": self._dead(), "id": secrets.token_hex(6)}
        told |= {"resume": True, "attributes": None, "overwrites": False, "keeps_failed": False}
        reply = self._run("begin", **told)
        self._run("leave", worker=worker, id=text_of(reply[1]), dead=[], finished=False)
        return _prefix(text_of(reply[1]))

    def take_all(self) -> Iterator[list[tuple[int, bytes]]]:
        """Yield priorities and entries of what waits, and remove them when the next are asked for.

        Raises:
            ConfigurationError: Processes are at work on the crawl.
        """
        self.prepare()
        if workers := self.figures().workers:
            raise ConfigurationError(f"{workers} processes are at work on the crawl; stop them")
        for key in (self._keys[1], self._keys[3]):
            while members := self._client.zrange(key, 0, MOST_HOSTS - 1):
                yield [(priority_of(member), entry_of(member)) for member in members]
                self._client.zrem(key, *members)

    def _dead(self) -> list[str]:
        return dead_among(map(text_of, self._client.zrange(self._keys[5], 0, -1)))

    def _run(self, name: str, **told: Any) -> Any:
        return self._client.eval(script(name), len(self._keys), *self._keys, json.dumps(told))

    def figures(self) -> Figures:
        """Return how the crawl stands.

        Cost: two round trips; the server counts the requests of 1,000 hosts.
        """
        crawl, queue, hosts, later, taken, workers, _, failed, _ = self._keys
        first = self._client.pipeline(transaction=False)
        first.hmget(crawl, "state", "done").zcard(queue).zcard(later).hlen(taken)
        first.zcard(workers).hlen(failed).zrange(hosts, 0, MOST_HOSTS - 1)
        (state, done), waiting, waiting_later, num_taken, num_workers, num_failed, found = (
            first.execute()
        )
        second = self._client.pipeline(transaction=False)
        for host in found:
            second.zlexcount(queue, b"[" + host + b"\0", b"(" + host + b"\1")
        counts = dict(zip(map(text_of, found), second.execute(), strict=True))
        return Figures(
            state=text_of(state or b""),
            workers=num_workers,
            done=int(done or 0),
            waiting=waiting + waiting_later,
            taken=num_taken,
            failed=num_failed,
            by_host=dict(sorted(counts.items(), key=lambda one: -one[1])[:10]),
        )

    def fill(self) -> float | None:
        """Return which part of the filter's bits is set; None: there is no filter.

        Cost: some round trips; the server reads the whole filter.
        """
        name, prefix = self._name, self._prefix()
        try:
            with BloomFilter.open(name, client=self._client, prefix=prefix) as shared:
                return shared.info().fill_ratio
        except BloomlockError:
            return None

    def delete(self) -> None:
        """Delete all that the crawl has on the server."""
        delete_filter(self._name, client=self._client, prefix=self._prefix())
        self._client.delete(*self._keys)

    def _prefix(self) -> str:
        return _prefix(text_of(self._client.hget(self._keys[0], "id") or b""))

    def failed(self) -> list[Failed]:
        """Return the requests that failed, in no order."""
        found = []
        for value in self._client.hvals(self._keys[7]):
            error, _, member = value.partition(b"\0")
            found.append(Failed(entry_of(member), error.decode(errors="replace")))
        return found

    def settle(self, *, retry: bool) -> int:
        """Put what failed back into the queue, or drop it; return how many."""
        count: int = self._run("failed", dead=[], retry=retry)
        return count


def _prefix(identity: str) -> str:
    """Return what the keys of the filter of a crawl begin with: each crawl has its own."""
    return f"bloomlock:{identity}:"
