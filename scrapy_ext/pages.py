"""The pages that this process is at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_ext.queue import Push

if TYPE_CHECKING:
    from scrapy import Request


class OpenPage:
    """A request from when it is taken until its callback, its items and its children are done.

    Args:
        request: The request; None if its entry could not be read.
        host: Of which host it is.
        identity: Its id on the server; empty if it stays in this process.
        parent: The page whose callback made it, if it stays in this process.
    """

    __slots__ = (
        "children",
        "error",
        "fingerprint",
        "host",
        "id",
        "is_over",
        "is_recorded",
        "parent",
        "request",
    )

    def __init__(
        self,
        request: Request | None,
        host: str,
        identity: str = "",
        parent: OpenPage | None = None,
    ) -> None:
        self.request = request
        self.host = host
        self.id = identity
        self.parent = parent
        self.error: str | None = None
        self.is_over = False
        self.fingerprint = b""
        self.is_recorded = False
        """Whether it is added to the filter when it is done: it was not when it was queued."""
        self.children = 0
        """How many requests that stay in this process wait or are open."""

    def record(self) -> Push:
        """Return what adds it to the filter."""
        return Push(None, self.fingerprint, "d", self.host)
