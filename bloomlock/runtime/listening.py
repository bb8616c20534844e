"""A connection that hears announcements, for one waiting thread at a time.

Its channel is its own and stays the same when it has to connect again, because it is written in the
queues of locks. It does not count against the client's pool: waiters must not take the
connections that holders need to release.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.effects import encode_command

from . import redispy

logger = logging.getLogger("bloomlock.runtime")

PREFIX = "bloomlock:wake:"
RECONNECT_PAUSE = 0.1
_BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)


def new_channel() -> bytes:
    """Return a channel that nobody else listens on."""
    return (PREFIX + secrets.token_hex(8)).encode()


class Listener:
    """A subscribed connection; get one by `connect_listener`.

    Attributes:
        channel: Where it listens.
        pool: The pool whose settings the connection is made with.
    """

    def __init__(self, pool: Any) -> None:
        """Keep the pool, whose settings a connection is made with."""
        self.channel = new_channel()
        self.pool = pool
        self._connection: Any = None
        self._timeout: float | None = None
        self._pid = os.getpid()

    def connect(self, seconds: float | None = None) -> None:
        """Connect and subscribe.

        Args:
            seconds: How long the server may be silent; None: as long as the client allows.

        Raises:
            ResponseError: If the server does not allow it.
            redis.exceptions.RedisError, OSError: If it cannot be reached.
        """
        connection = redispy.open_connection(self.pool, seconds)
        try:
            redispy.send(connection, encode_command("SUBSCRIBE", self.channel))
            redispy.read_push(connection)
        except BaseException:
            redispy.close_quietly(connection)
            raise
        self._connection, self._timeout = connection, None

    def is_open(self) -> bool:
        """Tell whether this process may still use it, as far as is known."""
        return self._connection is not None and self._pid == os.getpid()

    def wait(self, addressee: bytes, seconds: float) -> bytes | None:
        """Return the message to `addressee`, or None when time is up or something may be missed."""
        until = time.monotonic() + seconds
        try:
            if self._connection is None:
                self.connect(seconds)
                return None
            while message := self._read(seconds):
                if message[0] == b"message" and message[2].split(b" ", 1)[0] == addressee:
                    payload: bytes = message[2]
                    return payload
                seconds = until - time.monotonic()
        except (*_BROKEN, RedisError):
            self.close()
            time.sleep(min(RECONNECT_PAUSE, max(0.0, seconds)))
        return None

    def _read(self, seconds: float) -> Any:
        """Return the next message, or None if there is none in time."""
        seconds = max(seconds, redispy.SHORTEST_READ_S)
        if seconds != self._timeout:
            redispy.set_read_timeout(self._connection, seconds)
            self._timeout = seconds
        try:
            return redispy.read_push(self._connection)
        except (RedisTimeoutError, TimeoutError):
            return None

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            redispy.close_quietly(self._connection)
            self._connection = None


def connect_listener(pool: Any, seconds: float | None = None) -> Listener | None:
    """Return a listener, or None if the server does not let this client listen now.

    Args:
        pool: Whose settings a connection is made with.
        seconds: See Listener.connect.
    """
    listener = Listener(pool)
    try:
        listener.connect(seconds)
    except ResponseError as error:
        logger.info("no announcements of released locks for this client: %s", error)
    except _BROKEN as error:
        logger.debug("no connection to wait on: %s", error)
    else:
        return listener
    return None
