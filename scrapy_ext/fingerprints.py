"""Fingerprinters for filters that are made of what crawls have seen without bloomlock.

Scrapy's own fingerprint has changed in version 2.7, and scrapy-redis has another one. So what they
stored is of use only to a crawl whose `REQUEST_FINGERPRINTER_CLASS` takes the same fingerprints.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from w3lib.url import canonicalize_url

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

MOST_RECENT = 200_000


class Fingerprints:
    """Takes the fingerprints of a crawler's requests."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def of(self, request: Request) -> bytes:
        return self._crawler.request_fingerprinter.fingerprint(request)

    def leads_back(self, request: Request) -> bool:
        """Return whether a redirect leads back to a request that it comes from.

        Sites answer so that set a cookie first. REDIRECT_MAX_TIMES ends a circle.
        """
        urls = request.meta.get("redirect_urls")
        if not isinstance(urls, list) or not urls:
            return False
        own = self.of(request)
        return any(self.of(request.replace(url=url)) == own for url in dict.fromkeys(urls))


class RecentFingerprints(dict[bytes, None]):
    """The last fingerprints that were met; the oldest are dropped first."""

    def add(self, fingerprint: bytes) -> None:
        self[fingerprint] = None
        if len(self) > MOST_RECENT:
            del self[next(iter(self))]


class RecentCounts(dict[bytes, int]):
    """How often fingerprints were met before; the oldest are forgotten."""

    def count(self, fingerprint: bytes) -> int:
        before = self.pop(fingerprint, 0)
        self[fingerprint] = before + 1
        if len(self) > MOST_RECENT:
            del self[next(iter(self))]
        return before


class ScrapyRedisFingerprinter:
    """Takes the fingerprints of the duplicates filter of scrapy-redis 0.8 and later.

    Set `REQUEST_FINGERPRINTER_CLASS = "scrapy_ext.ScrapyRedisFingerprinter"` where
    the filter was made of a set of scrapy-redis.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Request, bytes] = WeakKeyDictionary()

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of a request: of its method, URL and body.

        Args:
            request: The request.

        Returns:
            20 bytes.
        """
        if request not in self._known:
            self._known[request] = hashlib.sha1(self._text(request)).digest()  # noqa: S324
        return self._known[request]

    def _text(self, request: Request) -> bytes:
        parts = {
            "body": request.body.hex(),
            "method": request.method,
            "url": canonicalize_url(request.url),
        }
        return json.dumps(parts).encode()


class EarlierFingerprinter(ScrapyRedisFingerprinter):
    """Takes the fingerprints of Scrapy before 2.7, and of scrapy-redis before 0.8.

    Scrapy 2.7 to 2.13 have taken them too, where `REQUEST_FINGERPRINTER_IMPLEMENTATION` is "2.6".
    """

    def _text(self, request: Request) -> bytes:
        return request.method.encode() + canonicalize_url(request.url).encode() + request.body
