"""A filter that always answers: with the server's word, or with what the policy says instead."""

from __future__ import annotations

import enum
import logging
import time
from typing import TYPE_CHECKING, Any

import redis.exceptions

from bloomlock import BloomFilter, CapacityError, OutcomeUnknownError
from scrapy_ext.outage import CircuitBreaker, LocalMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_ext.settings import FilterSettings

logger = logging.getLogger("bloomlock.scrapy")

# At a start these mean that the server is away for now; anything else is a wrong setting.
_AWAY = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)
_REFUSED = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)
_SETTLED_AT_ONCE = 1_000


class Verdict(enum.Enum):
    """What is known about an item."""

    NEW = "new"
    SEEN = "seen"
    ALLOWED = "allowed"  # not known; the policy lets it through
    DROPPED = "dropped"  # not known; the policy keeps it out


class GuardedFilter:
    """The shared filter behind a circuit breaker and a policy. `check` never raises."""

    def __init__(
        self,
        config: FilterSettings,
        connect: Callable[[], Any],
        count: Callable[[str], None],
        close: Callable[[str], None],
    ) -> None:
        """Prepare the filter. Nothing is sent yet.

        Args:
            config: The settings of the filter.
            connect: Makes the client, when it is first needed.
            count: Called with `errors`, `outages`, `unknown` or `full` when one happened.
            close: Called with a reason each time the policy `close` wants the crawl to end.
        """
        self._config = config
        self._connect = connect
        self._count = count
        self._close = close
        self._client: Any = None
        self._filter: BloomFilter | None = None
        self._breaker = CircuitBreaker(time.monotonic)
        self._memory = LocalMemory()
        self._told_full = False

    @property
    def name(self) -> str:
        """Name of the filter."""
        return self._config.name

    @property
    def broken(self) -> bool:
        """Whether the last round trip failed."""
        return self._breaker.broken

    @property
    def closes(self) -> bool:
        """Whether the policy is to end the crawl."""
        return self._config.on_outage == "close"

    def start(self) -> None:
        """Create or attach to the filter; a server that is away counts as an outage.

        Raises:
            BloomlockError: A setting is not usable, or another filter is stored under the name.
        """
        self._client = self._connect()
        started = time.monotonic()
        try:
            self.attached()
        except _REFUSED:
            raise
        except _AWAY as error:
            self._failed(error, started)

    def attached(self) -> BloomFilter:
        """Return the filter, attaching to it first where that has not worked yet."""
        if self._client is None:
            self._client = self._connect()
        if self._filter is None:
            self._filter = BloomFilter(
                self._config.name,
                self._config.capacity,
                self._config.error_rate,
                client=self._client,
                strategy=self._config.strategy,
                near_cache=self._config.near_cache,
                max_staleness=self._config.max_staleness,
                layout=self._config.layout,
                on_full=self._config.on_full,
                on_lost="recreate",
            )
        return self._filter

    def check(self, key: bytes | str, *, droppable: bool = True) -> Verdict:
        """Record an item and tell whether it was there. Never raises.

        One round trip, or none for an item that this process knows as seen.

        Args:
            key: The item.
            droppable: Whether the policy `drop` may keep it out.

        Returns:
            The server's word, or the policy's.
        """
        if key in self._memory:
            return Verdict.SEEN
        if not self._breaker.may_try():
            return self.decide(key, droppable=droppable)
        started = time.monotonic()
        try:
            new = self.attached().add(key)
        except OutcomeUnknownError as error:
            # It may be recorded by now; then dropping it would lose it for every process.
            self._count("unknown")
            self._failed(error, started)
            self._memory.add(key, owed=True)
            return Verdict.NEW
        except CapacityError as error:
            self._full(error)
            return self.decide(key, owed=False, droppable=droppable)
        # BLE001: a raise from here loses every link of the page and can hang the crawl.
        except Exception as error:  # noqa: BLE001
            self._failed(error, started)
            return self.decide(key, droppable=droppable)
        self._answered()
        return Verdict.NEW if new else Verdict.SEEN

    def decide(self, key: bytes | str, *, owed: bool = True, droppable: bool = True) -> Verdict:
        """Decide about an item without an answer, by the policy.

        Args:
            key: The item.
            owed: Whether the filter shall get the item when it can be reached again.
            droppable: Whether the policy `drop` may keep it out.
        """
        if droppable and self._config.on_outage == "drop":
            return Verdict.DROPPED
        if key in self._memory:
            return Verdict.SEEN
        self._memory.add(key, owed=owed)
        return Verdict.ALLOWED

    def finish(self, last: Callable[[BloomFilter], None]) -> None:
        """Hand over what is owed, let `last` have the filter, close the client. Never raises."""
        try:
            if self._breaker.may_try():
                shared = self.attached()
                while owed := self._memory.owed(_SETTLED_AT_ONCE):
                    shared.update(owed)
                    self._memory.settle(owed)
                last(shared)
        # BLE001: an error here would hide how the crawl ended.
        except Exception as error:  # noqa: BLE001
            logger.warning("The filter %r was not closed in order: %s", self.name, error)
        if self._filter is not None:
            self._filter.close()
        if self._client is not None:
            self._client.close()

    def _failed(self, error: Exception, started: float) -> None:
        """Note a failed round trip, and tell once for each outage."""
        self._count("errors")
        if self._breaker.failed(time.monotonic() - started):
            self._count("outages")
            logger.error(
                "The filter %r cannot be asked (%s: %s); what it should check until then: %s.",
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
        if not self._told_full:
            self._told_full = True
            logger.error("%s Until then: %s.", error, self._config.on_outage)
        if self.closes:
            self._close("bloomlock_full")

    def _answered(self) -> None:
        """Note that the server answered; give it what was let through in its absence."""
        lasted = self._breaker.answered()
        if lasted is not None:
            logger.warning("The filter %r answers again after %.1f s.", self.name, lasted)
        owed = self._memory.owed(_SETTLED_AT_ONCE)
        if not owed:
            return
        started = time.monotonic()
        try:
            self.attached().update(owed)
        # BLE001: the same promise as in `check`; what is owed stays owed.
        except Exception as error:  # noqa: BLE001
            self._failed(error, started)
        else:
            self._memory.settle(owed)
