"""A connection on which the server tells that one key was changed.

Client-side caching of Redis 6 (https://redis.io/docs/latest/develop/reference/client-side-caching/):
after CLIENT TRACKING ON BCAST PREFIX the server writes something whenever a key with that prefix is
written, deleted, expired or evicted, and nothing else. What it writes need not be understood:
any byte means "look again". So no thread has to wait for it. Whoever wants to know takes one look
that does not block, and a process that does not ask pays nothing.

The connection speaks RESP3 whatever the client's others speak, and does not count against its pool.
"""

from __future__ import annotations

import enum
import logging
import os
import ssl
import threading
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.effects import encode_command

logger = logging.getLogger("bloomlock.runtime")

OK = b"+OK\r\n"
READ_BYTES = 64 * 1024
CLOSE_SECONDS = 1.0
_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)
_NOTHING_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class News(enum.Enum):
    """What a look at the connection found."""

    NONE = "none"
    CHANGED = "changed"
    BROKEN = "broken"  # changes may have been missed, and nothing will come any more


def tracking_settings(source: Any) -> dict[str, Any]:
    """Return what to connect with, like the connections of a pool or of a node of a cluster."""
    # Notices about maintenance would be taken for changes of the key.
    return {
        name: value
        for name, value in source.connection_kwargs.items()
        if not name.startswith(("maint_notifications_", "oss_cluster_maint_"))
    } | {"protocol": 3}


def tracking_command(key: str) -> bytes:
    """Return the command that makes the server tell of changes to the key."""
    return encode_command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", key)


def check_reply(reply: bytes) -> bytes:
    """Return what follows the OK.

    Raises:
        ResponseError: If it is none.
    """
    if not reply.startswith(OK):
        raise ResponseError(reply.decode(errors="replace").strip())
    return reply[len(OK) :]


class Tracking:
    """News of one key, for threads; get one by `start_tracking`."""

    def __init__(self, pool: Any, key: str) -> None:
        """Connect.

        Raises:
            ResponseError: If the server does not allow it.
            redis.exceptions.RedisError, OSError: If it cannot be reached.
        """
        self._pid = os.getpid()
        # Held for a look. Nobody waits for it: who finds it taken leaves the look to the other.
        self._looking = threading.Lock()
        connection = pool.connection_class(**tracking_settings(pool))
        connection.connect()
        try:
            self._socket = connection._sock  # noqa: SLF001 - there is no other way
            connection.send_packed_command((tracking_command(key),))
            reply = b""
            while not reply.endswith(b"\r\n"):
                reply += self._receive()
            self._unread = check_reply(reply)
            self._socket.settimeout(0)
        except BaseException:
            connection.disconnect()
            raise
        self._connection: Any = connection

    def look(self) -> News:
        """Tell what happened since the last look. Cost: one system call that does not block."""
        if self._pid != os.getpid():
            # The parent's: what is read here would be missing there.
            return News.BROKEN
        if not self._looking.acquire(blocking=False):
            return News.NONE
        try:
            if self._connection is None:
                return News.BROKEN
            if not self._unread:
                self._unread = self._receive()
        except _NOTHING_YET:
            return News.NONE
        except _UNREACHABLE:
            return News.BROKEN
        else:
            self._unread = b""
            return News.CHANGED
        finally:
            self._looking.release()

    def close(self) -> None:
        """Close the connection; later looks find it broken."""
        if self._pid != os.getpid():
            return
        taken = self._looking.acquire(timeout=CLOSE_SECONDS)
        try:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.disconnect()
        finally:
            if taken:
                self._looking.release()

    def _receive(self) -> bytes:
        data: bytes = self._socket.recv(READ_BYTES)
        if not data:
            raise RedisConnectionError("the server closed the connection")
        return data


class Unreachable:
    """What there is instead of a Tracking while the server cannot be reached."""

    def look(self) -> News:
        """Tell that there will be no news."""
        return News.BROKEN

    def close(self) -> None:
        """Do nothing."""


def start_tracking(pool: Any, key: str) -> Tracking | Unreachable | None:
    """Return news of a key; None if this client is not allowed to have them."""
    try:
        return Tracking(pool, key)
    except _UNREACHABLE as error:
        logger.debug("no connection for news of %r: %s", key, error)
        return Unreachable()
    except RedisError as error:
        logger.info("no news of %r for this client: %s", key, error)
        return None
