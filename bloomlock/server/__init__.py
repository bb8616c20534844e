"""Servers that bloomlock starts by itself.

The embedded server is one real Valkey for each user: persistent, on a unix socket that only that
user can reach, started by whichever process needs it first and left running for the others. A
`PrivateServer` is a throw-away one for scripts and examples.
"""

from .embedded import embedded_url, find_home, status, stop
from .private import PrivateServer
from .process import ProcessGuard
from .urls import explained, find_address, hide_secret

__all__ = [
    "PrivateServer",
    "ProcessGuard",
    "embedded_url",
    "explained",
    "find_address",
    "find_home",
    "hide_secret",
    "status",
    "stop",
]
