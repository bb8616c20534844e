"""The items that contenders are offered: 40 hexadecimal digits each, like Scrapy's fingerprints.

A span of items is named by a tag and a count, so that every process can make it for itself:

    TAG         items that no other tag has; fewer of the same tag are the first of them
    zipf:TAG    nine of ten from `POPULAR`, few of them very often, the tenth from TAG
    links:FILE  the lines of a file, from the start again after the last
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections import deque
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DIGITS = 40
POPULAR = ("popular", 5_000)
"""What a stream of `zipf:` has seen before."""
SEEN_SHARE = 0.9
ZIPF_EXPONENT = 1.1
HOST = "http://site"
PACKAGES = ("numpy", "redis", "click", "rich")
"""Packages that a site is made of, beside the standard library."""


def items(tag: str, count: int) -> list[str]:
    """Make the items of a span.

    >>> items("a", 3)[:2] == items("a", 2), set(items("a", 9)) & set(items("b", 9))
    (True, set())
    >>> {len(item) for item in items("zipf:a", 9)}
    {40}
    """
    kind, colon, rest = tag.partition(":")
    if colon and kind == "links":
        return _lines(Path(rest), count)
    if colon and kind == "zipf":
        return _zipf(rest, count)
    return fingerprints(tag, count)


def fingerprints(tag: str, count: int) -> list[str]:
    """Make items that are the same for the same tag."""
    text = random.Random(tag).randbytes(count * DIGITS // 2).hex()
    return [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]


def new_in(tag: str, count: int) -> int:
    """Return how many items of a span are new to who saw `POPULAR` only."""
    kind, colon, rest = tag.partition(":")
    if colon and kind == "links":
        return len(set(_lines(Path(rest), count)))
    if colon and kind == "zipf":
        return int(_fresh(rest, count).sum())
    return count


def _fresh(tag: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.random.default_rng(zlib.crc32(tag.encode())).random(count) >= SEEN_SHARE


def _zipf(tag: str, count: int) -> list[str]:
    fresh = _fresh(tag, count)
    weights = np.arange(1, POPULAR[1] + 1) ** -ZIPF_EXPONENT
    generator = np.random.default_rng(zlib.crc32(tag.encode()) + 1)
    ranks = generator.choice(POPULAR[1], size=count, p=weights / weights.sum())
    popular = fingerprints(*POPULAR)
    new = iter(fingerprints(tag, int(fresh.sum())))
    pairs = zip(fresh.tolist(), ranks.tolist(), strict=True)
    return [next(new) if is_new else popular[rank] for is_new, rank in pairs]


def _lines(file: Path, count: int) -> list[str]:
    return list(islice(cycle(file.read_text("utf-8").split()), count))


def sites(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each site: those that are given, or two rendered by pydoc."""
    if folders:
        yield from ((folder.name, folder) for folder in folders)
        return
    # PLC0415: every process that makes items would import these.
    from scrapy_ext.crawl.render import pydoc_site  # noqa: PLC0415

    yield "the standard library", pydoc_site()
    yield "four packages", pydoc_site(packages=PACKAGES)


def link_stream(folder: Path) -> list[str]:
    """Return the fingerprint of every link of a site, in the order in which a crawl meets them.

    Pages are read breadth first from `index.html`; each link to a page of the same folder counts,
    repeats too, as the requests of a spider do.
    """
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
    from parsel import Selector  # noqa: PLC0415 - as above

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
