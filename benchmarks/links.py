"""The links of a real site, in the order in which a crawl meets them.

The site is a folder of HTML: by default the standard library's documentation as `bloomlock crawl`
renders it, which every machine with Python has. Pages are read breadth first from the start page;
each link to a page of the same folder counts, repeats too, as the requests of a spider do.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from parsel import Selector

from scrapy_ext.crawl.render import pydoc_site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "http://site"


def link_stream(site: Path | None) -> list[str]:
    """Return the fingerprint of every link, in order.

    Args:
        site: A folder with an `index.html`; None is the standard library's documentation.

    Raises:
        ValueError: If the folder has no start page.
    """
    folder = pydoc_site() if site is None else site
    if not (folder / "index.html").is_file():
        raise ValueError(f"--site is {folder}: it must be a folder with an index.html")
    return [_fingerprint(link) for link in _crawl(folder)]


def _crawl(folder: Path) -> Iterator[str]:
    start = f"{HOST}/index.html"
    seen, queue = {start}, deque([start])
    while queue:
        page = queue.popleft()
        for link in _links(folder, page):
            yield link
            if link not in seen:
                seen.add(link)
                queue.append(link)


def _links(folder: Path, page: str) -> Iterator[str]:
    """Yield the links of a page to pages of the same site, without their fragments."""
    file = folder / unquote(urlsplit(page).path).lstrip("/")
    file = file / "index.html" if file.is_dir() else file
    if file.suffix not in {".html", ".htm"} or not file.is_file():
        return
    for target in Selector(file.read_text("utf-8", errors="replace")).xpath("//a/@href").getall():
        try:
            link = urldefrag(urljoin(page, target.strip())).url
        except ValueError:
            continue  # as in a browser, what is no address leads nowhere
        if link.startswith(HOST + "/"):
            yield link


def _fingerprint(link: str) -> str:
    return hashlib.sha1(link.encode(), usedforsecurity=False).hexdigest()
