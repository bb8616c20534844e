"""The parts of `bloomlock crawl` that need no crawl: the pages about Python, and links."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from scrapy_ext.crawl.pydoc_pages import harmless, pydoc_pages
from scrapy_ext.crawl.worker import SiteSpider

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("start", "link", "leads_to"),
    [
        ("http://a/x", "https://a/y", "https://a/y"),
        ("http://a/x", "http://A?y", "http://A?y"),
        ("http://a:81/", "http://a/", ""),
        ("http://a/", "http://b.a/", ""),
        ("http://a/", "http://ab/", ""),
        ("http://a/", "file:///a/", ""),
        ("file:///a/index.html", "file:///a/b/c.html?d#e", "file:///a/b/c.html"),
        ("file:///a/index.html", "file:///a/b/", "file:///a/b/index.html"),
        ("file:///a/index.html", "file:///", "file:///a/index.html"),
        ("file:///a/index.html", "file:///ab/c.css", "file:///a/ab/c.css"),
        ("file:///a/index.html", "http://a/", ""),
    ],
)
def test_where_a_link_leads(start: str, link: str, leads_to: str) -> None:
    assert SiteSpider(start_url=start).target(link) == leads_to


@pytest.mark.thorough
def test_the_pages_about_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set(harmless())
    assert {"json", "asyncio", "os"} <= names
    assert names.isdisjoint({"antigravity", "this", "idlelib", "tkinter", "turtle", "_thread"})
    monkeypatch.setattr("scrapy_ext.crawl.pydoc_pages.harmless", lambda: ["json", "os", "nt"])
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path))
    monkeypatch.setenv("A_SECRET", "not for the os page")
    said: list[str] = []
    folder = pydoc_pages(said.append)
    pages = {page.name: page.read_text("utf-8") for page in folder.iterdir()}
    assert pages.keys() == {"json.html", "os.html", "index.html"}
    assert "not for the os page" not in pages["os.html"]
    targets = {target for page in pages.values() for target in re.findall(r'href="([^"#]*)', page)}
    local = {target for target in targets if target and not target.startswith(("http", "file"))}
    assert local - pages.keys() == {"."}
    assert said[-1].endswith("3 of 3 pages")
    assert pydoc_pages(said.append) == folder
    assert len(said) == 4
