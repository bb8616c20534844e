"""The settings of a crawl, its client, and the log lines at its start."""

from __future__ import annotations

import logging
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import url2pathname

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy.settings import BaseSettings
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.misc import load_object

from bloomlock import BloomFilter
from bloomlock.errors import BloomlockError, ConfigurationError, ServerError
from bloomlock.server import explained, find_address, hide_secret
from scrapy_ext import engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from scrapy.crawler import Crawler

    from scrapy_ext.crawl_state import Answer

logger = logging.getLogger("bloomlock.scrapy")

MOST_WITH_DELAY = 2
"""Requests of a host with a delay that a process has: one on its way, one that waits."""
# Setting of scrapy-redis -> parameter of the client.
_SHARED = {"REDIS_URL": "url", "REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}
# scrapy-redis waits and tries again by these; the reactor must not wait.
_RETRIES = ("retry_on_timeout", "retry_on_error", "retry")
_FILTER_OPTIONS = ("strategy", "key", "seeds", "num_hashes", "optimize", "on_full", "timeout")


def _number(kind: type, above: float = 0, below: float = inf) -> Callable[[Any], Any]:
    """Return a reader of numbers between two others; the option `-s` hands over texts."""

    def read(value: Any) -> Any:
        number = float(value)
        if isinstance(value, bool) or not above < number < below or kind(number) != number:
            raise ValueError(value)
        return kind(number)

    return read


def _word(*allowed: str) -> tuple[Callable[[Any], str], str]:
    return lambda value: allowed[allowed.index(value)], f"are {', '.join(map(repr, allowed))}"


_ABOVE_0 = (_number(float), "is a number above 0")
_BOOL = (lambda value: BaseSettings({"": value}).getbool(""), "are True and False")


def _setting(default: Any, check: Callable[[Any], Any], allowed: str) -> Any:
    return field(default=default, metadata={"check": check, "allowed": allowed})


@dataclass(frozen=True, slots=True)
class CrawlSettings:
    """The settings of a project; docs/reference/settings-and-stats.md explains each.

    `attributes` are the string attributes of the spider itself, which its arguments set; None if
    BLOOMLOCK_NAME is set. `fifo` is whether SCHEDULER_MEMORY_QUEUE is one of Scrapy's
    first-in-first-out queues, `options` BLOOMLOCK_FILTER without `timeout`.
    """

    name: str
    attributes: Mapping[str, str] | None
    fifo: bool
    options: Mapping[str, Any]
    timeout: float
    capacity: int = _setting(1_000_000, _number(int), "is a whole number above 0")
    error_rate: float = _setting(1e-6, _number(float, 0, 1), "is a number above 0 and below 1")
    window: float | None = _setting(None, *_ABOVE_0)
    persist: bool = _setting(False, *_BOOL)
    resume: bool = _setting(True, *_BOOL)
    retries: int = _setting(0, _number(int, -1, 101), "is a whole number from 0 to 100")
    pace: str = _setting("shared", *_word("shared", "process"))
    on_outage: str = _setting("wait", *_word("wait", "close"))
    lease: float = _setting(60.0, *_ABOVE_0)
    pickle: bool = _setting(True, *_BOOL)

    def open(self, client: Any, **options: Any) -> BloomFilter:
        """Create a filter or attach to it; the options and errors are those of BloomFilter."""
        sizes = {"capacity": self.capacity, "error_rate": self.error_rate}
        given = {"name": self.name, "client": client, **sizes, **self.options, **options}
        return BloomFilter(**given)

    @classmethod
    def read(cls, crawler: Crawler) -> CrawlSettings:
        """Read the settings of a crawl; a ConfigurationError names a value that is not allowed."""
        settings = crawler.settings
        values = {
            one.name: _checked(key, settings.get(key), one.default, **one.metadata)
            for key, one in _SETTINGS.items()
        }
        # The name of scrapy-redis for it.
        key = "SCHEDULER_FLUSH_ON_START"
        values["resume"] &= not _checked(key, settings.get(key), False, *_BOOL)
        key = "BLOOMLOCK_FILTER"
        options = _checked(key, settings.get(key), {}, lambda _: settings.getdict(key), "is a dict")
        for option in options:
            if option not in _FILTER_OPTIONS:
                raise ConfigurationError(
                    f"BLOOMLOCK_FILTER has {option!r}; allowed are {', '.join(_FILTER_OPTIONS)}."
                )
        timeout = options.pop("timeout", None)
        template = settings.get("BLOOMLOCK_NAME")
        spider = crawler.spider or crawler.spidercls
        own = vars(spider).items()
        texts = {name: one for name, one in own if isinstance(one, str) and name != "name"}
        return cls(
            name=_name("%(name)s" if template is None else template, spider),
            attributes=texts if template is None else None,
            fifo=issubclass(load_object(settings["SCHEDULER_MEMORY_QUEUE"]), FifoMemoryQueue),
            options=options,
            timeout=_checked("timeout in BLOOMLOCK_FILTER", timeout, 1.0, *_ABOVE_0),
            **values,
        )


_SETTINGS = {f"BLOOMLOCK_{one.name.upper()}": one for one in fields(CrawlSettings) if one.metadata}
KNOWN = ("BLOOMLOCK_URL", "BLOOMLOCK_NAME", *_SETTINGS, "BLOOMLOCK_FILTER")


def warn_of_unknown(settings: BaseSettings) -> None:
    """Warn of settings that look like ours and are none."""
    for key in sorted(set(settings) - set(KNOWN)):
        if key.startswith("BLOOMLOCK_"):
            known = ", ".join(KNOWN)
            logger.warning("There is no setting %s; it has no effect. Known are %s.", key, known)


@contextmanager
def opening(crawler: Crawler, what: str) -> Iterator[tuple[CrawlSettings, Any]]:
    """Yield the settings and a client; what goes wrong ends the crawl with one sentence."""
    try:
        warn_of_unknown(crawler.settings)
        settings = CrawlSettings.read(crawler)
        yield settings, redis_client(crawler.settings, settings.timeout)
    except (BloomlockError, redis.RedisError, OSError) as error:
        refusal = error
        if not isinstance(error, BloomlockError):
            refusal = ServerError(
                f"the {what} cannot be used ({type(error).__name__}: {error}), and the crawl does "
                "not start without it"
            )
        engine.refuse(crawler, refusal)
        raise refusal.with_traceback(None) from None


def redis_client(settings: BaseSettings, timeout: float) -> Any:
    """Make the client for a crawl and ask its server what it is.

    The server is that of `BLOOMLOCK_URL`, else the one scrapy-redis would use, else the library's
    default. `REDIS_PARAMS["redis_cls"]` makes the client, where that is given; else it is one for a
    cluster if the server is part of one.
    """
    given = {name: settings.get(key) for key, name in _SHARED.items() if settings.get(key)}
    given = {**settings.getdict("REDIS_PARAMS"), **given}
    source = next((key for key in _SHARED if settings.get(key)), "REDIS_PARAMS")
    if own := settings.get("BLOOMLOCK_URL"):
        source, given = "BLOOMLOCK_URL", {"url": own}
    path, host = given.get("unix_socket_path"), given.get("host", "localhost")
    place = f"unix://{path}" if path else f"redis://{host}:{given.get('port', 6379)}"
    address = find_address(given.get("url", place) if given else None, name=source)
    given = {name: one for name, one in given.items() if name not in _RETRIES}
    given = given or {"url": address.url}
    # It never retries by itself: the crawl waits beside the reactor.
    given |= {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    # Entries of the queue are bytes, also where scrapy-redis is told to decode them.
    given |= {"retry": Retry(NoBackoff(), 0), "decode_responses": False}
    client = _make(address, given)
    if type(client) is not redis.Redis:
        return client
    info: Any = {}
    with explained(address), suppress(redis.exceptions.NoPermissionError):
        info = client.info("server")
    # The field of Valkey, and that of Redis.
    mode = info.get("server_mode") or info.get("redis_mode")
    if mode == "cluster":
        client.close()
        return _make(address, {**given, "redis_cls": redis.RedisCluster})
    if mode == "sentinel":
        client.close()
        raise ServerError(
            f"{address.source}: the server at {hide_secret(address.url)} is a Sentinel; "
            'REDIS_PARAMS["redis_cls"] may be a function that makes a client of its master'
        )
    return client


def _make(address: Any, given: dict[str, Any]) -> Any:
    options = {"redis_cls": redis.Redis, **given}
    try:
        chosen = load_object(options.pop("redis_cls"))
        if "url" not in options:
            return chosen(**options)
    except (ValueError, TypeError, ImportError, NameError) as error:
        raise ConfigurationError(f"{address.source} makes no Redis client: {error}") from error
    with explained(address):
        return chosen.from_url(**options)


def only_looks(crawler: Crawler) -> bool:
    """Return whether one of Scrapy's commands runs that looks at pages and does not crawl.

    `fetch`, `view`, `parse` and `check` put a `start` of their own into the spider class, which no
    crawl does; `shell` runs the engine without a crawl.
    """
    made_by = str(getattr(crawler.spidercls.start, "__module__", ""))
    return made_by.startswith("scrapy.commands.") or not crawler.crawling


def _name(template: Any, spider: object) -> str:
    why = ""
    try:
        if template.strip():
            names = filter(None, re.findall(r"%%|%\((.*?)\)", template))
            return str(template % {name: getattr(spider, name) for name in names})
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


def pace_of(crawler: Crawler, settings: CrawlSettings) -> dict[str, Any]:
    """Return how many requests of a host a process has at once, and the ms between two of a host.

    As "limit" and "delay_ms"; "slots" has the two of hosts that are named in DOWNLOAD_SLOTS.
    """
    project = crawler.settings
    every = getattr(crawler.spider, "download_delay", None) or project.getfloat("DOWNLOAD_DELAY")

    def slot(named: Mapping[str, Any]) -> tuple[int, int]:
        most = named.get("concurrency", project.getint("CONCURRENT_REQUESTS_PER_DOMAIN"))
        delay = float(named.get("delay", every))
        delay_ms = int(delay * 1000) if settings.pace == "shared" else 0
        return min(most, MOST_WITH_DELAY) if delay else most, delay_ms

    limit, delay_ms = slot({})
    slots = {host: slot(named) for host, named in project.getdict("DOWNLOAD_SLOTS").items()}
    return {"limit": limit, "delay_ms": delay_ms, "slots": slots}


def overwritten_file(crawler: Crawler) -> str:
    """Return an existing file that a feed of this crawl would overwrite; empty if there is none."""
    spider = crawler.spider
    for uri, options in crawler.settings.getdict("FEEDS").items():
        path = str(uri)
        # A name with the time is new each time.
        if not options.get("overwrite") or "%(time)" in path or "%(batch" in path:
            continue
        if "%" in path:
            # A function of the project may add or replace values, as for Scrapy.
            values = {name: getattr(spider, name) for name in dir(spider)}
            values |= {"time": "", "batch_time": "", "batch_id": 1}
            if function := options.get("uri_params", crawler.settings["FEED_URI_PARAMS"]):
                values = load_object(function)(values, spider) or values
            path %= values
        if path.startswith("file://"):
            path = url2pathname(path.removeprefix("file://"))
        if "://" not in path and Path(path).is_file() and Path(path).stat().st_size:
            return path
    return ""


def check_jobdir(crawler: Crawler) -> None:
    """Raise ConfigurationError if JOBDIR has a queue or a filter of Scrapy."""
    if not (jobdir := crawler.settings.get("JOBDIR")):
        return
    for name in ("requests.queue", "requests.seen"):
        found = Path(jobdir, name)
        if any(found.iterdir()) if found.is_dir() else found.is_file() and found.stat().st_size:
            raise ConfigurationError(
                f"JOBDIR has {found} of a crawl without bloomlock, which is not read; `bloomlock "
                f"scrapy-import {jobdir} NAME` makes a filter of requests.seen, then delete both"
            )
    logger.info(
        "Queue and filter of the crawl are on the server; in JOBDIR is only spider.state, which is "
        "of one process."
    )


def log_begin(crawler: Crawler, name: str, begun: Answer, delay_ms: int) -> None:
    """Log how the crawl was begun, and what differs from Scrapy alone."""
    if begun.what == "begun":
        logger.info("The crawl %r begins.", name)
    elif begun.what == "joined":
        logger.info("Joins %d processes in the crawl %r.", len(begun.workers), name)
    else:
        begun_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(begun.begun_ms / 1000))
        logger.warning(
            "Goes on with the crawl %r of %s (%d done, %d wait, %d failed), which was stopped; "
            "begin anew: -s BLOOMLOCK_RESUME=0",
            *(name, begun_at, begun.done, begun.waiting, begun.failed),
        )
    settings = crawler.settings
    if settings.getdict("FEEDS"):
        logger.warning(
            "A page is done when its items have left the pipelines; FEEDS write them later, so a "
            "process that is killed loses what its feeds have not written. A pipeline that "
            "commits, or FEED_EXPORT_BATCH_ITEM_COUNT, loses less."
        )
    if delay_ms:
        logger.info(
            "%g s lie between two requests to a host, for all processes together "
            '(BLOOMLOCK_PACE = "process": for each).',
            delay_ms / 1000,
        )
    if settings.getbool("SCHEDULER_PERSIST"):
        logger.info(
            "SCHEDULER_PERSIST is not needed any more: a crawl that is stopped goes on. For "
            "incremental crawls there is BLOOMLOCK_PERSIST."
        )
    for setting, meaning in (
        ("SCHEDULER_IDLE_BEFORE_CLOSE", "a process ends so many seconds after its last request"),
        ("SCHEDULER_FLUSH_ON_START", "it is BLOOMLOCK_RESUME = False"),
    ):
        if settings.get(setting):
            logger.info("%s of scrapy-redis is read: %s.", setting, meaning)
