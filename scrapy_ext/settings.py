"""The settings of a crawl, read and checked before it starts."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field, fields
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


def _word(*allowed: str) -> tuple[Callable[[Any], str], str]:
    return lambda value: allowed[allowed.index(value)], f"are {', '.join(map(repr, allowed))}"


_ABOVE_0 = (_number, "is a number above 0")
_BOOL = (_flag, "are True and False")


def _setting(default: Any, check: Callable[[Any], Any], allowed: str) -> Any:
    return field(default=default, metadata={"check": check, "allowed": allowed})


@dataclass(frozen=True, slots=True)
class CrawlSettings:
    """What the project's settings say; docs/reference/settings-and-stats.md explains each.

    `fifo` is whether SCHEDULER_MEMORY_QUEUE is one of Scrapy's first-in-first-out queues, `options`
    BLOOMLOCK_FILTER without `timeout`.
    """

    name: str
    is_named: bool
    fifo: bool
    options: Mapping[str, Any]
    timeout: float
    capacity: int = _setting(1_000_000, partial(_whole, least=1), "is a whole number above 0")
    error_rate: float = _setting(1e-6, partial(_number, below=1), "is a number above 0 and below 1")
    window: float | None = _setting(None, *_ABOVE_0)
    persist: bool = _setting(False, *_BOOL)
    resume: bool = _setting(True, *_BOOL)
    retries: int = _setting(0, _whole, "is a whole number 0 or more")
    pace: str = _setting("shared", *_word("shared", "process"))
    on_outage: str = _setting("wait", *_word("wait", "close"))
    lease: float = _setting(60.0, *_ABOVE_0)
    pickle: bool = _setting(True, *_BOOL)

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
        values = {
            one.name: _checked(key, settings.get(key), one.default, **one.metadata)
            for key, one in _SETTINGS.items()
        }
        # What scrapy-redis calls it.
        key = "SCHEDULER_FLUSH_ON_START"
        values["resume"] &= not _checked(key, settings.get(key), False, *_BOOL)
        key = "BLOOMLOCK_FILTER"
        options = _checked(key, settings.get(key), {}, _dict, "is a dict")
        for option in options:
            if option not in _FILTER_OPTIONS:
                raise ConfigurationError(
                    f"BLOOMLOCK_FILTER has {option!r}; allowed are {', '.join(_FILTER_OPTIONS)}."
                )
        timeout = options.pop("timeout", None)
        template = settings.get("BLOOMLOCK_NAME")
        spider = crawler.spider or crawler.spidercls
        return cls(
            name=_name("%(name)s" if template is None else template, spider),
            is_named=template is not None,
            fifo=issubclass(load_object(settings["SCHEDULER_MEMORY_QUEUE"]), FifoMemoryQueue),
            options=options,
            timeout=_checked("timeout in BLOOMLOCK_FILTER", timeout, 1.0, *_ABOVE_0),
            **values,
        )


_PREFIX = "BLOOMLOCK_"
_SETTINGS = {_PREFIX + one.name.upper(): one for one in fields(CrawlSettings) if one.metadata}
KNOWN = ("BLOOMLOCK_URL", "BLOOMLOCK_NAME", *_SETTINGS, "BLOOMLOCK_FILTER")


def warn_of_unknown(settings: BaseSettings) -> None:
    """Warn of settings that look like ours and are none."""
    for key in sorted(set(settings) - set(KNOWN)):
        if key.startswith(_PREFIX):
            known = ", ".join(KNOWN)
            logger.warning("There is no setting %s; it has no effect. Known are %s.", key, known)


def only_looks(crawler: Crawler) -> bool:
    """Return whether one of Scrapy's commands runs that looks at pages and does not crawl.

    `fetch`, `view`, `parse` and `check` put a `start` of their own into the spider class, which no
    crawl does; `shell` runs the engine without a crawl.
    """
    made_by = str(getattr(crawler.spidercls.start, "__module__", ""))
    return made_by.startswith("scrapy.commands.") or not crawler.crawling


def filled(template: str, spider: object) -> str:
    """Fill attributes of the spider into a text, as FEEDS has them in its names of files."""
    names = filter(None, re.findall(r"%%|%\((.*?)\)", template))
    return str(template % {name: getattr(spider, name) for name in names})


def _name(template: Any, spider: object) -> str:
    why = ""
    try:
        if template.strip():
            return filled(template, spider)
    except AttributeError as error:
        if error.obj is spider:
            why = f", and the spider has no attribute {error.name!r}"
    except (TypeError, ValueError):
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
