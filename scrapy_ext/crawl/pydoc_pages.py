"""The pages of pydoc on the standard library: a site that every machine has.

pydoc imports what it shows and prints `os.environ`: processes without it render harmless modules.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from collections.abc import Callable

_FORMAT = 4
# Importing these opens a window or a browser, prints, installs or runs tests, or they are no
# modules to read about; importing the rest of the standard library only defines names.
_NOT_HARMLESS = {
    *("antigravity", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data"),
    *("test", "this", "tkinter", "turtle", "turtledemo"),
}
_RENDER = """
import os, pydoc, sys
os.environ.clear()
for name in sys.argv[1:]:
    try:
        pydoc.writedoc(name)
    except Exception:  # as a module may raise that is not for this system
        print(name)
"""
_LINK = re.compile(r'<a href="(?!https?:|#|\.)([^"#]*)[^"]*">(.*?)</a>', re.DOTALL)
"""Not to the web, not in the page itself, and not to the index."""


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
    count = os.cpu_count() or 1
    with ExitStack() as stack:
        renderers = [
            subprocess.Popen(  # noqa: S603 - our own words
                [sys.executable, "-Iuc", _RENDER, *names[number::count]],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for number in range(count)
        ]
        lines = chain([b""], *(stack.enter_context(one).stdout or () for one in renderers))
        for done, _ in enumerate(lines):
            show(f"rendering the documentation of Python, once: {done} of {len(names)} pages")
    pages = {page.name: page for page in sorted(folder.glob("*.html"))}
    for page in pages.values():
        text = page.read_text("utf-8")
        page.write_text(_LINK.sub(lambda link: link[0 if link[1] in pages else 2], text), "utf-8")
    links = "\n".join(f'<a href="{name}">{name}</a>' for name in pages)
    index.write_text(f"<!DOCTYPE html><title>Python</title>\n{links}\n", "utf-8")
    return folder


def harmless() -> list[str]:
    names = sys.stdlib_module_names - _NOT_HARMLESS
    return sorted(name for name in names if not name.startswith("_"))
