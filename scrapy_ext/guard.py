"""A filter that always answers: with the server's word, or with what the policy says instead."""

from __future__ import annotations

import enum
import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import redis.exceptions

from bloomlock import (
    BloomFilter,
    BloomlockError,
    CapacityError,
    MemoryBloomFilter,
    OutcomeUnknownError,
    ServerError,
)
from scrapy_ext.connection import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_ext.settings import FilterSettings

logger = logging.getLogger("bloomlock.scrapy")


# At most a tenth of the reactor's time is spent on a server that does not answer.
_PAUSE_PER_COST = 10.0
_SHORTEST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class CircuitBreaker:
    """Decides when a server that failed is tried again, so an outage does not cost every link.

    After a failure nothing is tried for ten times as long as the failure took: half a second
    where the connection was refused at once, ten seconds where a time-out of a second ran out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._resume = 0.0
        self._since: float | None = None

    @property
    def broken(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    def may_try(self) -> bool:
        """Return whether it is time to ask the server."""
        return self._since is None or self._clock() >= self._resume

    def failed(self, cost: float) -> bool:
        """Note a try that failed after `cost` seconds; True if it is the first of an outage."""
        now = self._clock()
        first = self._since is None
        if self._since is None:
            self._since = now - cost
        self._resume = now + min(max(_PAUSE_PER_COST * cost, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        return first

    def answered(self) -> float | None:
        """Note an answer; return the seconds of the outage that ends here, None if none."""
        if self._since is None:
            return None
        lasted = self._clock() - self._since
        self._since = None
        return lasted


class LastRequests:
    """The last fingerprints, each as it is; the oldest are forgotten first."""

    def __init__(self, limit: int = 200_000) -> None:
        self._limit = limit
        self._kept: OrderedDict[bytes | str, None] = OrderedDict()

    def __contains__(self, key: bytes | str) -> bool:
        return key in self._kept

    def add(self, key: bytes | str) -> bool:
        """Remember a fingerprint; True if it was not known."""
        if key in self._kept:
            return False
        self._kept[key] = None
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def __iter__(self) -> Iterator[bytes | str]:
        return iter(list(self._kept))


class Verdict(enum.Enum):
    """What is known about an item."""

    NEW = "new"
    SEEN = "seen"
    ALLOWED = "allowed"  # not known; the policy lets it through
    DROPPED = "dropped"  # not known; the policy keeps it out


class GuardedFilter:
    """The shared filter behind a circuit breaker and a policy. `check` never raises.

    What this process was answered is known to it as well. It decides while the
    filter cannot be asked, and what a filter that lost its content gets back.
    """

    def __init__(
        self,
        config: FilterSettings,
        connect: Callable[[], Any],
        count: Callable[[str], None],
        close: Callable[[str], None],
    ) -> None:
        self._config = config
        self._connect = connect
        self._count = count
        self._close = close
        self._client: Any = None
        self._filter: BloomFilter | None = None
        self._generation = 0
        self._past: set[int] = set()
        self._breaker = CircuitBreaker(time.monotonic)
        # What the filter was answered for or is owed; and what was let through but is not for it.
        self._known: MemoryBloomFilter | LastRequests = LastRequests()
        self._unrecorded = LastRequests()
        self._refill_due = False
        self._refills = CircuitBreaker(time.monotonic)
        self._reported_full = False

    @property
    def name(self) -> str:
        """Name of the filter."""
        return self._config.name

    @property
    def closes(self) -> bool:
        """Whether the policy is to end the crawl."""
        return self._config.on_outage == "close"

    @property
    def broken(self) -> bool:
        """Whether the last round trip failed."""
        return self._breaker.broken

    def start(self) -> int:
        """Create the filter or attach to it.

        Returns:
            About how many requests were recorded before.

        Raises:
            ServerError: The server cannot be reached, or refuses.
            BloomlockError: A setting is not usable, or another filter is stored under the name.

        Cost: some round trips; the server reads the whole filter once.
        """
        self._client = self._connect()
        try:
            self._filter = shared = self._attach()
            recorded = shared.count()
        except BloomlockError:
            raise
        except (redis.exceptions.RedisError, OSError) as error:
            raise ServerError(
                f"the filter {self.name!r} cannot be used at {place_of(self._client)} "
                f"({type(error).__name__}: {error}), and the crawl does not start without it"
            ) from None
        self._generation = shared.generation
        if shared.num_bits // 8 <= self._config.mirror_bytes:
            # A part of the shared filter's bits: what looks known here by chance looks known there.
            # A request costs 2 to 5 µs, and all together as many bytes as the shared filter.
            self._known = MemoryBloomFilter.like(shared)
        return recorded

    def _attach(self) -> BloomFilter:
        return BloomFilter(
            self._config.name,
            self._config.capacity,
            self._config.error_rate,
            client=self._client,
            strategy=self._config.strategy,
            near_cache=self._config.near_cache,
            max_staleness=self._config.max_staleness,
            layout=self._config.layout,
            optimize=self._config.optimize,
            num_hashes=self._config.num_hashes,
            key=self._config.key,
            on_full=self._config.on_full,
            on_lost="recreate",
        )

    @property
    def shared(self) -> BloomFilter:
        """The filter. `start` has returned."""
        if self._filter is None:
            raise RuntimeError("start() first")
        return self._filter

    def check(self, key: bytes | str, *, droppable: bool = True) -> Verdict:
        """Record an item and return whether it was there. Never raises.

        Cost: one round trip, or none for an item in the near-cache.
        """
        if key in self._unrecorded:
            return Verdict.SEEN
        if self._breaker.may_try():
            started = time.monotonic()
            try:
                new = self.shared.add(key)
            except OutcomeUnknownError as error:
                # It may be recorded by now; then dropping it would lose it for every process.
                self._count("unknown")
                self._failed(error, started)
                return Verdict.NEW if self._known.add(key) else Verdict.SEEN
            except CapacityError as error:
                self._full(error)
                if key not in self._known:
                    return self.decide(key, owed=False, droppable=droppable)
            # BLE001: a raise from here loses every link of the page and can hang the crawl.
            except Exception as error:  # noqa: BLE001
                self._failed(error, started)
            else:
                return self._answered(key, new=new)
        return Verdict.SEEN if key in self._known else self.decide(key, droppable=droppable)

    def decide(self, key: bytes | str, *, owed: bool = True, droppable: bool = True) -> Verdict:
        """Decide about an item that nothing is known of, by the policy.

        `owed`: the filter gets it later. `droppable`: the policy `drop` may keep it out.
        """
        if droppable and self._config.on_outage == "drop":
            return Verdict.DROPPED
        chosen = self._known if owed else self._unrecorded
        if key in chosen:
            return Verdict.SEEN
        chosen.add(key)
        return Verdict.ALLOWED

    def wipe(self) -> None:
        """Clear the filter for every process that uses it, and forget what this one knows."""
        self.shared.clear()
        self._follow(self.shared)

    def finish(self, last: Callable[[BloomFilter], None]) -> None:
        """Hand over what is owed, let `last` have the filter, close the client. Never raises."""
        if self._filter is not None:
            try:
                if self._breaker.broken or self._refill_due:
                    self._filter.update(self._known)
                last(self._filter)
            # BLE001: an error here would hide how the crawl ended.
            except Exception as error:  # noqa: BLE001
                logger.warning("The filter %r was not closed in order: %s", self.name, error)
            self._filter.close()
        if self._client is not None:
            self._client.close()

    def _answered(self, key: bytes | str, *, new: bool) -> Verdict:
        """Take the server's answer about an item, and see whether the filter lost anything."""
        lasted = self._breaker.answered()
        if lasted is not None:
            logger.warning("The filter %r answers again after %.1f s.", self.name, lasted)
            # It may have come back with the bits of an earlier moment.
            self._refill_due = True
        shared = self.shared
        if shared.generation != self._generation:
            self._follow(shared)
        known = not self._known.add(key)
        if new and known:
            self._refill_due = True
        if self._refill_due and self._refills.may_try():
            self._refill(shared)
        return Verdict.NEW if new and not known else Verdict.SEEN

    def _follow(self, shared: BloomFilter) -> None:
        """Go on with another generation: emptied on purpose, or made because one was lost."""
        self._past.add(self._generation)
        self._generation = shared.generation
        # A generation that returns is one of a server that was set back.
        if shared.cleared and shared.generation not in self._past:
            self._known.clear()
            self._refill_due = False
        else:
            self._refill_due = True

    def _refill(self, shared: BloomFilter) -> None:
        """Give the filter everything that this process knows."""
        started = time.monotonic()
        try:
            shared.update(self._known)
        except CapacityError as error:
            self._full(error)
        # BLE001: the same promise as in `check`; what is owed stays owed.
        except Exception as error:  # noqa: BLE001
            self._count("errors")
            if self._refills.failed(time.monotonic() - started):
                logger.error(  # noqa: TRY400 - one sentence; the trace says nothing more
                    "The filter %r may have lost requests and cannot be given them again (%s: %s); "
                    "it is tried again.",
                    self.name,
                    type(error).__name__,
                    error,
                )
            return
        else:
            self._count("refills")
            logger.warning("The filter %r was given all requests this process knows.", self.name)
        self._refills.answered()
        self._refill_due = False

    def _failed(self, error: Exception, started: float) -> None:
        """Note a failed round trip, and log the first of each outage."""
        self._count("errors")
        if self._breaker.failed(time.monotonic() - started):
            self._count("outages")
            logger.error(
                "The filter %r cannot be asked (%s: %s); what this process has not seen is decided "
                "by BLOOMLOCK_ON_OUTAGE until then: %s.",
                self.name,
                type(error).__name__,
                error,
                self._config.on_outage,
            )
        if self.closes:
            self._close("bloomlock_outage")

    def _full(self, error: CapacityError) -> None:
        """Note that the filter refused an item because it is full."""
        self._count("full")
        if not self._reported_full:
            self._reported_full = True
            logger.error("%s Until then: %s.", error, self._config.on_outage)
        if self.closes:
            self._close("bloomlock_full")


class UnsharedFilter:
    """Stands in for the shared filter where a tool looks at pages: known to this process only."""

    broken = closes = False

    def __init__(self) -> None:
        self._known: set[bytes | str] = set()

    def check(self, key: bytes | str, *, droppable: bool = True) -> Verdict:
        """Record an item and return whether it was there."""
        del droppable
        if key in self._known:
            return Verdict.SEEN
        self._known.add(key)
        return Verdict.NEW

    def decide(self, key: bytes | str, *, owed: bool = True, droppable: bool = True) -> Verdict:
        """Do the same."""
        del owed
        return self.check(key, droppable=droppable)

    def wipe(self) -> None:
        """Forget everything."""
        self._known.clear()

    def finish(self, last: Callable[[BloomFilter], None]) -> None:
        """Do nothing: there is nothing to close."""
