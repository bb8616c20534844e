"""The standard library's own documentation as a folder of HTML, rendered by pydoc.

Every machine with Python carries this site: about 500 densely linked pages. pydoc imports what it
shows, so only harmless modules are rendered, in child processes that have no display, no
standard input and no environment (pydoc prints `os.environ`).
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import os
import pkgutil
import platform
import pydoc
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORMAT = 2
_RENDER_SECONDS = 180.0
_LOOK_SECONDS = 0.2
_HREF = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)

# Importing these opens a window or a browser, prints, installs or runs tests, or they are no
# modules to read about; importing the rest of the standard library only defines names.
_NOT_HARMLESS = {
    *("antigravity", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data"),
    *("test", "this", "tkinter", "turtle", "turtledemo"),
}


def pydoc_site(
    on_render: Callable[[int, int], None] = lambda _done, _total: None,
    packages: Sequence[str] = (),
) -> Path:
    """Return the folder of rendered pages, rendering it first where the user's cache has none.

    Two processes that render at the same time do the work twice and keep one result.
    """
    version = f"{platform.python_implementation()}-{platform.python_version()}-v{_FORMAT}"
    version = "-".join((version, *packages))
    folder = Path(platformdirs.user_cache_dir("bloomlock")) / f"pydoc-{version}"
    if (folder / "index.html").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fresh = Path(scratch) / "pages"
        fresh.mkdir(mode=0o700)
        _render_all(fresh, module_names(packages), on_render)
        _finish(fresh)
        try:
            fresh.rename(folder)
        except OSError:
            if not (folder / "index.html").exists():
                raise
    return folder


def module_names(listed: Sequence[str] = ()) -> list[str]:
    names = []
    for top in listed or sorted(_harmless()):
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            continue
        if spec is not None:
            names.append(top)
            names += _inside(top, list(spec.submodule_search_locations or ()))
    return names


def _harmless() -> set[str]:
    return {name for name in sys.stdlib_module_names - _NOT_HARMLESS if name[0] != "_"}


def _inside(package: str, where: list[str]) -> list[str]:
    names = []
    for found in pkgutil.iter_modules(where):
        if found.name in ("__main__", "test", "tests"):
            continue
        name = f"{package}.{found.name}"
        names.append(name)
        if found.ispkg:
            names += _inside(name, [str(Path(path) / found.name) for path in where])
    return names


def _render_all(folder: Path, names: list[str], on_render: Callable[[int, int], None]) -> None:
    share = min(os.cpu_count() or 1, 8)
    environment = {"HOME": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + _RENDER_SECONDS
    with tempfile.TemporaryFile() as errors:
        try:
            for part in range(share):
                # S603: this very interpreter and this very module.
                command = [sys.executable, "-W", "ignore", "-m", __name__, str(folder)]
                child = subprocess.Popen(  # noqa: S603
                    [*command, *names[part::share]],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=environment,
                    cwd=folder,
                )
                children.append(child)
            while any(child.poll() is None for child in children):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"rendering the pydoc pages took over {_RENDER_SECONDS} s")
                on_render(sum(1 for _ in folder.glob("*.html")), len(names))
                time.sleep(_LOOK_SECONDS)
        finally:
            for child in children:
                child.kill()
                child.wait()
        if any(child.returncode for child in children):
            errors.seek(0)
            why = errors.read().decode(errors="replace")[-300:]
            raise RuntimeError(f"rendering the pydoc pages failed: {why}")
    on_render(len(names), len(names))


def _finish(folder: Path) -> None:
    """Write the index, and take out the links that lead nowhere in this folder."""
    pages = sorted(page.name for page in folder.glob("*.html"))

    def keep(match: re.Match[str]) -> str:
        target, text = match.groups()
        page = html.unescape(target).partition("#")[0]
        offsite = page.startswith(("http:", "https:"))
        return match.group() if not page or page == "." or offsite or page in pages else text

    for name in pages:
        page = folder / name
        page.write_text(_HREF.sub(keep, page.read_text("utf-8")), "utf-8")
    title = f"Python {platform.python_version()}"
    rows = [f'<li><a href="{name}">{name.removesuffix(".html")}</a></li>' for name in pages]
    head = f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{title}</title></head><body>'
    lines = [head, f"<h1>{title}</h1>", "<ul>", *rows, "</ul>", "</body></html>", ""]
    (folder / "index.html").write_text("\n".join(lines), "utf-8")


def _render(folder: Path, names: list[str]) -> None:
    for name in names:
        try:
            module = importlib.import_module(name)
            page = pydoc.html.page(name, pydoc.html.document(module, name))
        # BLE001: a module may raise anything while it is imported; the site does without it.
        except Exception:  # noqa: BLE001, S112
            continue
        (folder / f"{name}.html").write_text(page, "utf-8", errors="replace")


if __name__ == "__main__":
    _render(Path(sys.argv[1]), sys.argv[2:])
