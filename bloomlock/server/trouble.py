"""What can be wrong with an embedded server, each as one sentence."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from bloomlock.errors import ServerError
from bloomlock.server import life
from bloomlock.server.paths import WAY_OUT
from bloomlock.server.probe import log_tail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bloomlock.server.paths import Home
    from bloomlock.server.probe import Answer

_NEARLY_FULL = 1 << 16


def died(home: Home, words: str) -> ServerError:
    """Make the error of a server that ended before it was ready."""
    full = "the disk is full; " if is_disk_full(home) else ""
    return ServerError(
        f"the embedded server in {home.data_dir} ended while it was starting; {full}{words}"
    )


def is_disk_full(home: Home) -> bool:
    """Tell whether the disk of the data has no room to speak of."""
    with suppress(OSError):
        return shutil.disk_usage(home.data_dir).free < _NEARLY_FULL
    return False


def unreachable(home: Home, answer: Answer) -> ServerError:
    """Make the error of a server that lives and does not take commands."""
    who = f"the embedded server in {home.data_dir} (pid {home.pid() or 'unknown'})"
    if answer.busy:
        return ServerError(f"{who} is not ready in time: {answer.text}; try again later")
    if answer.text:
        return ServerError(f"{who} cannot work: {answer.text}; {log_tail(home.log_file)}")
    return ServerError(
        f"{who} runs but does not answer; end it with `bloomlock server stop`, or {WAY_OUT}"
    )


def refuse_other_host(home: Home) -> None:
    """Refuse data that a server on another machine works on.

    Raises:
        ServerError: It is so.
    """
    host = life.foreign_host(home.life_file)
    if host is not None:
        raise ServerError(
            f"the data directory {home.data_dir} is in use by the embedded server of the host "
            f"{host}; {WAY_OUT}"
        )


@contextmanager
def explained(home: Home) -> Iterator[None]:
    """Turn every error of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        raise ServerError(
            f"the embedded server's directory {home.data_dir} cannot be used: {error.strerror} "
            f"({error.filename or home.life_file}); {log_tail(home.log_file)}; {WAY_OUT}"
        ) from error
