"""The scheduler that processes share: requests are tested, added and queued in one step.

The engine never waits for the server. What it enqueues, what it has finished and what it wants is
collected, and goes out in one round trip beside the reactor. The next trip takes what has come
together meanwhile. A request is taken under the lease of its process and stays on the server until
the engine is done with it, its callback and its items included. The requests that its callback made
are sent no later than that it is done.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import redis
from scrapy import signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as LocalScheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from bloomlock.errors import BloomlockError, CapacityError, ServerError
from scrapy_ext.answers import LastRequests
from scrapy_ext.breaker import CircuitBreaker
from scrapy_ext.connection import place_of, redis_client
from scrapy_ext.request_queue import Answer, Exchange, Push, Pushes, RequestQueue
from scrapy_ext.settings import FilterSettings, QueueSettings, only_looks, warn_of_unknown
from scrapy_ext.stats import FilterStats
from scrapy_ext.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.utils.asyncio import CallLaterResult
    from twisted.internet.defer import Deferred

logger = logging.getLogger("bloomlock.scrapy")

PUSHES_PER_TRIP = 256
"""Some milliseconds of the server's time."""
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.1, 1.0
"""How often a process that has nothing to do looks for requests of others."""
RENEWALS_PER_LEASE = 3
RETRY_S = 0.5


class Scheduler(BaseScheduler):
    """Shares a queue and a filter with all processes of the spider; nothing is lost with one.

    Set `SCHEDULER = "scrapy_ext.Scheduler"`. It reads the settings of scrapy-redis and its queues.
    DUPEFILTER_CLASS is not used: the filter is the one of the BLOOMLOCK settings.
    """

    _worker: str | None = None
    """What this process is called on the server; None: a name that no other has."""

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler; its settings are read by `open`.

        Args:
            crawler: The crawler this scheduler serves.
        """
        self._crawler = crawler
        # What is to be sent, in order: requests, and the ids of those that are done. So what a
        # callback made is sent no later than that its own request is done.
        self._waiting: deque[Push | bytes | Callable[[], None]] = deque()
        self._then: list[Callable[[], None]] = []
        self._ready: deque[tuple[bytes, Request]] = deque()
        self._local: deque[Request] = deque()
        # What the engine has: the id on the server, if it has one.
        self._open: dict[Request, bytes | None] = {}
        self._known = LastRequests()
        self._breaker = CircuitBreaker(time.monotonic)
        self._number = 0
        self._step: Exchange | None = None
        self._running: Deferred[None] | None = None
        self._timer: CallLaterResult | None = None
        self._is_running = self._is_scheduled = self._is_due = False
        self._is_hungry = self._is_empty = self._is_closing = False
        self._num_waiting = self._num_others = 0
        self._look_s = SHORTEST_LOOK_S
        self._answered_at = self._active_at = time.monotonic()
        self._logged: set[str] = set()
        self._stats = FilterStats(crawler)
        # Not counted yet. It takes Scrapy as long as the rest of what is done with a duplicate.
        self._num_checked = self._num_refused = 0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self | LocalScheduler:  # type: ignore[override]
        """Make the scheduler; for commands that only look at pages, one that shares nothing."""
        if only_looks(crawler):
            local = LocalScheduler.from_crawler(crawler)
            local.df = RFPDupeFilter.from_crawler(crawler)
            return local
        return cls(crawler)

    def open(self, spider: Spider) -> None:
        """Read the settings, attach to filter and queue, and begin a lease.

        Args:
            spider: The spider.

        Raises:
            BloomlockError: A setting is not usable, another filter is stored under the name, or the
                server cannot be used.
        """
        settings = self._crawler.settings
        warn_of_unknown(settings)
        try:
            self._config = FilterSettings.read(settings, str(spider.name))
            self._settings = QueueSettings.read(settings)
            self._client = redis_client(settings, self._config.timeout)
            try:
                self._connect(spider)
            except (redis.RedisError, OSError) as error:
                raise ServerError(
                    f"the queue cannot be used at {place_of(self._client)} "
                    f"({type(error).__name__}: {error}), and the crawl does not start without it"
                ) from None
        except BloomlockError as error:
            logger.critical("%s", error)
            # Older versions of Scrapy, 2.14 is one, end with exit status 0 if there is a spider.
            self._crawler.spider = None
            raise
        self._crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)
        self._stats.watch(self._shared)
        self._arm()

    def _connect(self, spider: Spider) -> None:
        shards = 1 if isinstance(self._client, redis.RedisCluster) else None
        self._shared = self._config.open(self._client, shards=shards)
        self._generation = self._shared.generation
        self._queue = RequestQueue(self._shared, self._client, spider, self._settings, self._worker)
        self._pushes = Pushes(self._crawler, spider, self._queue, self._config)
        if self._settings.is_flushed:
            if self._queue.leave(empty=True):
                self._shared.clear()
                self._generation = self._shared.generation
            else:
                logger.warning(
                    "Other processes use the queue %r; SCHEDULER_FLUSH_ON_START empties nothing.",
                    self._queue.key,
                )
        answer = self._queue.exchange(Exchange(self._next_number()))
        self._note(answer)
        if answer.waiting:
            logger.info("Resuming crawl (%s requests scheduled)", f"{answer.waiting:,}")

    def close(self, reason: str) -> Deferred[None]:
        """Send what waits, put back what was not begun, and end the lease.

        Args:
            reason: Why the spider closed; not used.
        """
        del reason
        self._is_closing = True
        self._disarm()
        self._stats.stop()
        return deferred_from_coro(self._finish())

    def enqueue_request(self, request: Request) -> bool:
        """Take a request, to be tested, added and queued in the next round trip.

        Args:
            request: The request.

        Returns:
            False if it is known to be a duplicate. One that the server says to be a duplicate is
            logged and counted when the answer comes, and `request_dropped` is sent then.
        """
        fingerprint = self._pushes.fingerprint(request)
        mode = self._pushes.mode_of(request)
        self._num_checked += 1
        if mode in "ne" and fingerprint in self._known and self._is_fresh():
            self._num_refused += 1
            self._pushes.note_refused(request)
            return False
        self._waiting.append(self._pushes.make(request, fingerprint, mode))
        self._active_at = time.monotonic()
        self._schedule()
        return True

    def when_sent(self, call: Callable[[], None]) -> None:
        """Call when everything enqueued before is in the queue of the server."""
        self._waiting.append(call)
        self._schedule()

    def next_request(self) -> Request | None:
        """Return a request that was taken from the queue; None while there is none at hand."""
        self._collect_done()
        if self._local:
            request = self._local.popleft()
            self._pushes.count("scheduler/dequeued/memory")
        elif self._ready:
            identity, request = self._ready.popleft()
            self._open[request] = identity
            self._pushes.count("scheduler/dequeued/redis")
        else:
            self._is_hungry = True
            if not self._is_empty:
                self._schedule()
            return None
        self._pushes.count("scheduler/dequeued")
        self._pushes.begun(request)
        return request

    def has_pending_requests(self) -> bool:
        """Return whether anything waits here or in the queue, or is on its way."""
        self._collect_done()
        return bool(self._ready or self._local or self._waiting or self._step or self._num_waiting)

    def __len__(self) -> int:
        """Return how many requests wait, as far as is known; sends nothing."""
        return self._num_waiting + len(self._waiting) + len(self._ready) + len(self._local)

    # What the engine is asked. It has no public names for it (tests/scrapy_ext/test_kills.py).

    def _collect_done(self) -> None:
        """Find the requests that the engine is done with: callback, items and all."""
        in_progress = self._slot.inprogress if self._slot else ()
        for request in [one for one in self._open if one not in in_progress]:
            identity = self._open.pop(request)
            if identity is not None:
                self._waiting.append(identity)
                self._schedule()

    @property
    def _slot(self) -> Any:
        return getattr(self._crawler.engine, "_slot", None)

    def _wake_engine(self) -> None:
        if self._slot is not None and self._slot.closing is None:
            self._slot.nextcall.schedule()

    def _num_wanted(self) -> int:
        """Return how many requests the engine can begin; one that it cannot has no better order."""
        engine = self._crawler.engine
        if not self._is_hungry or engine is None or self._slot is None:
            return 0
        if engine.paused or engine.needs_backout():
            return 0
        downloader = engine.downloader
        free: int = downloader.total_concurrency - len(downloader.active) - len(self._ready)
        return max(free, 0)

    def _spider_idle(self) -> None:
        """Keep the spider open while requests of other processes may come back."""
        self._is_hungry = True
        idle_s = time.monotonic() - self._active_at
        if self._num_others > 0 or idle_s < self._settings.idle_s:
            raise DontCloseSpider

    def _is_fresh(self) -> bool:
        # What was seen here may be new again after a window, or forgotten by another client.
        is_lasting = self._config.window is None and not self._shared.has_discards
        return is_lasting and time.monotonic() - self._answered_at < self._config.max_staleness

    # Round trips.

    def _schedule(self) -> None:
        """Make a round trip as soon as the reactor has done what it is at."""
        if not (self._is_running or self._is_scheduled or self._breaker.broken):
            self._arm(0.0)

    def _arm(self, seconds: float | None = None) -> None:
        """Look again after some seconds; None: when the lease or the wish for requests says so."""
        if self._is_closing:
            return
        if seconds is None:
            seconds = self._settings.lease / RENEWALS_PER_LEASE
            if self._is_hungry:
                seconds = min(seconds, self._look_s)
        self._disarm()
        self._is_scheduled = seconds == 0
        self._timer = call_later(seconds, self._begin)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        self._is_due |= not self._is_scheduled
        self._is_scheduled = False
        if not self._is_running:
            self._is_running = True
            self._running = deferred_from_coro(self._run())

    def _has_work(self) -> bool:
        is_wanted = self._is_hungry and not self._is_empty and self._num_wanted() > 0
        return bool(self._step or self._waiting or self._is_due or is_wanted)

    async def _run(self) -> None:
        """Make round trips until there is nothing to send."""
        pause: float | None = None
        try:
            while self._has_work() and not self._is_closing:
                if not await self._trip():
                    pause = RETRY_S
                    break
                self._wake_engine()
        finally:
            self._is_running = False
            self._arm(pause)

    async def _trip(self) -> bool:
        """Make one round trip; return whether it was answered."""
        self._is_due = False
        self._count()
        if self._step is None:
            # Made once: the same number always says the same.
            some = [
                self._waiting.popleft() for _ in range(min(len(self._waiting), PUSHES_PER_TRIP))
            ]
            pushes = [one for one in some if isinstance(one, Push)]
            done = [one for one in some if isinstance(one, bytes)]
            self._then = [one for one in some if callable(one)]
            self._step = Exchange(self._next_number(), pushes, done, self._num_wanted())
        step = self._step
        if not self._breaker.may_try() and not self._is_closing:
            return False
        started = time.monotonic()
        try:
            answer = await run_in_thread(partial(self._queue.exchange, step))
        # The step is kept and sent again, whatever it was.
        except Exception as error:  # noqa: BLE001
            self._failed(error, time.monotonic() - started)
            return False
        self._step = None
        self._pushes.count("bloomlock/trips")
        self._take(step, answer)
        return True

    def _count(self) -> None:
        """Count what was enqueued since the last time."""
        if self._num_checked:
            self._stats.count("checked", self._num_checked)
        if self._num_refused:
            self._stats.count("cache_hits", self._num_refused)
            self._pushes.count("dupefilter/filtered", self._num_refused)
        self._num_checked = self._num_refused = 0

    def _next_number(self) -> int:
        self._number += 1
        return self._number - 1

    def _failed(self, error: Exception, cost: float) -> None:
        self._pushes.count("bloomlock/errors")
        if self._breaker.failed(cost):
            self._pushes.count("bloomlock/outages")
            logger.error(
                "The queue %r cannot be used (%s: %s); the crawl waits for it.",
                self._queue.key,
                type(error).__name__,
                error,
            )
        if isinstance(error, CapacityError):
            self._end_crawl("bloomlock_full")
        elif self._config.on_outage == "close":
            self._end_crawl("bloomlock_outage")

    def _end_crawl(self, reason: str) -> None:
        if "closing" not in self._logged and self._crawler.engine is not None:
            self._logged.add("closing")
            deferred_from_coro(self._crawler.engine.close_spider_async(reason=reason))

    def _take(self, step: Exchange, answer: Answer) -> None:
        """Take the answer to a step."""
        lasted = self._breaker.answered()
        if lasted is not None:
            logger.warning("The queue %r answers again after %.1f s.", self._queue.key, lasted)
        if answer.was_unknown:
            self._forget_taken()
        if self._shared.generation != self._generation:
            self._generation = self._shared.generation
            self._known.clear()
        for push, was_pushed in zip(step.pushes, answer.pushed, strict=True):
            if push.mode != "a" and not (push.mode == "e" and was_pushed):
                self._known.add(push.fingerprint)
            if was_pushed and not push.data:
                self._local.append(push.request)
            self._answered(push, was_pushed=was_pushed)
        for call in self._then:
            call()
        for identity, entry in answer.got:
            self._receive(identity, entry)
        if answer.got:
            self._active_at = time.monotonic()
            self._look_s = SHORTEST_LOOK_S
            self._is_hungry = False
        else:
            self._look_s = min(2 * self._look_s, LONGEST_LOOK_S)
        self._is_empty = answer.waiting == 0
        self._note(answer)

    def _answered(self, push: Push, *, was_pushed: bool) -> None:
        """Take the answer to one push; subclasses may count it."""
        self._pushes.answered(push, was_pushed=was_pushed)

    def _note(self, answer: Answer) -> None:
        """Note what the server says of the queue."""
        self._answered_at = time.monotonic()
        own = len(self._ready) + sum(isinstance(one, bytes) for one in self._waiting)
        own += sum(identity is not None for identity in self._open.values())
        self._num_waiting, self._num_others = answer.waiting, answer.taken - own
        if answer.recovered:
            self._pushes.count("bloomlock/recovered", answer.recovered)
            logger.info(
                "%d requests that a process had taken wait again: it ended without having done "
                "them, or did not renew its lease.",
                answer.recovered,
            )

    def _receive(self, identity: bytes, entry: bytes) -> None:
        try:
            self._ready.append((identity, self._queue.decode(entry)))
        # What stands in the queue may be of another spider, or of other code.
        except Exception:
            self._waiting.append(identity)
            self._pushes.count("bloomlock/unreadable")
            logger.exception("A request in the queue %r cannot be read.", self._queue.key)

    def _forget_taken(self) -> None:
        """Begin anew: the server has put back what this process had taken."""
        logger.warning(
            "The server does not know this process any more, as its lease was over or data was "
            "lost; others may fetch what it had begun."
        )
        self._ready.clear()
        self._waiting = deque(one for one in self._waiting if not isinstance(one, bytes))
        self._open = dict.fromkeys(self._open)

    async def _finish(self) -> None:
        """Do the last things that need the server. Never raises."""
        if self._is_running and self._running is not None:
            await maybe_deferred_to_future(self._running)
        if not hasattr(self, "_queue"):
            return
        self._is_hungry = False
        self._count()
        self._collect_done()
        self._disarm()
        while self._step or self._waiting:
            if not await self._trip():
                break
        try:
            await self._stats.look(self._shared)
            await run_in_thread(self._leave)
        # An error here would hide how the crawl ended.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "The queue %r was not left in order; what this process has not done is taken over "
                "in %g s: %s",
                self._queue.key,
                self._settings.lease,
                error,
            )
        self._shared.close()
        self._client.close()

    def _leave(self) -> None:
        is_kept = self._settings.is_kept and not self._config.clear_on_close
        if self._queue.leave(empty=not is_kept):
            self._shared.delete()
