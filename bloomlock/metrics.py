"""Metrics of filters and locks through OpenTelemetry; it takes the extra `metrics`."""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from bloomlock import BloomFilter
from bloomlock.errors import BloomlockError

try:
    from opentelemetry.metrics import MeterProvider, Observation, get_meter
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "bloomlock.metrics needs OpenTelemetry: pip install 'bloomlock[metrics]'", name=missing.name
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bloomlock import AsyncBloomFilter, FilterInfo, LockEvent

GAUGES = ("capacity", "estimated_count", "error_rate", "current_error_rate", "memory_bytes")
CLAIMS = ("claimed", "committed", "abandoned", "failed", "expired")


class Metrics:
    """Makes metrics of filters by name, of what filter objects answer, and of events of locks.

    Args:
        meter_provider: Of OpenTelemetry; None: the global one, also if it is set later.
        every: Seconds for which what `poll` read of a filter is not read again.

    >>> from opentelemetry.sdk.metrics import MeterProvider
    >>> metrics = Metrics(MeterProvider())
    >>> metrics.poll("pages", client="redis://localhost:6379/0")
    """

    def __init__(self, meter_provider: MeterProvider | None = None, every: float = 60.0) -> None:
        self._every = every
        # Of each filter what it is opened with, when that was done last, and what it said.
        self._polled: dict[str, tuple[dict[str, Any], float, FilterInfo | None]] = {}
        meter = get_meter("bloomlock", meter_provider=meter_provider)
        gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
        for name in (*GAUGES, "claims.open", "claims.failed_items"):
            gauge(f"bloomlock.filter.{name}", [self._observe_info(name)])
        for name in CLAIMS:
            counter(f"bloomlock.filter.claims.{name}", [self._observe_info(f"claims.{name}")])

        def counts(name: str, *labels: str) -> defaultdict[tuple[str, str], float]:
            made: defaultdict[tuple[str, str], float] = defaultdict(float)

            def observe(_: object) -> Iterator[Observation]:
                for key, count in list(made.items()):
                    yield Observation(count, dict(zip(labels, key, strict=True)))

            counter(f"bloomlock.{name}", [observe])
            return made

        self._adds = counts("filter.adds", "filter", "answer")
        self._errors = counts("filter.errors", "filter", "error")
        self._events = counts("lock.events", "lock", "event")
        self._seconds = counts("lock.seconds", "lock", "event")

    def poll(self, name: str, **options: Any) -> None:
        """Export what `info` says of a filter; one process of all that use the filter is enough.

        It is opened, by `options` as for `BloomFilter.open`, and read when metrics are collected.
        While it cannot be read, its metrics are missing, and `bloomlock.filter.errors` rises.

        Cost: none now; a read costs two round trips more than `BloomFilter.info`.
        """
        # A wrong option is an error here, not of each reading.
        inspect.signature(BloomFilter.open).bind(name, **options)
        self._polled[name] = options, -self._every, None

    def count(self, bloom_filter: BloomFilter | AsyncBloomFilter) -> None:
        """Count what `add` and `add_many` of an object answer, and the errors of its requests.

        Nothing has been added by it yet. What `add_each` and `update` add is not counted.

        Cost: less than a microsecond for each call.
        """
        made: Any = bloom_filter
        name = made.name

        # No lock: it would take as long again, and could stay taken in a child of fork.
        def note_adds(answer: object) -> None:
            for is_new in answer if isinstance(answer, list) else [answer]:
                if isinstance(is_new, bool):
                    self._adds[name, "new" if is_new else "seen"] += 1

        def note_error(answer: object) -> None:
            if isinstance(answer, Exception):
                self._errors[name, type(answer).__name__] += 1

        # What an object has itself comes before the methods of its class, which stay as they are.
        made.add, made.add_many = _noted(made.add, note_adds), _noted(made.add_many, note_adds)
        made._run = _noted(made._run, note_error)  # noqa: SLF001 - of this package

    def observe_lock(self, event: LockEvent) -> None:
        """Count an event of a lock and its seconds, in a microsecond; give it as `observer=`."""
        self._events[event.name, event.kind] += 1
        self._seconds[event.name, event.kind] += event.seconds

    def _observe_info(self, attribute: str) -> Callable[[object], Iterator[Observation]]:
        def observe(_: object) -> Iterator[Observation]:
            for name in list(self._polled):
                if (info := self._info(name)) is not None:
                    yield Observation(attrgetter(attribute)(info), {"filter": name})

        return observe

    def _info(self, name: str) -> FilterInfo | None:
        options, read_at, info = self._polled[name]
        if (now := time.monotonic()) - read_at >= self._every:
            info = None
            try:
                with BloomFilter.open(name, **options) as opened:
                    info = opened.info()
            except (RedisError, BloomlockError) as error:
                self._errors[name, type(error).__name__] += 1
            self._polled[name] = options, now, info
        return info


def _noted(method: Callable[..., Any], note: Callable[[object], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = method(*args, **kwargs)
        except Exception as error:
            note(error)
            raise
        note(answer)
        return answer

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = await method(*args, **kwargs)
        except Exception as error:
            note(error)
            raise
        note(answer)
        return answer

    return call_async if inspect.iscoroutinefunction(method) else call
