"""The pages that this process is at, each until all that it made is done or queued."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from scrapy_ext.queue import Push

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from scrapy import Request


class OpenPage:
    """A request from when it is taken until its callback, its items and its children are done.

    Args:
        request: The request; None if its entry could not be read.
        host: Of which host it is.
        identity: Its id on the server; empty if it stays in this process.
        parent: The page whose callback made it, if it stays in this process.
        fingerprint: What is added to the filter when it is done, if it was not when it was queued.
    """

    __slots__ = ("children", "error", "fingerprint", "host", "id", "is_over", "parent", "request")

    def __init__(
        self,
        request: Request | None,
        host: str,
        identity: str = "",
        parent: OpenPage | None = None,
        fingerprint: bytes = b"",
    ) -> None:
        self.request = request
        self.host = host
        self.id = identity
        self.parent = parent
        self.fingerprint = fingerprint
        self.error: str | None = None
        self.is_over = False
        self.children = 0
        """How many requests that stay in this process wait or are open."""

    def record(self) -> Push:
        """Return what adds it to the filter."""
        return Push(None, self.fingerprint, "d", self.host)


class OpenPages:
    """The pages that this process is at.

    A page ends when the engine is done with it, and so are all its children that stay in this
    process: these have no other place, so who is killed before makes them again.

    Args:
        end: Called with each page that ends, done or failed, if that concerns the server.
    """

    def __init__(self, end: Callable[[OpenPage], None]) -> None:
        self.when_done: list[Callable[[Request], None]] = []
        """Called with each request that is done and did not fail."""
        self._end = end
        self._open: dict[Request, OpenPage] = {}
        self._maker_of: WeakKeyDictionary[Request, OpenPage] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, page: OpenPage, request: Request) -> None:
        self._open[request] = page

    def note_made(self, requests: Iterable[Request], by: Request) -> None:
        """Note the page whose callback made requests. What the downloader makes has none."""
        if (page := self._open.get(by)) is not None:
            for request in requests:
                self._maker_of[request] = page

    def maker_of(self, request: Request) -> OpenPage | None:
        return self._maker_of.get(request)

    def fail(self, request: Request, why: str) -> None:
        if (page := self._open.get(request)) is not None:
            page.error = why

    def collect(self, in_progress: Collection[Request]) -> None:
        """End the pages that the engine is done with."""
        for request in [one for one in self._open if one not in in_progress]:
            page = self._open.pop(request)
            page.is_over = True
            self.settle(page)

    def settle(self, page: OpenPage) -> None:
        """End a page if it is over, with its children."""
        if not page.is_over or page.children:
            return
        if page.error is None and page.request is not None:
            for call in self.when_done:
                call(page.request)
        if page.id or (page.fingerprint and page.error is None):
            self._end(page)
        if (parent := page.parent) is not None:
            if page.error is not None:
                parent.error = f"{page.request}, which it made, failed: {page.error}"
            self.child_ended(parent)

    def child_ended(self, parent: OpenPage) -> None:
        """Note that a child that stays in this process is done, or no child after all."""
        parent.children -= 1
        self.settle(parent)

    def let_go(self) -> None:
        """Note that the server has put all of them back into the queue."""
        for page in self._open.values():
            page.id = ""
