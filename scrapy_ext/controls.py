"""What the `meta` of a request says of the filter."""

from __future__ import annotations

import logging
import reprlib
from typing import TYPE_CHECKING

from scrapy import signals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger("bloomlock.scrapy")

FILTER, RECORD = "bloomlock_filter", "bloomlock_record"
BEGUN = "bloomlock_begun"
"""Is in the `meta` of a start request from when it is fetched on, and of all that have a copy."""


class RequestControls:
    """Reads the keys `bloomlock_filter` and `bloomlock_record`. Never raises.

    A redirect and a retry have the keys of their request, as Scrapy copies `meta`. When the
    response is there they are taken out of it, so that a callback which hands `response.meta` on
    does not pass them to other requests.

    Args:
        crawler: Whose requests they are.
        record_unfiltered: Whether requests with `dont_filter` are recorded.
    """

    def __init__(self, crawler: Crawler, *, record_unfiltered: bool = False) -> None:
        self.record_unfiltered = record_unfiltered
        self._warned: set[str] = set()
        crawler.signals.connect(self._response_received, signal=signals.response_received)

    def read(self, request: Request) -> tuple[bool, bool]:
        """Return whether a request is filtered, and whether it is recorded."""
        meta = request.meta
        if FILTER in meta or RECORD in meta:
            return self.is_filtered(request), self.is_recorded(request)
        is_filtered = not request.dont_filter
        return is_filtered, is_filtered or self.record_unfiltered

    def is_filtered(self, request: Request) -> bool:
        """Return whether a request is dropped if it is seen."""
        return not request.dont_filter and self._flag(request, FILTER, default=True)

    def is_recorded(self, request: Request) -> bool:
        """Return whether a request counts as seen from now on."""
        default = not request.dont_filter or self.record_unfiltered
        return self._flag(request, RECORD, default=default)

    def _flag(self, request: Request, key: str, *, default: bool) -> bool:
        value = request.meta.get(key, default)
        if isinstance(value, bool):
            return value
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(
                "The meta key %s of %s is %s; allowed are True and False. The request is handled "
                "as without it (only the first is logged).",
                key,
                request,
                reprlib.repr(value),
            )
        return default

    def _response_received(self, request: Request) -> None:
        for key in (FILTER, RECORD):
            request.meta.pop(key, None)


def in_progress(crawler: Crawler) -> Collection[Request]:
    """Return the requests that the engine has: until callback or errback and all items are done.

    It has no public name for it (tests/scrapy_ext/test_kills.py).
    """
    slot = getattr(crawler.engine, "_slot", None)
    return slot.inprogress if slot else ()


def returns(request: Request, crawler: Crawler, fingerprint: Callable[[Request], bytes]) -> bool:
    """Return whether a redirect leads back to a request that it comes from. Never raises.

    Sites answer so that set a cookie first. What was redirected has no response yet, so what it
    leads to is no duplicate of it. REDIRECT_MAX_TIMES ends a circle.

    Args:
        request: The request.
        crawler: Whose request it is.
        fingerprint: Returns the fingerprint of a request; it may raise anything.
    """
    urls = request.meta.get("redirect_urls")
    if not urls:
        return False
    try:
        # The engine has what is redirected. A request that a callback gave the `meta` of its
        # response has its redirects, too, and is a duplicate like any other.
        if not any(
            [*one.meta.get("redirect_urls", ()), one.url] == [*urls] for one in in_progress(crawler)
        ):
            return False
        own = fingerprint(request)
        return any(fingerprint(request.replace(url=url)) == own for url in dict.fromkeys(urls))
    # A project's fingerprinter may raise anything, and `meta` hold anything.
    except Exception:  # noqa: BLE001
        return False
