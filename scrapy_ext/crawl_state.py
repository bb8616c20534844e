"""The crawl on the server. Its state is running, ended or waiting, and scripts alone change it.

A process that comes after the end begins another crawl; late writes of the old one are refused.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bloomlock import FilterInfo
    from scrapy_ext.requests import Page
    from scrapy_ext.settings import CrawlSettings

REQUESTS_PER_TRIP = 1000
HELD_MS = 600_000
"""The lease of a process that holds a crawl and does nothing else."""
NO_PRIORITY = 2**31
_PARTS = ("crawl", "queue", "hosts", "later", "taken", "workers", "steps", "failed")
_ESCAPES = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D", "/": "%2F"})


class Answer(NamedTuple):
    """The reply of a script; the header of the script names the fields that it fills.

    `pushed` says for each push whether it was wanted; False: it is a duplicate. `got` has id, host
    and entry of each request that was taken.
    """

    state: str
    waiting: int = 0
    taken: int = 0
    failed: int = 0
    workers: Sequence[str] = ()
    done: int = 0
    by_host: Sequence[tuple[str, int]] = ()
    recovered: int = 0
    due_s: float | None = None
    is_full: bool = False
    pushed: Sequence[bool] = ()
    got: Sequence[tuple[str, str, bytes]] = ()
    what: str = ""
    id: str = ""
    begun_ms: int = 0
    generation: str = ""
    attributes: str = ""
    before: str = ""
    is_over: bool = False


class CrawlRecord:
    """The crawl of a name, for processes that fetch nothing."""

    def __init__(self, client: Any, name: str) -> None:
        self.name = name
        self.id = ""
        self.keys = keys_of(name)
        self.worker = new_worker()
        self._client = client

    def _run(self, name: str, **told: Any) -> Answer:
        told |= {"worker": self.worker}
        words = (*self.keys, json.dumps(told))
        return Answer(**json.loads(self._client.eval(script(name), len(self.keys), *words)))

    def _begin(self, **told: Any) -> Answer:
        dead = dead_among(self.look().workers)
        begun = self._run("begin", id=secrets.token_hex(6), dead=dead, **told)
        if begun.what == "lives":
            raise ConfigurationError(
                f"BLOOMLOCK_RESUME is 0, and {len(begun.workers)} processes are at work on the "
                f"crawl {self.name!r}; stop them first, or leave the setting out to join them"
            )
        if begun.what == "begun" and begun.before:
            delete_filter(self.name, client=self._client, prefix=_prefix(begun.before))
        return begun

    def look(self) -> Answer:
        """Return how the crawl stands; `by_host` has the first 1,000 hosts."""
        return self._run("look")

    def leave(self, *, finished: bool = False) -> Answer:
        return self._run("leave", id=self.id, finished=finished)

    def hold(self, *, restart: bool = False) -> bool:
        """Begin or join the crawl, which cannot end before `leave`; return whether it is new."""
        begun = self._begin(lease=HELD_MS, resume=not restart)
        self.id = begun.id
        return begun.what == "begun"

    def prepare(self) -> str:
        """Make a crawl for the next process, unless there is one; return its filter's prefix."""
        self.hold()
        self.leave()
        return _prefix(self.id)

    def take_all(self) -> Iterator[list[tuple[int, bytes]]]:
        """Yield priorities and entries of waiting requests; each list is removed after its use."""
        self.prepare()
        if count := len(self.look().workers):
            raise ConfigurationError(f"{count} processes are at work on the crawl; stop them")
        for key in (self.keys[1], self.keys[3]):
            while members := self._client.zrange(key, 0, REQUESTS_PER_TRIP - 1):
                parts = [member.split(b"\0", 2) for member in members]
                yield [(NO_PRIORITY - int(rank[:8], 16), entry) for _, rank, entry in parts]
                self._client.zrem(key, *members)

    def filter_info(self) -> FilterInfo | None:
        """Return the state of the filter; None while no process has made it."""
        prefix = _prefix(self.id)
        with (
            suppress(BloomlockError),
            BloomFilter.open(self.name, client=self._client, prefix=prefix) as shared,
        ):
            return shared.info()
        return None

    def delete(self) -> None:
        delete_filter(self.name, client=self._client, prefix=_prefix(self.id))
        self._client.delete(*self.keys)

    def failed(self) -> list[tuple[bytes, str]]:
        kept = [value.split(b"\0", 3) for value in self._client.hvals(self.keys[7])]
        return [(entry, why.decode(errors="replace")) for why, _, _, entry in kept]

    def settle(self, *, retry: bool) -> int:
        """Put the failed requests back into the queue, or drop them; return how many."""
        return self._run("failed", retry=retry).recovered


class Crawl(CrawlRecord):
    """The crawl of a name, for a process that fetches; `pace` comes from `settings.pace_of`."""

    shared: BloomFilter
    delivered: BloomFilter | None = None
    """The pages that gave an item and did not fail, in this crawl and in those before."""

    def __init__(self, client: Any, settings: CrawlSettings, pace: Mapping[str, Any]) -> None:
        super().__init__(client, settings.name)
        self._settings = settings
        self._constant = {"worker": self.worker, "lease": int(settings.lease * 1000), **pace}
        self._constant |= {"fifo": settings.fifo, "retries": settings.retries}

    def begin(self, *, overwrites: str = "") -> Answer:
        """Begin the crawl, join it, or go on; `overwrites` is a file that would be overwritten."""
        settings, ours = self._settings, self._settings.attributes
        begun = self._begin(
            lease=self._constant["lease"],
            resume=settings.resume,
            attributes="" if ours is None else json.dumps(ours, sort_keys=True),
            overwrites=bool(overwrites),
            keeps_failed=settings.persist,
        )
        if begun.what == "overwrites":
            raise ConfigurationError(
                f"FEEDS would overwrite {overwrites}, which has what the crawl {self.name!r} found "
                f"before it was stopped ({begun.done} done, {begun.waiting} wait); allowed are -o "
                "in place of -O, another file, or -s BLOOMLOCK_RESUME=0 to begin anew"
            )
        if begun.what == "attributes" and ours is not None:
            theirs = json.loads(begun.attributes)
            first = next(key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key))
            raise ConfigurationError(
                f"the crawl {self.name!r} runs or was stopped with {first} = "
                f"{theirs.get(first)!r}, and this spider has {ours.get(first)!r}; allowed is one "
                f'of BLOOMLOCK_NAME = "%(name)s:%({first})s", a crawl for each, and '
                'BLOOMLOCK_NAME = "%(name)s", one crawl for all'
            )
        self.id = begun.id
        try:
            self._attach(begun.generation)
        except Exception:
            self.leave()
            raise
        return begun

    def _attach(self, generation: str) -> None:
        # On a cluster all keys of a script are in one slot.
        shards = 1 if isinstance(self._client, redis.RedisCluster) else None
        self.shared = self._settings.open(
            self._client, prefix=_prefix(self.id), on_lost="raise", shards=shards
        )
        if self._settings.persist:
            # Without it pages are fetched again, which loses nothing.
            options = {"window": self._settings.window, "on_lost": "recreate"}
            name = f"{self.name}:delivered"
            self.delivered = self._settings.open(self._client, name=name, **options)
        self._constant |= {"id": self.id, "generation": f"{self.shared.generation}"}
        if generation and generation != f"{self.shared.generation}":
            self.shared.delete()
            raise FilterLostError(
                f"the filter of the crawl {self.name!r} is gone from the server, so what "
                "it has fetched is not known; begin anew: -s BLOOMLOCK_RESUME=0"
            )

    def exchange(
        self, pushes: Sequence[Page], step: Mapping[str, Any], records: Sequence[bytes] = ()
    ) -> Answer:
        """Make a step, see crawl_exchange.lua; one that failed may be repeated with its number.

        CapacityError if the filter is full, with on_full="raise" in BLOOMLOCK_FILTER.
        """
        # A kill between the two leaves the page open, so the record comes first.
        if records and self.delivered is not None:
            self.delivered.update(records)
        # An error may be any text, and the server reads UTF-8 only.
        told = json.dumps({**self._constant, **step}, ensure_ascii=False)
        words = [told.encode(errors="replace")]
        for push in pushes:
            words += push.words()
        items = [push.fingerprint for push in pushes]
        try:
            told, *members = self.shared.run_script(script("exchange"), items, self.keys, words)
        except FilterLostError:
            return Answer("gone")
        fields = json.loads(told)
        taken = zip(fields.pop("ids", ()), members, strict=True)
        parts = [(identity, *member.split(b"\0", 2)) for identity, member in taken]
        got = [(identity, host.decode(), entry) for identity, host, _, entry in parts]
        pushed = [flag == "1" for flag in fields.pop("pushed", ())]
        return Answer(**fields, pushed=pushed, got=got)

    def failed_before(self) -> Iterator[list[bytes]]:
        """Yield entries that failed in the crawl before; each list is dropped after its use."""
        kept = self._client.hgetall(self.keys[7]) if self._settings.persist else {}
        for first in range(0, len(kept), REQUESTS_PER_TRIP):
            turns = [*kept][first : first + REQUESTS_PER_TRIP]
            yield [kept[turn].split(b"\0", 3)[3] for turn in turns]
            self._client.hdel(self.keys[7], *turns)

    def close(self, *, finished: bool) -> Answer:
        """Leave, and put unfinished requests back; `finished`: nothing stopped this process."""
        left = self.leave(finished=finished)
        # A user may put failed requests back, and the crawl goes on with this filter then.
        if left.is_over and not left.failed:
            self.shared.delete()
        for one in (self.shared, self.delivered):
            if one is not None:
                one.close()
        return left


def _prefix(identity: str) -> str:
    """Return the prefix of the filter: each crawl has its own."""
    return f"bloomlock:{identity}:"


def keys_of(name: str) -> list[str]:
    """Return the keys of scripts/crawl_common.lua, in the slot of the filter."""
    return [f"{{{name.translate(_ESCAPES)}}}:{part}" for part in _PARTS]


@cache
def script(name: str) -> str:
    folder = files("scrapy_ext") / "scripts"
    parts = ("crawl_common", f"crawl_{name}")
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)


def new_worker() -> str:
    """Return a name for this process by which others on this host see that it is dead."""
    return f"{_place()}/{os.getpid()}/{_started(os.getpid())}/{secrets.token_hex(4)}"


def dead_among(workers: Iterable[str]) -> list[str]:
    """Return the workers whose processes ran on this host and are gone."""
    dead = []
    for worker in workers:
        place, pid, started, _ = worker.rsplit("/", 3)
        if place == _place() and started and _started(int(pid)) != started:
            dead.append(worker)
    return dead


@cache
def _place() -> str:
    """Return the host, its boot and the namespace: elsewhere a pid is another process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]
        # Containers with the same host name have processes of their own.
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot}/{space}"


def _started(pid: int) -> str:
    """Return the start time of a process; empty if it is gone, or the system has no /proc."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        # A zombie keeps its pid until its parent has waited for it.
        return "" if state in "ZX" else fields[18]
    except (OSError, ValueError, IndexError):
        return ""
