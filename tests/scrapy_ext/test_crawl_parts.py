"""The parts of `bloomlock crawl` that need no crawl: the pages about Python, the folder server."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from scrapy_ext.crawl.pydoc_pages import harmless, pydoc_pages
from scrapy_ext.crawl.site import TOKEN_HEADER, open_target
from scrapy_ext.crawl.worker import site_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("http://a/x", "https://a:443/y", True),
        ("http://a:81/", "http://a/", False),
        ("http://a/", "http://b.a/", False),
        ("http://A/", "http://a/", True),
    ],
)
def test_same_site(first: str, second: str, same: bool) -> None:
    assert (site_of(first) == site_of(second)) is same


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


def test_the_folder_is_for_those_who_know_the_token(tmp_path: Path) -> None:
    tmp_path.joinpath("index.html").write_text("hello")
    with open_target(str(tmp_path), lambda _: None) as target:
        request = urllib.request.Request(target.start)  # noqa: S310 - our own loopback URL
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)  # noqa: S310 - as above
        assert refused.value.code == 403
        refused.value.close()
        request.add_header(TOKEN_HEADER, target.token)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
            assert answer.read() == b"hello"
