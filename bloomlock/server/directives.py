"""Checking what the caller of a private server asks for, and writing it as arguments."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from bloomlock.errors import ConfigurationError

ConfigValue: TypeAlias = str | int | bool | Sequence[str]
_PORT_LIMIT = 65535
# Set by other parameters, or needed to keep hold of the process.
_OWNED = ("port", "unixsocket", "unixsocketperm", "dir", "daemonize", "logfile")


def checked_binary(binary: str | os.PathLike[str]) -> Path:
    """Return the path of a program, which may be named without its directory."""
    found = shutil.which(binary)
    if found is None:
        raise ConfigurationError(
            f"binary is {os.fspath(binary)!r}: it must be the path of an executable server program"
        )
    return Path(found).absolute()


def checked_port(port: int | None) -> int | None:
    """Return the port if it is one."""
    if port is None:
        return None
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _PORT_LIMIT:
        raise ConfigurationError(
            f"port is {port!r}: it must be None, 0 for any free port, or at most {_PORT_LIMIT}"
        )
    return port


def checked_config(config: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """Return the directives under their lower-case names."""
    checked = {name.lower(): value for name, value in config.items()}
    for name in _OWNED:
        if name in checked:
            raise ConfigurationError(
                f"config holds {name}={checked[name]!r}: this directive is set by the private "
                f"server itself; use its parameters port and directory"
            )
    return checked


def arguments(directives: Mapping[str, ConfigValue]) -> list[str]:
    """Write directives as command-line arguments."""
    return [part for name, value in directives.items() for part in (f"--{name}", *_words(value))]


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _words(value: ConfigValue) -> list[str]:
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, str | int):
        return [str(value)]
    return [str(word) for word in value]
