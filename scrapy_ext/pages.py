"""Requests in this process: how they are pushed, and the pages that it is at."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy_ext.fingerprints import Fingerprints, RecentFingerprints
from scrapy_ext.queue import Mode, Push, is_start_request
from scrapy_ext.requests import RequestCodec, UnserializableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger("bloomlock.scrapy")


@dataclass(eq=False, slots=True)
class OpenPage:
    """A request from when it is taken until its callback, its items and its children are done.

    Attributes:
        request: None if its entry could not be read.
        id: On the server; empty if the request stays in this process.
        parent: The page whose callback made it, if it stays in this process.
        fingerprint: What is added to the filter when it is done, if it was not when it was queued.
        children: How many requests that stay in this process wait or are open.
        records: What the filter of delivered pages is given when it is done.
    """

    request: Request | None
    host: str
    id: str = ""
    parent: OpenPage | None = None
    fingerprint: bytes = b""
    error: str | None = None
    is_over: bool = False
    children: int = 0
    gave_item: bool = False
    records: Sequence[bytes] = ()


class OpenPages(dict["Request", OpenPage]):
    """The pages that this process is at; `on_end` is called with each that is done or failed.

    A page ends when the engine is done with it, and so are all its children that stay in this
    process, so who is killed before makes them again. `maker_of` has the page whose callback made
    a request; what the downloader makes has none.
    """

    def __init__(self, on_end: Callable[[OpenPage], None]) -> None:
        super().__init__()
        self.maker_of: WeakKeyDictionary[Request, OpenPage] = WeakKeyDictionary()
        self._on_end = on_end

    def note_made(self, requests: Iterable[Request], by: Request) -> None:
        if by in self:
            self.maker_of.update(dict.fromkeys(requests, self[by]))

    def fail(self, request: Request, why: str) -> None:
        if request in self:
            self[request].error = why

    def collect(self, in_progress: Collection[Request]) -> None:
        """End the pages that the engine is done with."""
        for request in [one for one in self if one not in in_progress]:
            page = self.pop(request)
            page.is_over = True
            self.settle(page)

    def settle(self, page: OpenPage) -> None:
        """End a page if it is over, with its children."""
        if not page.is_over or page.children:
            return
        self._on_end(page)
        if (parent := page.parent) is not None:
            if page.error is not None:
                parent.error = f"{page.request}, which it made, failed: {page.error}"
            self.child_ended(parent)

    def child_ended(self, parent: OpenPage) -> None:
        """Note that a child that stays in this process is done, or no child after all."""
        parent.children -= 1
        self.settle(parent)


class PushMaker:
    """Makes the pushes of a crawler's requests.

    `known` are the fingerprints that this process knows to be in the filter, or to be here.
    """

    def __init__(self, crawler: Crawler, pages: OpenPages, *, use_pickle: bool) -> None:
        self.fingerprints = Fingerprints(crawler)
        self.known = RecentFingerprints()
        self.codec = RequestCodec(crawler.spider, use_pickle=use_pickle, on_pickled=self._pickled)
        self._crawler = crawler
        self._pages = pages
        self._count: Any = crawler.stats.inc_value
        self._logged: set[str] = set()

    def is_known(self, request: Request) -> bool:
        """Return whether a request is a duplicate of which the server need not be asked."""
        return self.mode_of(request) == "n" and self.fingerprints.of(request) in self.known

    def mode_of(self, request: Request) -> Mode:
        """Return whether a request is filtered and recorded."""
        if request.dont_filter:
            return "a"
        if request.meta.get("bloomlock_filter") is False:
            return "r"
        is_redirect = "redirect_urls" in request.meta and request not in self._pages.maker_of
        return "r" if is_redirect and self.fingerprints.leads_back(request) else "n"

    def of(self, request: Request, *, is_again: bool = False) -> Push:
        """Return what queues a request; what has no form in the queue stays in this process."""
        mode, fingerprint = self.mode_of(request), self.fingerprints.of(request)
        if request.dont_filter and is_start_request(request):
            # Each process makes these, and one queues them.
            mode, fingerprint = "n", b"start:" + fingerprint
        host = self._crawler.engine.downloader.get_slot_key(request)
        try:
            entry = self.codec.encode(request)
        except UnserializableError as error:
            self._stays_here(request, error)
            if mode == "n":
                self.known.add(fingerprint)
            return Push(request, fingerprint, "l" if mode == "n" and not is_again else "a", host)
        return Push(request, fingerprint, "r" if mode == "n" and is_again else mode, host, entry)

    def again(self, entry: bytes) -> Push:
        """Return what queues an entry of an earlier queue, whatever the filter has."""
        try:
            return self.of(self.codec.decode(entry), is_again=True)
        # It may be of other code.
        except Exception as error:  # noqa: BLE001
            return self.failed(entry, error)

    def failed(self, data: bytes, error: Exception) -> Push:
        """Return what keeps among the failed what cannot become a request."""
        self._count("bloomlock/failed")
        return Push(None, b"-", "f", f"{type(error).__name__}: {error}", data)

    def _stays_here(self, request: Request, error: Exception) -> None:
        self._count("scheduler/unserializable")
        page = self._pages.maker_of.get(request)
        if page is not None:
            page.children += 1
        callback = getattr(request.callback, "__qualname__", repr(request.callback))
        if self._is_first(callback):
            logger.warning(
                "%s cannot be serialized (%s) and stays in this process; %s. It is logged once for "
                "the callback %s.",
                request,
                error,
                "the page that made it stays open until it is done"
                if page
                else "no page made it, so it is lost if this process is killed",
                callback,
            )

    def _pickled(self, kind: str) -> None:
        self._count("bloomlock/pickled")
        if self._is_first(f"pickled {kind}"):
            logger.info("Requests with a %s are pickled: JSON has no such type.", kind)

    def _is_first(self, what: str) -> bool:
        is_first = what not in self._logged
        self._logged.add(what)
        return is_first
