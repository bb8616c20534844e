"""The settings of a crawl, read and checked before it starts."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import load_object

from bloomlock import BloomFilter, NearCache, Window
from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger("bloomlock.scrapy")

_PREFIX = "BLOOMLOCK_"
_NAMES = (
    "URL",
    "NAME",
    "CAPACITY",
    "ERROR_RATE",
    "WINDOW",
    "PERSIST",
    "RESUME",
    "RETRIES",
    "ORDER",
    "PACE",
    "ON_OUTAGE",
    "LEASE",
    "FILTER",
    "PICKLE",
    "STRATEGY",
    "OPTIMIZE",
    "NUM_HASHES",
    "SLICES",
    "KEY",
    "NEAR_CACHE",
    "MAX_STALENESS",
    "MIRROR_BYTES",
    "ON_FULL",
    "TIMEOUT",
    "CLEAR_ON_CLOSE",
    "RECORD_UNFILTERED",
    "MARK",
    "AUDIT_SAMPLE",
)
KNOWN = tuple(_PREFIX + name for name in _NAMES)
FILTER_OPTIONS = ("strategy", "key", "seeds", "num_hashes", "optimize", "on_full", "timeout")
"""What BLOOMLOCK_FILTER may have: parameters of BloomFilter, and the time-out of the client."""


@dataclass(frozen=True, slots=True)
class CrawlSettings:
    """What the project's settings say; docs/scrapy.md explains each.

    Attributes:
        name: BLOOMLOCK_NAME, filled with attributes of the spider.
        is_named: Whether the project has set it.
        options: BLOOMLOCK_FILTER without `timeout`.
    """

    name: str
    is_named: bool
    capacity: int
    error_rate: float
    window: float | None
    persist: bool
    resume: bool
    retries: int
    order: str
    pace: str
    on_outage: str
    lease: float
    pickle: bool
    options: Mapping[str, Any]
    timeout: float

    def open(
        self, client: Any, *, name: str | None = None, window: bool = False, **options: Any
    ) -> BloomFilter:
        """Create a filter or attach to it; errors are those of BloomFilter.

        Args:
            client: The client.
            name: Its name; None: that of the crawl.
            window: Whether it is the one that BLOOMLOCK_WINDOW is about.
            options: Further parameters of BloomFilter.
        """
        return BloomFilter(
            name or self.name,
            self.capacity,
            self.error_rate,
            client=client,
            window=self.window if window else None,
            **{**self.options, **options},
        )

    @classmethod
    def read(cls, crawler: Crawler) -> CrawlSettings:
        """Read the settings of a crawl.

        Raises:
            ConfigurationError: A value is not allowed; the sentence names it.
        """
        settings = crawler.settings
        name = settings.get("BLOOMLOCK_NAME")
        window = settings.get("BLOOMLOCK_WINDOW")
        options = _options(settings)
        timeout = options.pop("timeout", 1.0)
        return cls(
            name=_filled("%(name)s" if name is None else name, crawler.spider or crawler.spidercls),
            is_named=name is not None,
            capacity=int(_number(settings, "BLOOMLOCK_CAPACITY", 1_000_000, whole=True)),
            error_rate=_number(settings, "BLOOMLOCK_ERROR_RATE", 1e-6, below=1.0),
            window=None if window is None else _number(settings, "BLOOMLOCK_WINDOW", 0.0),
            persist=_flag(settings, "BLOOMLOCK_PERSIST", default=False),
            resume=_flag(settings, "BLOOMLOCK_RESUME", default=True)
            # What scrapy-redis calls it.
            and not _flag(settings, "SCHEDULER_FLUSH_ON_START", default=False),
            retries=int(_number(settings, "BLOOMLOCK_RETRIES", 0, whole=True, or_zero=True)),
            order=_choice(settings, "BLOOMLOCK_ORDER", ("lifo", "fifo")),
            pace=_choice(settings, "BLOOMLOCK_PACE", ("shared", "process")),
            on_outage=_choice(settings, "BLOOMLOCK_ON_OUTAGE", ("wait", "close")),
            lease=_number(settings, "BLOOMLOCK_LEASE", 60.0),
            pickle=_flag(settings, "BLOOMLOCK_PICKLE", default=True),
            options=options,
            timeout=timeout,
        )


_OUTLIVES = (
    "The filter %r outlives this crawl, and a request counts as seen as soon as it is queued. %s "
    "What is lost counts as seen until the filter is cleared."
)
_NOTHING_IS_LOST = ' With BLOOMLOCK_MARK = "processed" nothing is lost.'
_QUEUE_IS_LOST = (
    "The queue is only in memory and is lost when the crawl stops before it is empty, in order or "
    "not."
)
_QUEUE_IS_LOST_IN_A_CRASH = (
    "JOBDIR keeps the queue of a crawl that is stopped in order; if the process is killed or "
    "crashes, the queue is lost."
)
_IN_FLIGHT_IS_LOST = (
    "scrapy-redis keeps the queue; if a process is killed or crashes, the requests it was fetching "
    "are lost."
)


POLICIES = ("allow", "drop", "close")
MARKS = ("scheduled", "downloaded", "processed")


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """What the project's settings say about the filter; docs/scrapy.md explains each.

    `debug` is Scrapy's own DUPEFILTER_DEBUG: every duplicate is logged.
    """

    name: str
    capacity: int
    error_rate: float
    near_cache: int
    max_staleness: float
    mirror_bytes: int
    strategy: str
    optimize: Literal["memory", "balanced", "speed"] | None
    num_hashes: int | None
    window: float | None
    slices: int | None
    key: str | bytes | Literal[True] | None = field(repr=False)
    on_full: Literal["warn", "raise", "grow"]
    on_outage: str
    timeout: float
    clear_on_close: bool
    record_unfiltered: bool
    mark: str
    lease: float
    audit_sample: int
    debug: bool

    def open(self, client: Any, *, near_cache: int = 0, shards: int | None = None) -> BloomFilter:
        """Create the filter or attach to it; errors are those of BloomFilter."""
        if self.window is None and self.slices is not None:
            raise ConfigurationError("BLOOMLOCK_SLICES needs BLOOMLOCK_WINDOW, which it divides")
        return BloomFilter(
            self.name,
            self.capacity,
            self.error_rate,
            client=client,
            strategy=self.strategy,
            near_cache=NearCache(near_cache, self.max_staleness),
            optimize=self.optimize,
            num_hashes=self.num_hashes,
            window=None if self.window is None else Window(self.window, self.slices),
            key=self.key,
            on_full=self.on_full,
            on_lost="recreate",
            shards=shards,
        )

    @classmethod
    def read(cls, settings: BaseSettings, spider_name: str) -> FilterSettings:
        """Read the settings of a crawl."""
        window = settings.get("BLOOMLOCK_WINDOW")
        if window is not None:
            window = _number(settings, "BLOOMLOCK_WINDOW", 0.0)
        return cls(
            name=_name(settings.get("BLOOMLOCK_NAME", "%(spider)s:dupefilter"), spider_name),
            capacity=int(_number(settings, "BLOOMLOCK_CAPACITY", 1_000_000, whole=True)),
            error_rate=_number(settings, "BLOOMLOCK_ERROR_RATE", 1e-6, below=1.0),
            near_cache=int(
                _number(settings, "BLOOMLOCK_NEAR_CACHE", 100_000, whole=True, or_zero=True)
            ),
            max_staleness=_number(settings, "BLOOMLOCK_MAX_STALENESS", 1.0),
            mirror_bytes=int(
                _number(settings, "BLOOMLOCK_MIRROR_BYTES", 2**28, whole=True, or_zero=True)
            ),
            strategy=str(settings.get("BLOOMLOCK_STRATEGY", "atomic")),
            # The library checks these, and knows best what is allowed.
            optimize=cast("Any", settings.get("BLOOMLOCK_OPTIMIZE")),
            num_hashes=None
            if settings.get("BLOOMLOCK_NUM_HASHES") is None
            else int(_number(settings, "BLOOMLOCK_NUM_HASHES", 1, whole=True)),
            window=window,
            slices=None
            if settings.get("BLOOMLOCK_SLICES") is None
            else int(_number(settings, "BLOOMLOCK_SLICES", 6, whole=True)),
            key=_key(settings.get("BLOOMLOCK_KEY")),
            on_full=cast("Any", settings.get("BLOOMLOCK_ON_FULL", "warn")),
            on_outage=_choice(settings, "BLOOMLOCK_ON_OUTAGE", POLICIES),
            timeout=_number(settings, "BLOOMLOCK_TIMEOUT", 1.0),
            clear_on_close=_flag(settings, "BLOOMLOCK_CLEAR_ON_CLOSE"),
            record_unfiltered=_flag(settings, "BLOOMLOCK_RECORD_UNFILTERED"),
            mark=_choice(settings, "BLOOMLOCK_MARK", MARKS),
            lease=_number(settings, "BLOOMLOCK_LEASE", 60.0),
            audit_sample=int(
                _number(settings, "BLOOMLOCK_AUDIT_SAMPLE", 0, whole=True, or_zero=True)
            ),
            debug=_flag(settings, "DUPEFILTER_DEBUG"),
        )


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What the project's settings say about the queue that processes share.

    All but `lease` are those of scrapy-redis.

    Attributes:
        key: SCHEDULER_QUEUE_KEY, with %(spider)s for the spider's name.
        queue_class: SCHEDULER_QUEUE_CLASS: the order.
        serializer: SCHEDULER_SERIALIZER: a module, or an object with loads and dumps.
        is_flushed: SCHEDULER_FLUSH_ON_START.
        is_kept: False where SCHEDULER_PERSIST is False.
        idle_s: SCHEDULER_IDLE_BEFORE_CLOSE.
        lease: BLOOMLOCK_LEASE: seconds after which requests of a dead process are taken over.
    """

    key: str | None
    queue_class: str | type
    serializer: Any
    is_flushed: bool
    is_kept: bool
    idle_s: float
    lease: float

    @classmethod
    def read(cls, settings: BaseSettings) -> QueueSettings:
        """Read the settings of a crawl."""
        key = settings.get("SCHEDULER_QUEUE_KEY")
        if key is not None:
            _name(key, "spider", "SCHEDULER_QUEUE_KEY")
        return cls(
            key=key,
            queue_class=settings.get("SCHEDULER_QUEUE_CLASS", "scrapy_redis.queue.PriorityQueue"),
            serializer=settings.get("SCHEDULER_SERIALIZER"),
            is_flushed=_flag(settings, "SCHEDULER_FLUSH_ON_START"),
            is_kept=settings.get("SCHEDULER_PERSIST") is None
            or _flag(settings, "SCHEDULER_PERSIST"),
            idle_s=_number(settings, "SCHEDULER_IDLE_BEFORE_CLOSE", 0, or_zero=True),
            lease=_number(settings, "BLOOMLOCK_LEASE", 60.0),
        )


def warn_of_queue(settings: BaseSettings, config: FilterSettings) -> None:
    """Say which requests are never fetched if the crawl ends early."""
    if config.clear_on_close or config.mark != "scheduled":
        return
    # Not issubclass: Scrapy's metaclass calls everything with the right methods a subclass.
    bases = load_object(settings["SCHEDULER"]).__mro__
    of_scrapy_redis = any(base.__module__.startswith("scrapy_redis.") for base in bases)
    if of_scrapy_redis and not settings.getbool("SCHEDULER_PERSIST"):
        logger.warning(
            "SCHEDULER_PERSIST is False: the first process that closes empties the queue of all, "
            "while the filter %r keeps what was queued as seen. Set it to True.",
            config.name,
        )
    elif of_scrapy_redis:
        logger.info(_OUTLIVES, config.name, _IN_FLIGHT_IS_LOST)
    elif Scheduler in bases:
        consequence = _QUEUE_IS_LOST_IN_A_CRASH if settings.get("JOBDIR") else _QUEUE_IS_LOST
        logger.warning(_OUTLIVES, config.name, consequence + _NOTHING_IS_LOST)


def keeps_requests(settings: BaseSettings) -> bool:
    """Return whether the queue hands back the objects that were put in, and not copies."""
    return load_object(settings["SCHEDULER"]) is Scheduler and not settings.get("JOBDIR")


def warn_of_unknown(settings: BaseSettings) -> None:
    """Warn of settings that look like ours and are none."""
    for key in sorted(set(settings) - set(KNOWN)):
        if key.startswith(_PREFIX):
            near = difflib.get_close_matches(key.removeprefix(_PREFIX), _NAMES, n=1)
            meant = (
                f"Did you mean {_PREFIX}{near[0]}?" if near else f"Known are {', '.join(KNOWN)}."
            )
            logger.warning("There is no setting %s; it has no effect. %s", key, meant)


def only_looks(crawler: Crawler) -> bool:
    """Return whether one of Scrapy's commands runs that looks at pages and does not crawl.

    `fetch`, `view`, `parse` and `check` put a `start` of their own into the spider class, which no
    crawl does; `shell` runs the engine without a crawl.
    """
    made_by = str(getattr(crawler.spidercls.start, "__module__", ""))
    return made_by.startswith("scrapy.commands.") or not crawler.crawling


class _Attributes(Mapping[str, Any]):
    """The attributes of a spider, as FEEDS has them in its names of files."""

    def __init__(self, spider: object) -> None:
        self._spider = spider

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._spider, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(dir(self._spider))

    def __len__(self) -> int:
        return len(dir(self._spider))


def _filled(template: object, spider: object) -> str:
    """Fill attributes of the spider into the template."""
    allowed = 'a text in which %(NAME)s stands for an attribute of the spider, "%(name)s" its name'
    if not isinstance(template, str) or not template.strip():
        raise ConfigurationError(f"BLOOMLOCK_NAME is {template!r}; allowed is {allowed}.")
    try:
        return template % _Attributes(spider)
    except KeyError as error:
        raise ConfigurationError(
            f"BLOOMLOCK_NAME is {template!r}, and the spider has no attribute {error}; allowed is "
            f"{allowed}."
        ) from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"BLOOMLOCK_NAME is {template!r}; allowed is {allowed} (and %% for a percent sign)."
        ) from error


def _name(template: object, spider_name: str, key: str = "BLOOMLOCK_NAME") -> str:
    """Fill the spider's name into the template."""
    allowed = "a non-empty string in which %(spider)s stands for the spider's name"
    if not isinstance(template, str) or not template.strip():
        raise ConfigurationError(f"{key} is {template!r}; allowed is {allowed}.")
    try:
        return template % {"spider": spider_name}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{key} is {template!r}; allowed is {allowed} (and %% for a percent sign)."
        ) from error


def _key(value: Any) -> Any:
    """Read the key; the command line's `-s` hands True over as a string. The library checks it."""
    return True if value in ("True", "true") else value


def _options(settings: BaseSettings) -> dict[str, Any]:
    """Read BLOOMLOCK_FILTER; the library checks the values."""
    try:
        options = settings.getdict("BLOOMLOCK_FILTER")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"BLOOMLOCK_FILTER is {settings.get('BLOOMLOCK_FILTER')!r}; allowed is a dict."
        ) from error
    for name in options:
        if name not in FILTER_OPTIONS:
            raise ConfigurationError(
                f"BLOOMLOCK_FILTER has {name!r}; allowed are {', '.join(FILTER_OPTIONS)}."
            )
    return options


def _number(
    settings: BaseSettings,
    key: str,
    default: float,
    *,
    below: float = float("inf"),
    whole: bool = False,
    or_zero: bool = False,
) -> float:
    """Read a number above 0; the command line's `-s` hands it over as a string."""
    value = settings.get(key, default)
    kind = "a whole number" if whole else "a number"
    bound = "" if below == float("inf") else f" and below {below:g}"
    least = "0 or more" if or_zero else "above 0"
    sentence = f"{key} is {value!r}; allowed is {kind} {least}{bound}."
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigurationError(sentence)
    try:
        number = float(value)
    except ValueError as error:
        raise ConfigurationError(sentence) from error
    if not (0 < number < below or (or_zero and number == 0)) or (whole and not number.is_integer()):
        raise ConfigurationError(sentence)
    return number


def _choice(settings: BaseSettings, key: str, allowed: Sequence[str]) -> str:
    """Read one of some words; the first is the default."""
    value = settings.get(key, allowed[0])
    if value not in allowed:
        raise ConfigurationError(
            f"{key} is {value!r}; allowed are {', '.join(map(repr, allowed))}."
        )
    return str(value)


def _flag(settings: BaseSettings, key: str, *, default: bool = False) -> bool:
    """Read a boolean the way Scrapy reads one."""
    try:
        return settings.getbool(key, default)
    except ValueError as error:
        raise ConfigurationError(
            f"{key} is {settings.get(key)!r}; allowed are True and False."
        ) from error
