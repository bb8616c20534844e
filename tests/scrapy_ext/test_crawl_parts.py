"""The parts of the main job that need no crawl: the sums, the pages, the folder server."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from scrapy_ext.crawl.render import module_names, pydoc_site
from scrapy_ext.crawl.site import TOKEN_HEADER, open_target
from scrapy_ext.crawl.worker import _site

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
    assert (_site(first) == _site(second)) is same


@pytest.mark.thorough
def test_the_pydoc_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path))
    monkeypatch.setenv("A_SECRET", "not for the os page")
    packages = ("json", "os")
    folder = pydoc_site(packages=packages)
    pages = {page.name: page.read_text("utf-8") for page in folder.iterdir()}
    assert {"json.html", "json.decoder.html", "os.html"} <= pages.keys()
    assert not any("__main__" in name for name in pages)
    assert "not for the os page" not in pages["os.html"]
    targets = {target for page in pages.values() for target in re.findall(r'href="([^"#]*)', page)}
    local = {target for target in targets if target and not target.startswith("http")}
    assert local - pages.keys() == {"."}
    before = folder.stat().st_mtime_ns
    assert pydoc_site(packages=packages) == folder
    assert folder.stat().st_mtime_ns == before
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


def test_the_listed_modules_are_harmless() -> None:
    names = set(module_names())
    assert {"json", "asyncio.events", "os", "xml.dom.minidom"} <= names
    assert 400 < len(names) < 1000
    assert names.isdisjoint({"antigravity", "this", "idlelib", "tkinter", "turtle", "__main__"})
    assert not any(name.endswith(".__main__") for name in names)


def test_the_folder_is_for_those_who_know_the_token(tmp_path: Path) -> None:
    tmp_path.joinpath("index.html").write_text("hello")
    with open_target(str(tmp_path), lambda *_: None) as target:
        request = urllib.request.Request(target.start)  # noqa: S310 - our own loopback URL
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)  # noqa: S310 - as above
        assert refused.value.code == 403
        refused.value.close()
        request.add_header(TOKEN_HEADER, target.token)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
            assert answer.read() == b"hello"
