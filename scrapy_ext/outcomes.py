"""How the requests of a crawl end, as its signals and middlewares see it."""

from __future__ import annotations

import json
import logging
import shutil
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from scrapy import Request, signals
from scrapy.core.scheduler import Scheduler
from scrapy.exceptions import CloseSpider, DontCloseSpider, IgnoreRequest
from scrapy.utils.asyncio import call_later
from scrapy.utils.misc import load_object

from bloomlock.errors import ConfigurationError
from scrapy_ext.answers import Verdict
from scrapy_ext.claims import SETTLE_SECONDS
from scrapy_ext.controls import in_progress
from scrapy_ext.settings import MARKS, only_looks
from scrapy_ext.settlements import DONE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    from scrapy_ext.claims import ClaimingFilter
    from scrapy_ext.settings import FilterSettings
    from scrapy_ext.settlements import OpenRequest

logger = logging.getLogger("bloomlock.scrapy")

# A crawler takes no attributes of others. (The outcomes refer to it, so the reference is weak.)
_OF_CRAWLER: WeakKeyDictionary[Crawler, weakref.ref[Outcomes]] = WeakKeyDictionary()

NO_OUTCOME = "it ended without a response"

CLAIMING_STRATEGIES = ("atomic", "lua")


@dataclass(slots=True, eq=False)
class Processing:
    """A response that the spider works on.

    Attributes:
        response: Is held, so that its identity is no other's.
        entries: The requests that led to it: its own, and those that were redirected to it.
        num_items: Items that have not left the pipelines.
        holds_requests: Whether requests were yielded behind items. Where there is no batching they
            wait for these in Scrapy's queue, and are claimed when they come out of it.
        has_ended: Whether the callback came to its end.
        error: Why its requests failed; empty: they did not.
    """

    response: Response
    entries: list[OpenRequest]
    num_items: int = 0
    holds_requests: bool = False
    has_ended: bool = False
    error: str = ""


@dataclass(slots=True, eq=False)
class Failing:
    """A request without a response, until the engine is done with it, with its errback and all.

    Attributes:
        request: Is held, so that its identity is no other's.
        entries: As of Processing.
        error: Why they failed; empty: there was nothing to fetch.
    """

    request: Request
    entries: list[OpenRequest]
    error: str


class Outcomes:
    """Settles the open requests of a crawl as they end, and takes over those of dead processes.

    A request is done when its response was processed: the callback ended without an error and its
    items left the pipelines. With BLOOMLOCK_MARK = "downloaded" errors of the callback and items do
    not count. A retry has the fingerprint of its request, and so its claim; a redirect keeps that
    of the request it began with.
    """

    def __init__(
        self,
        crawler: Crawler,
        guard: ClaimingFilter,
        config: FilterSettings,
        fingerprint: Callable[[Request], bytes],
        *,
        schedule: Callable[[Request], None],
        claim: Callable[[Request], Verdict],
        is_filtered: Callable[[Request], bool],
    ) -> None:
        self._crawler = crawler
        self._guard = guard
        self._config = config
        self._fingerprint = fingerprint
        self._schedule = schedule
        self._claim = claim
        self._is_filtered = is_filtered
        self._processing: dict[int, Processing] = {}
        self._failing: dict[int, Failing] = {}
        self._looks_later = False
        self._started: dict[str, OpenRequest] = {}
        self._away_since: float | None = None
        _OF_CRAWLER[crawler] = weakref.ref(self)
        codes = crawler.settings.getlist("RETRY_HTTP_CODES")
        self._temporary = {int(code) for code in codes}
        for receiver, signal in (
            (self._spider_opened, signals.spider_opened),
            (self._spider_idle, signals.spider_idle),
            (self.scheduled, signals.request_scheduled),
            (self._response_received, signals.response_received),
            (self._spider_error, signals.spider_error),
            (self._item_left, signals.item_scraped),
            (self._item_left, signals.item_dropped),
            (self._item_failed, signals.item_error),
        ):
            crawler.signals.connect(receiver, signal=signal)

    # The downloader.

    def started(self, request: Request) -> None:
        """Note that a request is fetched."""
        entry = self._entry(request)
        if entry is not None:
            entry.is_started, entry.has_response, entry.url = True, False, request.url
            self._started[request.url] = entry

    def may_fetch(self, request: Request) -> bool:
        """Return whether a request that comes out of the queue is to be fetched here, and now.

        What JOBDIR kept may have been taken over too, here or elsewhere, or be done.

        Cost: a round trip, for which the reactor waits, if this process has no claim of it.
        """
        entry = self._entry(request)
        if request.dont_filter:
            if entry is not None:
                entry.is_fetched = True
            return True
        if entry is None:
            is_wanted = self._claim(request) in {Verdict.NEW, Verdict.ALLOWED}
            return is_wanted or not self._is_filtered(request)
        if entry.is_fetched:
            return self.continues(request) or not self._is_filtered(request)
        entry.is_fetched = True
        return True

    def not_downloaded(self, request: Request, error: Exception) -> None:
        """Note that a request has no response, and is not tried again."""
        if entries := self._chain(request):
            # A middleware decided against it, as for robots.txt: there is nothing to fetch.
            text = "" if isinstance(error, IgnoreRequest) else _text_of(error)
            self._failing[id(request)] = Failing(request, entries, text)
            self._look_later()

    def continues(self, request: Request) -> bool:
        """Return whether a request goes on with one that is open: a redirect to itself."""
        entry = self._entry(request)
        return (
            entry is not None
            and entry.is_started
            and not entry.has_response
            and entry in self._redirected(request)
        )

    def _response_received(self, response: Response, request: Request) -> None:
        entries = self._chain(request)
        if not entries:
            return
        for entry in entries:
            entry.has_response = True
        made = Processing(response, entries)
        if response.status in self._temporary:
            made.error = f"the status was {response.status}"
        self._processing[id(response)] = made

    def dropped(self, request: Request) -> None:
        """Note that a request is dropped as a duplicate."""
        if "redirect_urls" not in request.meta:
            return
        # What a redirect led to is known already, and whose it is says how it ends.
        waiting = [one for one in self._redirected(request) if not one.has_response]
        if waiting and not self.continues(request):
            self._settle(waiting, DONE)

    # The spider.

    def followed(self, response: Response) -> Processing | None:
        """Return what is noted of a response; None if it is not that of an open request."""
        return self._processing.get(id(response))

    def callback_ended(self, response: Response) -> None:
        """Note that a callback came to its end."""
        made = self._processing.get(id(response))
        if made is not None:
            made.has_ended = True
            self._end(made)

    def scheduled(self, request: Request) -> None:
        """Keep a request open that its callback or errback asks for once more.

        A kill would lose the second one, which has no claim of its own.
        """
        ending = [made.entries for made in self._processing.values()]
        ending += [made.entries for made in self._failing.values()]
        entry = self._entry(request) if ending and request.dont_filter else None
        for entries in ending:
            if entry is not None and entry in entries:
                entries.remove(entry)
                entry.has_response = False

    def _spider_error(self, failure: Failure, response: Any) -> None:
        if isinstance(failure.value, CloseSpider):
            return
        self._note_error(response, failure)
        self.callback_ended(response)

    def _note_error(self, response: Any, failure: Failure) -> None:
        """Note an error of the spider, where it counts; an errback has no response."""
        made = self._processing.get(id(response)) or self._failing.get(
            id(getattr(response, "request", None))
        )
        if made is not None and self._config.mark == "processed":
            made.error = made.error or _text_of(failure.value)

    def _item_left(self, response: Any) -> None:
        made = self._processing.get(id(response))
        if made is not None and made.num_items:
            made.num_items -= 1
            self._end(made)

    def _item_failed(self, response: Any, failure: Failure) -> None:
        self._note_error(response, failure)
        self._item_left(response)

    def _end(self, made: Processing) -> None:
        """Settle the requests of a response if nothing of it is left."""
        waits = made.holds_requests or self._config.mark == "processed"
        if made.has_ended and not (made.num_items and waits):
            del self._processing[id(made.response)]
            self._settle(made.entries, made.error or DONE)

    def _look_later(self) -> None:
        if self._failing and not self._looks_later:
            self._looks_later = True
            call_later(SETTLE_SECONDS, self._look)

    def _look(self) -> None:
        self._looks_later = False
        self.settle_failed()
        self._look_later()

    def settle_failed(self) -> None:
        """Settle the requests without a response that the engine is done with.

        Now what an errback has yielded is claimed. Settled before, a kill would lose it.
        """
        left = in_progress(self._crawler)
        for made in [one for one in self._failing.values() if one.request not in left]:
            del self._failing[id(made.request)]
            self._settle(made.entries, made.error or DONE)

    # The crawl.

    def _spider_opened(self) -> None:
        for request in self._guard.take_over(with_failed=True) or ():
            self._schedule(request)

    def _spider_idle(self) -> None:
        """Take over what others left; keep the spider open while others have open requests.

        Nothing else goes on in this process now, so it may wait for the server.
        """
        self._guard.settle_now()
        self.settle_failed()
        self._settle(self._guard.without_outcome, NO_OUTCOME)
        self._processing.clear()
        is_sent = self._guard.settle_now()
        taken = self._guard.take_over()
        for request in taken or ():
            self._schedule(request)
        num_open = None if taken else self._guard.others_open()
        if taken or num_open:
            self._away_since = None
            raise DontCloseSpider
        if num_open is None or not is_sent:
            # What was not sent expires, and is fetched again by the next start.
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since < self._config.lease:
                raise DontCloseSpider

    def _settle(self, entries: list[OpenRequest], outcome: str) -> None:
        for entry in entries:
            if self._started.get(entry.url) is entry:
                del self._started[entry.url]
        self._guard.settle([entry.key for entry in entries], outcome)

    def _entry(self, request: Request) -> OpenRequest | None:
        # A project's fingerprinter may raise anything; such a request has no claim.
        try:
            return self._guard.entry(self._fingerprint(request))
        except Exception:  # noqa: BLE001
            return None

    def _redirected(self, request: Request) -> list[OpenRequest]:
        """Return the open requests that were redirected to a request."""
        urls = request.meta.get("redirect_urls")
        if not urls:
            return []
        found = (self._started.get(url) for url in dict.fromkeys(urls))
        return [one for one in found if one is not None and not one.outcome]

    def _chain(self, request: Request) -> list[OpenRequest]:
        entry = self._entry(request)
        others = [one for one in self._redirected(request) if one is not entry]
        return others if entry is None else [entry, *others]


class JobScheduler(Scheduler):
    """Scrapy's scheduler, for `JOBDIR` with claims: what is done or claimed twice is not fetched.

    At the start requests come from both, the queue on disk and the claims of the last run. What a
    process leaves that is killed is no whole queue: it is removed, as the claims have all of it.
    """

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the queues.

        Args:
            spider: The spider.
        """
        state = self._state_file()
        if state is not None and not _is_json(state) and any(state.parent.iterdir()):
            logger.info("The queue in %s was not closed in order, and is emptied.", state.parent)
            shutil.rmtree(state.parent)
            state.parent.mkdir()
        opened = super().open(spider)
        if state is not None:
            # It is there from the end of one process to the start of the next.
            state.unlink(missing_ok=True)
        return opened

    def _state_file(self) -> Path | None:
        """Return what Scrapy writes when the queue on disk is closed; None if it is not ours."""
        crawler = self.crawler
        if self.dqdir is None or crawler is None or only_looks(crawler):
            return None
        is_claimed = crawler.settings.get("BLOOMLOCK_MARK", MARKS[0]) != MARKS[0]
        return Path(self.dqdir, "active.json") if is_claimed else None

    def next_request(self) -> Request | None:
        """Return the next request that is to be fetched, None if there is none."""
        outcomes = _of(self.crawler) if self.crawler is not None else None
        while (request := super().next_request()) is not None:
            if outcomes is None or outcomes.may_fetch(request):
                break
        return request


class OutcomeMiddleware:
    """Says how requests end; for `BLOOMLOCK_MARK = "downloaded"` and `"processed"`.

    It is a downloader middleware and a spider middleware, nearest to the engine in both lists:
    `DOWNLOADER_MIDDLEWARES = {"scrapy_ext.outcomes.OutcomeMiddleware": 1}` and the same in
    `SPIDER_MIDDLEWARES`.
    """

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler.

        Args:
            crawler: The crawler this middleware serves.
        """
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware for a crawler."""
        return cls(crawler)

    @property
    def _outcomes(self) -> Outcomes | None:
        return _of(self._crawler)

    def process_request(self, request: Request) -> None:
        """Note that a request is fetched."""
        if (outcomes := self._outcomes) is not None:
            outcomes.started(request)

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Note that a request failed for good: the middlewares before this one gave it up."""
        if (outcomes := self._outcomes) is not None:
            outcomes.not_downloaded(request, exception)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what a callback yields; count its items, and note its end."""
        outcomes = self._outcomes
        made = None if outcomes is None else outcomes.followed(response)
        if outcomes is None or made is None:
            async for output in result:
                yield output
            return
        async for output in result:
            if isinstance(output, Request):
                made.holds_requests |= made.num_items > 0
            elif output is not None:
                made.num_items += 1
            yield output
        outcomes.callback_ended(response)


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _of(crawler: Crawler) -> Outcomes | None:
    made = _OF_CRAWLER.get(crawler)
    return made() if made is not None else None


def _text_of(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"


def check_components(crawler: Crawler, mark: str, strategy: str) -> None:
    """Raise ConfigurationError where nothing can be claimed, or it is not seen how requests end."""
    settings = crawler.settings
    if strategy not in CLAIMING_STRATEGIES:
        known = ", ".join(map(repr, CLAIMING_STRATEGIES))
        raise ConfigurationError(
            f"BLOOMLOCK_MARK is {mark!r}, with which BLOOMLOCK_STRATEGY must be one of {known}, "
            f"not {strategy!r}"
        )
    name = "scrapy_ext.outcomes.OutcomeMiddleware"
    for setting, found in (
        ("DOWNLOADER_MIDDLEWARES", crawler.get_downloader_middleware(OutcomeMiddleware)),
        ("SPIDER_MIDDLEWARES", crawler.get_spider_middleware(OutcomeMiddleware)),
    ):
        if found is None:
            raise ConfigurationError(
                f'BLOOMLOCK_MARK is {mark!r}, which needs "{name}": 1 in {setting}; '
                'ADDONS = {"scrapy_ext.BloomlockAddon": 500} sets all that is needed'
            )
    scheduler = load_object(settings["SCHEDULER"])
    if settings.get("JOBDIR") and JobScheduler not in scheduler.__mro__:
        raise ConfigurationError(
            f"BLOOMLOCK_MARK is {mark!r} and there is a JOBDIR, which needs SCHEDULER = "
            '"scrapy_ext.outcomes.JobScheduler"; the add-on sets it'
        )
    if Scheduler not in scheduler.__mro__:
        raise ConfigurationError(
            f"BLOOMLOCK_MARK is {mark!r}, which needs Scrapy's own scheduler, as the requests that "
            f"wait are in the hands of one process; SCHEDULER is {settings['SCHEDULER']!r}"
        )
