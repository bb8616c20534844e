"""The one server that all processes of a user share: find it, start it, stop it."""

from __future__ import annotations

import logging
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import filelock
from redis.exceptions import RedisError, ResponseError

from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.server import life, process
from bloomlock.server.paths import Home, find_home
from bloomlock.server.probe import Answer, ask, connect, log_tail
from bloomlock.server.trouble import died, explained, refuse_other_host, unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_PING_TIMEOUT = 1.0
# A living server that says nothing for so long is taken to hang (seconds).
_PATIENCE = 5.0


def embedded_url(timeout: float = 30.0) -> str:
    """Return the URL of the embedded server, which is started if it does not run.

    Costs one connection and one PING if it runs, some 20-50 ms if it has to be started, and
    the time it needs to read its data.

    Args:
        timeout: How long to wait for a server that starts or reads its data, in seconds. One
            that is up and silent is given up after 5 s.

    Returns:
        A URL for `redis.Redis.from_url`, `unix:///.../server.sock?db=0`.

    Raises:
        ServerError: It cannot be started or does not answer; the sentence says why.
        ConfigurationError: `timeout` is no positive number, or BLOOMLOCK_HOME is not an
            absolute path.
    """
    _check_timeout(timeout)
    home = find_home()
    with explained(home):
        if not (home.check() and ask(home.socket_path, min(_PING_TIMEOUT, timeout)).ready):
            _bring_up(home, timeout)
    return home.url


def start(timeout: float = 30.0) -> bool:
    """Start the embedded server if it does not run, and wait until it is ready.

    Args:
        timeout: As for `embedded_url`.

    Returns:
        True if this call started it, False if it was running.

    Raises:
        ServerError: As for `embedded_url`.
        ConfigurationError: As for `embedded_url`.
    """
    _check_timeout(timeout)
    home = find_home()
    with explained(home):
        return _bring_up(home, timeout)


def stop(timeout: float = 10.0) -> bool:
    """Stop the embedded server; its data stays. Returns when its process has ended.

    A server that does not react is killed. No acknowledged write is lost by that: the
    append-only file is handed to the system before each reply.

    Args:
        timeout: The longest time to take, in seconds; two thirds of it for a peaceful end.

    Returns:
        True if a server was stopped, False if none was running.

    Raises:
        ServerError: The server refuses, cannot be ended, or runs on another host.
        ConfigurationError: As for `embedded_url`.
    """
    _check_timeout(timeout)
    home = find_home()
    with explained(home):
        home.check()
        if not life.is_held(home.life_file):
            return False
        home.check_files()
        deadline = time.monotonic() + timeout
        with _sole_starter(home, deadline):
            if not life.is_held(home.life_file):
                return False
            refuse_other_host(home)
            asked = _ask_to_end(home, min(2.0, timeout / 3))
            if not (asked and life.wait_free(home.life_file, deadline - timeout / 3)):
                process.end(home, deadline)
    logger.info("stopped the embedded server in %s", home.data_dir)
    return True


def _check_timeout(timeout: float) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise ConfigurationError(f"timeout is {timeout!r}: it must be a number of seconds above 0")
    if not 0 < timeout < math.inf:
        raise ConfigurationError(f"timeout is {timeout!r}: it must be a number of seconds above 0")


def _bring_up(home: Home, timeout: float) -> bool:
    """Wait until the server is ready; start it once if none lives. Tells whether it did."""
    home.prepare()
    deadline = time.monotonic() + timeout
    log_start: int | None = None
    heard = time.monotonic()
    pause = 0.002
    while True:
        answer = _ask(home, deadline)
        now = time.monotonic()
        if answer.ready:
            return log_start is not None
        if answer.text and not answer.busy:
            raise unreachable(home, answer)
        if answer.busy:
            heard = now
        if not life.is_held(home.life_file):
            if log_start is not None:
                raise died(home, log_tail(home.log_file, log_start))
            log_start = _start_once(home, deadline)
            heard = time.monotonic()
        elif now >= deadline:
            refuse_other_host(home)
            raise unreachable(home, answer)
        elif now - heard >= _PATIENCE and home.pid() is not None:
            _replace_or_give_up(home, deadline)
            heard = time.monotonic()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _ask(home: Home, deadline: float) -> Answer:
    if not home.check():
        return Answer()
    return ask(home.socket_path, max(0.1, min(_PING_TIMEOUT, deadline - time.monotonic())))


def _start_once(home: Home, deadline: float) -> int | None:
    """Start a server unless somebody else just did; return where its part of the log begins."""
    with _sole_starter(home, deadline), life.hold(home.life_file) as fd:
        if fd is None:
            return None
        log_start = process.spawn(home, fd, deadline)
    logger.info("started the embedded server in %s", home.data_dir)
    return log_start


def _replace_or_give_up(home: Home, deadline: float) -> None:
    """End a living server whose socket somebody removed: nobody will ever reach it again."""
    refuse_other_host(home)
    pid = home.pid()
    if home.check():
        raise unreachable(home, Answer())
    with _sole_starter(home, deadline):
        if home.pid() != pid or home.check() or not life.is_held(home.life_file):
            return  # somebody else has done it
        logger.warning("the embedded server in %s lost its socket: restarting it", home.data_dir)
        process.end(home, deadline)


def _ask_to_end(home: Home, timeout: float) -> bool:
    """Send SHUTDOWN; tell whether the server may have got it."""
    if not home.check():
        return False
    with connect(home.socket_path, timeout) as client:
        try:
            # NOSAVE is about snapshots; the append-only file is completed in any case. It is also
            # what a server accepts while a script keeps it busy.
            client.shutdown(nosave=True)
        except ResponseError as error:
            raise ServerError(
                f"the embedded server in {home.data_dir} refuses to stop: {error}; "
                f"{log_tail(home.log_file)}"
            ) from error
        except RedisError:
            logger.warning("the embedded server in %s does not answer", home.data_dir)
            return False
    return True


@contextmanager
def _sole_starter(home: Home, deadline: float) -> Iterator[None]:
    lock = filelock.FileLock(home.start_lock, mode=0o600)
    try:
        lock.acquire(timeout=max(0.0, deadline - time.monotonic()), poll_interval=0.01)
    except filelock.Timeout as error:
        raise ServerError(
            f"another process has been starting or stopping the embedded server in "
            f"{home.data_dir} for too long: {home.start_lock} is locked"
        ) from error
    try:
        yield
    finally:
        lock.release()
