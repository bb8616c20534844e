"""What a worker writes down as it goes, one JSON line for each event, each in one write.

A line is in the file as soon as the call returns, so a worker that is killed leaves a true record:

- `page`: a page was fetched; the links on it, and which of them this worker had not met before
- `won`: a link was new to the shared filter and put into the queue by this worker
- `refused`: a page was not to be had (robots.txt, 404, too large)
- `failed`: a page was not to be had because of the network
- `count`: links checked and duplicates filtered by this worker so far
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Journal:
    """The journal of one worker."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._met: set[str] = set()
        self.checked = 0
        self.duplicates = 0

    def page(self, key: bytes, url: str, links: Iterable[tuple[bytes, str]]) -> None:
        """Note a page that was fetched, and the fingerprints and URLs of its links."""
        found = {link.hex(): target for link, target in links}
        fresh = {link: target for link, target in found.items() if link not in self._met}
        self._met.update(fresh)
        self._write("page", key=key.hex(), url=url, found=fresh)

    def won(self, key: bytes, url: str) -> None:
        """Note a link that the filter said is new and that is about to be queued."""
        self._write("won", key=key.hex(), url=url)

    def refused(self, key: bytes, url: str, why: str) -> None:
        """Note a page that the site, or its robots.txt, does not give."""
        self._write("refused", key=key.hex(), url=url, why=why)

    def failed(self, key: bytes, url: str, why: str) -> None:
        """Note a page that could not be fetched."""
        self._write("failed", key=key.hex(), url=url, why=why)

    def count(self) -> None:
        """Note the counters as they stand."""
        self._write("count", checked=self.checked, duplicates=self.duplicates)

    def _write(self, kind: str, **fields: Any) -> None:
        os.write(self._file, json.dumps({"kind": kind, **fields}).encode() + b"\n")
