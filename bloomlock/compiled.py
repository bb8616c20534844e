"""The compiled core: `core`, or None for the Python code, which gives the same bits.

It is built when bloomlock is installed on a machine with a C compiler. BLOOMLOCK_PURE=1 in the
environment leaves it out; the variable is read once, here.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

PURE = "BLOOMLOCK_PURE"


def find_core() -> Any:
    if os.environ.get(PURE, "0") not in {"", "0"}:
        return None
    try:
        found = import_module("._speed", __package__)
    except ModuleNotFoundError:
        return None
    check_version(found.VERSION, import_module("bloomlock").__version__)
    return found


def check_version(compiled: str, package: str) -> None:
    if compiled != package:
        raise ImportError(
            f"bloomlock._speed is of version {compiled} and bloomlock of {package}; reinstall "
            f"bloomlock, or set {PURE}=1 to do without it"
        )


core = find_core()
__speed__ = "compiled" if core else "python"
"""The core in use, which `bloomlock --version` prints."""
