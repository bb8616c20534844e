"""The settings of a crawl, read and checked before it starts."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.misc import load_object

from bloomlock import BloomFilter
from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    "PACE",
    "ON_OUTAGE",
    "LEASE",
    "FILTER",
    "PICKLE",
)
KNOWN = tuple(_PREFIX + name for name in _NAMES)
FILTER_OPTIONS = ("strategy", "key", "seeds", "num_hashes", "optimize", "on_full", "timeout")
"""What BLOOMLOCK_FILTER may have: parameters of BloomFilter, and the time-out of the client."""


@dataclass(frozen=True, slots=True)
class CrawlSettings:
    """What the project's settings say; docs/reference/settings-and-stats.md explains each.

    Attributes:
        name: BLOOMLOCK_NAME, filled with attributes of the spider.
        is_named: Whether the project has set it.
        fifo: Whether SCHEDULER_MEMORY_QUEUE is one of Scrapy's first-in-first-out queues.
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
    fifo: bool
    pace: str
    on_outage: str
    lease: float
    pickle: bool
    options: Mapping[str, Any]
    timeout: float

    def open(self, client: Any, **options: Any) -> BloomFilter:
        """Create a filter or attach to it; the options and errors are those of BloomFilter."""
        parameters = {
            "name": self.name,
            "capacity": self.capacity,
            "error_rate": self.error_rate,
            "client": client,
        }
        return BloomFilter(**{**parameters, **self.options, **options})

    @classmethod
    def read(cls, crawler: Crawler) -> CrawlSettings:
        """Read the settings of a crawl.

        Raises:
            ConfigurationError: A value is not allowed; the sentence names it.
        """
        settings = crawler.settings
        name, window = settings.get("BLOOMLOCK_NAME"), settings.get("BLOOMLOCK_WINDOW")
        options = _options(settings)
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
            fifo=issubclass(load_object(settings["SCHEDULER_MEMORY_QUEUE"]), FifoMemoryQueue),
            pace=_choice(settings, "BLOOMLOCK_PACE", "shared", "process"),
            on_outage=_choice(settings, "BLOOMLOCK_ON_OUTAGE", "wait", "close"),
            lease=_number(settings, "BLOOMLOCK_LEASE", 60.0),
            pickle=_flag(settings, "BLOOMLOCK_PICKLE", default=True),
            timeout=options.pop("timeout", 1.0),
            options=options,
        )


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


class Attributes:
    """The attributes of a spider, as FEEDS has them in its names of files."""

    def __init__(self, spider: object) -> None:
        self._spider = spider

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._spider, name)
        except AttributeError:
            raise KeyError(name) from None


def _filled(template: object, spider: object) -> str:
    """Fill attributes of the spider into the template."""
    allowed = 'a text in which %(NAME)s stands for an attribute of the spider, "%(name)s" its name'
    refused = f"BLOOMLOCK_NAME is {template!r}"
    if not isinstance(template, str) or not template.strip():
        raise ConfigurationError(f"{refused}; allowed is {allowed}.")
    try:
        return template % Attributes(spider)
    except KeyError as error:
        raise ConfigurationError(
            f"{refused}, and the spider has no attribute {error}; allowed is {allowed}."
        ) from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{refused}; allowed is {allowed} (and %% for a percent sign)."
        ) from error


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
    try:
        number = float(value) if isinstance(value, int | float | str) else -1.0
    except ValueError:
        number = -1.0
    is_in_range = 0 < number < below or (or_zero and number == 0)
    if isinstance(value, bool) or not is_in_range or (whole and not number.is_integer()):
        raise ConfigurationError(f"{key} is {value!r}; allowed is {kind} {least}{bound}.")
    return number


def _choice(settings: BaseSettings, key: str, *allowed: str) -> str:
    """Read one of some words; the first is the default."""
    value = settings.get(key, allowed[0])
    if value not in allowed:
        raise ConfigurationError(
            f"{key} is {value!r}; allowed are {', '.join(map(repr, allowed))}."
        )
    return str(value)


def _flag(settings: BaseSettings, key: str, *, default: bool) -> bool:
    """Read a boolean the way Scrapy reads one."""
    try:
        return settings.getbool(key, default)
    except ValueError as error:
        raise ConfigurationError(
            f"{key} is {settings.get(key)!r}; allowed are True and False."
        ) from error
