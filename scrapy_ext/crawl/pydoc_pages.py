"""What pydoc says of the standard library, as a folder of HTML: a site that every machine carries.

pydoc imports what it shows, so only harmless modules are rendered, in processes that have no
display, no standard input and no environment (pydoc prints `os.environ`).
"""

from __future__ import annotations

import html
import importlib
import multiprocessing
import os
import platform
import pydoc
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from collections.abc import Callable

_FORMAT = 3
_HREF = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)

# Importing these opens a window or a browser, prints, installs or runs tests, or they are no
# modules to read about; importing the rest of the standard library only defines names.
_NOT_HARMLESS = {
    *("antigravity", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data"),
    *("test", "this", "tkinter", "turtle", "turtledemo"),
}


def pydoc_pages(show: Callable[[str], object]) -> Path:
    """Return the folder of rendered pages, rendering it first where the user's cache has none."""
    version = f"{platform.python_implementation()}-{platform.python_version()}-v{_FORMAT}"
    folder = Path(platformdirs.user_cache_dir("bloomlock")) / f"pydoc-{version}"
    # It is written last.
    index = folder / "index.html"
    if index.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = harmless()

    def tell(done: int) -> None:
        show(f"rendering the documentation of Python, once: {done} of {len(names)} pages")

    tell(0)
    # A spawned process has nothing of this one.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn, initializer=_forget_environment) as pool:
        render = partial(_render, folder, frozenset(names))
        for done, _ in enumerate(pool.map(render, names), 1):
            tell(done)
    pages = sorted(page.name for page in folder.glob("*.html"))
    links = "\n".join(f'<a href="{name}">{name}</a>' for name in pages)
    index.write_text(f"<!DOCTYPE html><title>Python</title>\n{links}\n", "utf-8")
    return folder


def harmless() -> list[str]:
    names = sys.stdlib_module_names - _NOT_HARMLESS
    return sorted(name for name in names if not name.startswith("_"))


def _forget_environment() -> None:
    os.environ.clear()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _render(folder: Path, names: frozenset[str], name: str) -> None:
    try:
        page = pydoc.html.page(name, pydoc.html.document(importlib.import_module(name), name))
    # BLE001: a module may raise anything while it is imported; the site does without it.
    except Exception:  # noqa: BLE001
        return

    def keep(match: re.Match[str]) -> str:
        """Take out a link that leads nowhere in this folder."""
        page = html.unescape(match[1]).partition("#")[0]
        is_elsewhere = page.startswith(("http:", "https:"))
        is_good = page in {"", "."} or is_elsewhere or page.removesuffix(".html") in names
        return match[0] if is_good else match[2]

    (folder / f"{name}.html").write_text(_HREF.sub(keep, page), "utf-8", errors="replace")
