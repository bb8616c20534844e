"""What is crawled: a site, a folder served for the occasion, or the pydoc pages."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bloomlock import ConfigurationError
from scrapy_ext.crawl.pydoc_pages import pydoc_site
from scrapy_ext.crawl.serve import FolderServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CAPACITY_OF_A_SITE = 100_000
_PAGES_OF_A_SITE = 10_000
_SMALLEST = 1_000


@dataclass(frozen=True, slots=True)
class Target:
    """A site to crawl.

    Attributes:
        title: What to call it.
        start: Address of its first page.
        remote: Whether somebody else serves it: then robots.txt counts and each worker slows
            down with the site.
        capacity: Distinct links to reckon with.
        max_pages: Where to stop unless told otherwise; None: at the end.
        token: What the job's own server wants to see.
    """

    title: str
    start: str
    remote: bool
    capacity: int
    max_pages: int | None = None
    token: str = ""


@contextmanager
def open_target(
    source: str | None, on_render: Callable[[int, int], None] = lambda _done, _total: None
) -> Iterator[Target]:
    """Make a site of what the user named, for the length of a `with` block.

    Args:
        source: An http or https URL, a folder of HTML, or None for the pydoc pages.
        on_render: Called with the pages rendered and their number while there are pages to render.

    Raises:
        ConfigurationError: The source is neither.
    """
    parts = urlsplit(source or "")
    if source is not None and parts.scheme in {"http", "https"}:
        if not parts.hostname:
            raise ConfigurationError(f"SOURCE is {source!r}; a URL needs a host.")
        yield Target(source, source, True, _CAPACITY_OF_A_SITE, _PAGES_OF_A_SITE)
        return
    folder = pydoc_site(on_render) if source is None else Path(source)
    if not folder.is_dir():
        raise ConfigurationError(
            f"SOURCE is {source!r}; allowed are an http or https URL and an existing folder."
        )
    files = sum(1 for path in folder.rglob("*") if path.is_file())
    title = "the standard library's documentation" if source is None else str(folder)
    with FolderServer(folder) as server:
        capacity = max(_SMALLEST, 2 * files)
        yield Target(title, server.url, False, capacity, token=server.token)
