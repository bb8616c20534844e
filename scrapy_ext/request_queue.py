"""The queue that all processes of a spider share, as scrapy-redis keeps it, with leases.

`RequestQueue` is the queue on the server, `Pushes` what goes into it and what becomes of that.
What a process takes stays on the server until it is done. A process has one lease; when that is
over, the next process that asks puts back what it had.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import redis
from scrapy import signals
from scrapy.utils.misc import load_object
from scrapy.utils.request import fingerprint as default_fingerprint

from bloomlock.errors import ConfigurationError
from scrapy_ext.controls import BEGUN, FILTER, RECORD, RequestControls, returns
from scrapy_ext.duplicates import DuplicateLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from bloomlock import BloomFilter
    from scrapy_ext.settings import FilterSettings, QueueSettings

logger = logging.getLogger("bloomlock.scrapy")

Order = Literal["priority", "fifo", "lifo"]
Mode = Literal["n", "e", "a", "r", "s"]
_ORDERS: dict[str, Order] = {"PriorityQueue": "priority", "FifoQueue": "fifo", "LifoQueue": "lifo"}
_MAY_BE_EQUAL: frozenset[Mode] = frozenset({"e", "a", "r"})
_NAME = "bloomlock_name"
"""Key of `meta`, in the queue only."""
_PARTS = ("taken", "workers", "calls", "started")


class Push(NamedTuple):
    """A request that is to be pushed.

    Attributes:
        request: The request.
        fingerprint: The item of the filter.
        mode: When it is pushed: "n", if it is new; "e", the same, but it is not recorded; "a",
            always; "r", always, and it is recorded; "s", if no start request of this run was the
            same.
        data: The request as it stands in the queue; empty: it has no such form, and is not pushed.
    """

    request: Request
    fingerprint: bytes
    mode: Mode
    data: bytes

    def words(self) -> tuple[bytes, int, bytes]:
        """Return its arguments of the script."""
        mode = self.mode.encode()
        if self.mode == "s":
            mode += self.fingerprint
        return mode, -self.request.priority, self.data


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a process sends in one step.

    Attributes:
        number: Which step of the process it is; the first has 0.
        pushes: Requests to push.
        done: Ids of requests that are done.
        wanted: How many requests to take.
    """

    number: int
    pushes: Sequence[Push] = ()
    done: Sequence[bytes] = ()
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a step.

    Attributes:
        was_unknown: Whether the server did not know the process: what it had taken was put back.
        waiting: How many requests wait.
        taken: How many requests all processes together have taken and not done.
        recovered: How many requests dead processes had, that wait again.
        pushed: For each request whether it was pushed; False: it is a duplicate.
        got: Id and form of each request that was taken.
    """

    was_unknown: bool
    waiting: int
    taken: int
    recovered: int
    pushed: list[bool]
    got: list[tuple[bytes, bytes]]


class RequestQueue:
    """The shared queue of one spider and its filter, as one process uses them.

    Args:
        shared: The filter.
        client: A client of the filter's server.
        spider: The spider; it finds the callbacks of requests.
        settings: Which queue.
        worker: What this process is called, without a colon; None: a name that no other has.

    Raises:
        ConfigurationError: If the class of the queue or the serializer cannot be used, or keys lie
            in another slot of a cluster than the filter.
    """

    def __init__(
        self,
        shared: BloomFilter,
        client: Any,
        spider: Spider,
        settings: QueueSettings,
        worker: str | None = None,
    ) -> None:
        """Check what the settings name; nothing is sent."""
        self.shared = shared
        self.worker = worker or _new_worker()
        self.key = (settings.key or "%(spider)s:requests") % {"spider": spider.name}
        if isinstance(client, redis.RedisCluster):
            self.key = self._key_on_cluster(settings.key)
        self._keys = keys_of(self.key)
        self._order, self._codec = _codec(client, spider, self.key, settings)
        self._lease_ms = int(settings.lease * 1000)
        self._names, self._numbers = f"{secrets.token_hex(4)}-", count()

    def _key_on_cluster(self, given: str | None) -> str:
        """Return a key in the slot of the filter."""
        tag = self.shared.hash_tag
        if self.shared.shards > 1:
            raise ConfigurationError(
                f"the filter {self.shared.name!r} has {self.shared.shards} shards; on a cluster "
                "the scheduler needs one of one shard, and makes such a filter under a new name"
            )
        if given is None:
            return f"{self.key}:{tag}"
        if tag not in self.key:
            raise ConfigurationError(
                f"SCHEDULER_QUEUE_KEY is {given!r}; allowed on a cluster is a name that contains "
                f"{tag}, so that the queue lies where the filter does"
            )
        return self.key

    def encode(self, request: Request, mode: Mode = "n") -> bytes:
        """Return a request as it stands in the queue. Raises what its serializer raises.

        Equal requests may wait together unless the filter, or the set of what was started, refuses
        the second. A sorted set has one of equal members, so each gets a name that no other has.
        """
        is_named = self._order == "priority" and mode in _MAY_BE_EQUAL
        if is_named:
            request.meta[_NAME] = f"{self._names}{next(self._numbers)}"
        try:
            data = self._codec._encode_request(request)  # noqa: SLF001 - subclasses override it
        finally:
            if is_named:
                del request.meta[_NAME]
        return data if isinstance(data, bytes) else str(data).encode()

    def decode(self, entry: bytes) -> Request:
        """Return the request of what was taken. Raises what its serializer raises."""
        _, _, data = entry.partition(b" ")
        request: Request = self._codec._decode_request(data)  # noqa: SLF001 - as above
        request.meta.pop(_NAME, None)
        return request

    def exchange(self, step: Exchange) -> Answer:
        """Carry out a step; one that failed may be repeated with the same number.

        Raises:
            redis.exceptions.RedisError: The server could not be asked; the step may be done.
            BloomlockError: The filter cannot be used.

        Cost: one round trip.
        """
        words: list[bytes | int] = [step.number, self._lease_ms, step.wanted, len(step.pushes)]
        for push in step.pushes:
            words += push.words()
        reply = self._run(
            "queue_exchange", [push.fingerprint for push in step.pushes], [*words, *step.done]
        )
        was_unknown, waiting, taken, recovered, flags, *got = reply
        pushed = [flag == ord("1") for flag in flags]
        pairs = list(zip(got[::2], got[1::2], strict=True))
        return Answer(bool(was_unknown), waiting, taken, recovered, pushed, pairs)

    def leave(self, *, empty: bool = False) -> bool:
        """Put back what this process has not done, and end its lease.

        Args:
            empty: Whether the queue is emptied if no other process uses it.

        Returns:
            Whether it was emptied.

        Raises:
            As `exchange`.
        """
        emptied, waiting = self._run("queue_leave", [], [int(empty)])
        if waiting:
            logger.info("%s requests wait in the queue %r.", f"{waiting:,}", self.key)
        return bool(emptied)

    def _run(self, script: str, items: Sequence[bytes], words: Sequence[bytes | int]) -> Any:
        text = _script(script)
        return self.shared.run_script(text, items, self._keys, [self._order, self.worker, *words])


def keys_of(key: str) -> list[str]:
    """Return all keys of a queue: the queue, the taken, the workers, the calls, the started."""
    return [key, *(f"{key}:{part}" for part in _PARTS)]


def release(shared: BloomFilter, key: str, order: Order, workers: Sequence[str]) -> list[bytes]:
    """Put back what processes had that are known to be dead, before their leases are over.

    Args:
        shared: The filter.
        key: The queue.
        order: Of the queue.
        workers: What the processes were called.

    Returns:
        The requests that were put back.

    Raises:
        As `RequestQueue.exchange`.
    """
    words = [order, "", *workers]
    put_back: list[bytes] = shared.run_script(_script("queue_release"), [], keys_of(key), words)
    return put_back


@cache
def _script(name: str) -> str:
    folder = files("scrapy_ext") / "scripts"
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in ("queue_common", name))


def _new_worker() -> str:
    """Return a name that no other process has; one can see by it whose lease it is."""
    host = socket.gethostname().replace(":", "-")
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def _codec(client: Any, spider: Spider, key: str, settings: QueueSettings) -> tuple[Order, Any]:
    """Return the order of the queue's class, and an object of it that encodes requests."""
    allowed = (
        "allowed are PriorityQueue, FifoQueue and LifoQueue of scrapy_redis.queue, and classes of "
        "theirs with the same push and pop"
    )
    sentence = f"SCHEDULER_QUEUE_CLASS is {settings.queue_class!r}; {allowed}"
    try:
        chosen: Any = load_object(settings.queue_class)
        serializer = settings.serializer
        if isinstance(serializer, str):
            serializer = import_module(serializer)
    except (ImportError, NameError, ValueError, TypeError) as error:
        raise ConfigurationError(f"the queue cannot be used: {error}; {allowed}") from error
    for base in getattr(chosen, "__mro__", ()):
        order = _ORDERS.get(base.__name__)
        if order and base.__module__ == "scrapy_redis.queue":
            if (chosen.push, chosen.pop, chosen.__len__) != (base.push, base.pop, base.__len__):
                break
            try:
                return order, chosen(client, spider, key.replace("%", "%%"), serializer)
            except TypeError as error:
                raise ConfigurationError(f"{sentence}: {error}") from error
    raise ConfigurationError(sentence)


class Pushes:
    """Makes pushes of requests, and says to Scrapy what the server answered.

    Args:
        crawler: Whose requests they are.
        spider: Its spider.
        queue: Where they go.
        config: The settings of the filter.
    """

    def __init__(
        self, crawler: Crawler, spider: Spider, queue: RequestQueue, config: FilterSettings
    ) -> None:
        self._crawler = crawler
        self._spider = spider
        self._queue = queue
        self._controls = RequestControls(crawler, record_unfiltered=config.record_unfiltered)
        # Messages of a feed are wanted each time they come, the start page of a crawl once.
        self._is_feed = hasattr(spider, "redis_key")
        self._log = DuplicateLog(crawler, debug=config.debug, sample=config.audit_sample)
        self._logged: set[str] = set()

    def make(self, request: Request, fingerprint: bytes, mode: Mode) -> Push:
        """Return the push of a request."""
        return Push(request, fingerprint, mode, self._encode(request, mode))

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint by the crawler's own fingerprinter; another one if that fails."""
        try:
            # The view refuses what is not bytes; bytes(5) would be five zeros.
            return bytes(memoryview(self._crawler.request_fingerprinter.fingerprint(request)))
        # A project's fingerprinter may raise anything; the links of the page shall not pay for it.
        except Exception:
            self.count("bloomlock/fingerprint_errors")
            if "fingerprint" not in self._logged:
                self._logged.add("fingerprint")
                logger.exception("The request fingerprinter failed for %s", request)
            return b"no fingerprint:" + default_fingerprint(request)

    def refused(self, request: Request) -> None:
        """Log and count a duplicate."""
        self._log.log(request, self._spider)

    def note_refused(self, request: Request) -> None:
        """Log a duplicate that the caller counts."""
        self._log.note(request, self._spider)

    def answered(self, push: Push, *, was_pushed: bool) -> None:
        """Say what became of a push."""
        if was_pushed:
            self.count(f"scheduler/enqueued/{'redis' if push.data else 'memory'}")
            self.count("scheduler/enqueued")
            return
        self.refused(push.request)
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=push.request, spider=self._spider
        )

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the stats."""
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(name, by)

    def mode_of(self, request: Request) -> Mode:
        """Return when a request is pushed."""
        meta = request.meta
        is_filtered, recorded = self._controls.read(request)
        if not request.dont_filter:
            is_back = returns(request, self._crawler, self.fingerprint)
            if is_filtered and not is_back:
                return "n" if recorded else "e"
            return "r" if recorded else "a"
        # A start request is recorded in any case. Nothing else says of the requests of a feed that
        # they are some, but that no callback made them.
        is_start = (meta.get("is_start_request") or self._is_feed) and not meta.get("depth")
        # What its errback makes of it, or a callback of a copy of its `meta`, is another one.
        is_first = not meta.get(BEGUN)
        is_again = "retry_times" in meta or "redirect_times" in meta
        is_recorded = recorded or (is_start and (is_first or is_again))
        if meta.get(RECORD) is False or not is_recorded:
            return "a"
        is_once = is_start and is_first and not (is_again or self._is_feed)
        return "s" if is_once and meta.get(FILTER) is not False else "r"

    def begun(self, request: Request) -> None:
        """Note that a request is fetched."""
        if request.meta.get("is_start_request"):
            request.meta[BEGUN] = True

    def _encode(self, request: Request, mode: Mode) -> bytes:
        """Return a request as it stands in the queue; empty if it has no such form."""
        try:
            return self._queue.encode(request, mode)
        # BLE001: a serializer of the project's may raise anything.
        except Exception as error:  # noqa: BLE001
            self.count("scheduler/unserializable")
            if "unserializable" not in self._logged:
                self._logged.add("unserializable")
                logger.warning(
                    "Unable to serialize request: %s - reason: %s - it stays in this process and "
                    "is lost with it; no more unserializable requests are logged.",
                    request,
                    error,
                )
            return b""
