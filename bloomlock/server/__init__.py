"""Servers that bloomlock starts by itself.

The embedded server is one real Valkey for each user: persistent, on a unix socket that only that
user can reach, started by whichever process needs it first and left running for the others. A
`PrivateServer` is a throw-away one for tests and scripts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bloomlock.server.embedded import ServerStatus, embedded_url, start, status, stop
    from bloomlock.server.private import PrivateServer
    from bloomlock.server.process import ProcessGuard
    from bloomlock.server.urls import explained, find_address, hide_secret

__all__ = [
    "PrivateServer",
    "ProcessGuard",
    "ServerStatus",
    "embedded_url",
    "explained",
    "find_address",
    "hide_secret",
    "start",
    "status",
    "stop",
]

# Imported at their first use: a client of a server with a URL starts none.
_MODULES = {
    "PrivateServer": ".private",
    "ProcessGuard": ".process",
    "ServerStatus": ".embedded",
    "embedded_url": ".embedded",
    "explained": ".urls",
    "find_address": ".urls",
    "hide_secret": ".urls",
    "start": ".embedded",
    "status": ".embedded",
    "stop": ".embedded",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULES[name], __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return the names that tools complete."""
    return sorted({*globals(), *__all__})
