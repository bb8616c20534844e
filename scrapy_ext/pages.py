"""The pages that this process is at, each until all that it made is done or queued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from scrapy import Request


@dataclass(eq=False, slots=True)
class OpenPage:
    """A request from when it is taken until its callback, its items and its children are done.

    Attributes:
        request: None if its entry could not be read.
        id: On the server; empty if the request stays in this process.
        parent: The page whose callback made it, if it stays in this process.
        fingerprint: What is added to the filter when it is done, if it was not when it was queued.
        children: How many requests that stay in this process wait or are open.
    """

    request: Request | None
    host: str
    id: str = ""
    parent: OpenPage | None = None
    fingerprint: bytes = b""
    error: str | None = None
    is_over: bool = False
    children: int = 0


class OpenPages(dict["Request", OpenPage]):
    """The pages that this process is at; `on_end` is called with each that is done or failed.

    A page ends when the engine is done with it, and so are all its children that stay in this
    process, so who is killed before makes them again.
    """

    def __init__(self, on_end: Callable[[OpenPage], None]) -> None:
        super().__init__()
        self._on_end = on_end
        self._maker_of: WeakKeyDictionary[Request, OpenPage] = WeakKeyDictionary()

    def note_made(self, requests: Iterable[Request], by: Request) -> None:
        """Note the page whose callback made requests. What the downloader makes has none."""
        if by in self:
            self._maker_of.update(dict.fromkeys(requests, self[by]))

    def maker_of(self, request: Request) -> OpenPage | None:
        return self._maker_of.get(request)

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
