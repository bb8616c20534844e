"""Which contenders can be measured here."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .place import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .contenders import Entry


def sort_out(entries: Iterable[Entry], url: str) -> tuple[list[Entry], list[dict[str, str]]]:
    """Tell the contenders that can be measured from those that cannot.

    Args:
        entries: All that are wanted.
        url: The server.

    Returns:
        Those that can, in order, and of the others name, title and what is missing.
    """
    there, missing = [], []
    for entry in entries:
        why = _missing(entry, url)
        if why:
            missing.append({"contender": entry.name, "title": entry.title, "why": why})
        else:
            there.append(entry)
    return there, missing


def _missing(entry: Entry, url: str) -> str:
    kind, _, name = entry.needs.partition(":")
    if kind == "package" and find_spec(name) is None:
        return f"{name} is not installed"
    if kind == "command" and not _has_command(url, name):
        return f"the server has no {name}"
    return ""


def _has_command(url: str, name: str) -> bool:
    with connect(url) as client:
        told: Any = client.command()
    return name.lower() in told
