"""The settings of a crawl, read and checked before it starts."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy.settings import BaseSettings
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.misc import load_object

from bloomlock import BloomFilter
from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy.crawler import Crawler

logger = logging.getLogger("bloomlock.scrapy")

_FILTER_OPTIONS = ("strategy", "key", "seeds", "num_hashes", "optimize", "on_full", "timeout")


def _number(value: Any, below: float = float("inf")) -> float:
    """Read a number above 0; the command line's `-s` hands it over as a string."""
    number = float(value)
    if isinstance(value, bool) or not 0 < number < below:
        raise ValueError(value)
    return number


def _whole(value: Any, least: int = 0) -> int:
    number = float(value)
    if isinstance(value, bool) or number < least or not number.is_integer():
        raise ValueError(value)
    return int(number)


def _flag(value: Any) -> bool:
    return BaseSettings({"": value}).getbool("")


def _dict(value: Any) -> dict[str, Any]:
    return BaseSettings({"": value}).getdict("")


def _word(value: Any, *allowed: str) -> str:
    return allowed[allowed.index(value)]


_ABOVE_0 = (_number, "is a number above 0")
_BOOL = (_flag, "are True and False")
_CHECKS: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    "capacity": (1_000_000, partial(_whole, least=1), "is a whole number above 0"),
    "error_rate": (1e-6, partial(_number, below=1.0), "is a number above 0 and below 1"),
    "window": (None, *_ABOVE_0),
    "persist": (False, *_BOOL),
    "resume": (True, *_BOOL),
    "retries": (0, _whole, "is a whole number 0 or more"),
    "pace": ("shared", lambda word: _word(word, "shared", "process"), "are 'shared', 'process'"),
    "on_outage": ("wait", lambda word: _word(word, "wait", "close"), "are 'wait', 'close'"),
    "lease": (60.0, *_ABOVE_0),
    "pickle": (True, *_BOOL),
    "filter": ("{}", _dict, "is a dict"),
}
"""Default, check, and what is allowed."""
_PREFIX = "BLOOMLOCK_"
_NAMES = ("URL", "NAME", *map(str.upper, _CHECKS))
KNOWN = tuple(_PREFIX + name for name in _NAMES)


@dataclass(frozen=True, slots=True)
class CrawlSettings:
    """What the project's settings say; docs/reference/settings-and-stats.md explains each.

    `fifo` is whether SCHEDULER_MEMORY_QUEUE is one of Scrapy's first-in-first-out queues, `options`
    BLOOMLOCK_FILTER without `timeout`.
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
        sizes = {"capacity": self.capacity, "error_rate": self.error_rate}
        return BloomFilter(
            **{"name": self.name, "client": client, **sizes, **self.options, **options}
        )

    @classmethod
    def read(cls, crawler: Crawler) -> CrawlSettings:
        """Read the settings of a crawl.

        Raises:
            ConfigurationError: A value is not allowed; the sentence names it.
        """
        settings = crawler.settings
        values = {}
        for name, (default, check, allowed) in _CHECKS.items():
            key = _PREFIX + name.upper()
            values[name] = _checked(key, settings.get(key), default, check, allowed)
        # What scrapy-redis calls it.
        key = "SCHEDULER_FLUSH_ON_START"
        values["resume"] &= not _checked(key, settings.get(key), False, *_BOOL)
        options = _dict(values.pop("filter"))
        for option in options:
            if option not in _FILTER_OPTIONS:
                raise ConfigurationError(
                    f"BLOOMLOCK_FILTER has {option!r}; allowed are {', '.join(_FILTER_OPTIONS)}."
                )
        timeout = options.pop("timeout", None)
        template = settings.get("BLOOMLOCK_NAME")
        spider = crawler.spider or crawler.spidercls
        return cls(
            name=_filled("%(name)s" if template is None else template, spider),
            is_named=template is not None,
            fifo=issubclass(load_object(settings["SCHEDULER_MEMORY_QUEUE"]), FifoMemoryQueue),
            options=options,
            timeout=_checked("timeout in BLOOMLOCK_FILTER", timeout, 1.0, *_ABOVE_0),
            **values,
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


def _filled(template: Any, spider: object) -> str:
    """Fill attributes of the spider into the template."""
    why = ""
    try:
        if template.strip():
            return str(template % Attributes(spider))
    except KeyError as error:
        why = f", and the spider has no attribute {error}"
    except (AttributeError, TypeError, ValueError):
        pass
    raise ConfigurationError(
        f"BLOOMLOCK_NAME is {template!r}{why}; allowed is a text in which %(NAME)s stands for an "
        'attribute of the spider, "%(name)s" its name (and %% for a percent sign).'
    )


def _checked(key: str, value: Any, default: Any, check: Callable[[Any], Any], allowed: str) -> Any:
    try:
        return default if value is None else check(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{key} is {value!r}; allowed {allowed}.") from error
