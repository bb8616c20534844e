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

from bloomlock.commands import encode_command

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
    """

    def __init__(self, pool: Any) -> None:
        """Keep the pool, whose settings a connection is made with."""
        self.channel = new_channel()
        self._pool = pool
        self._connection: Any = None
        self._pid = os.getpid()

    def connect(self) -> None:
        """Connect and subscribe.

        Raises:
            ResponseError: If the server does not allow it.
            redis.exceptions.RedisError, OSError: If it cannot be reached.
        """
        connection = self._pool.connection_class(**self._pool.connection_kwargs)
        connection.connect()
        try:
            connection.send_packed_command((encode_command("SUBSCRIBE", self.channel),))
            connection.read_response(disable_decoding=True, push_request=True)
        except BaseException:
            connection.disconnect()
            raise
        self._connection = connection

    def is_open(self) -> bool:
        """Tell whether this process may still use it, as far as is known."""
        return self._connection is not None and self._pid == os.getpid()

    def wait(self, addressee: bytes, seconds: float) -> bytes | None:
        """Return the message to `addressee`, or None when time is up or something may be missed."""
        until = time.monotonic() + seconds
        try:
            if self._connection is None:
                self.connect()
                return None
            while (left := until - time.monotonic()) > 0 or seconds == 0:
                if not self._connection.can_read(timeout=max(0.0, left)):
                    return None
                message = self._connection.read_response(disable_decoding=True, push_request=True)
                if message[0] == b"message" and message[2].split(b" ", 1)[0] == addressee:
                    payload: bytes = message[2]
                    return payload
        except (*_BROKEN, RedisError):
            self.close()
            time.sleep(min(RECONNECT_PAUSE, seconds))
        return None

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None


def connect_listener(pool: Any) -> Listener | None:
    """Return a listener, or None if the server does not let this client listen now."""
    listener = Listener(pool)
    try:
        listener.connect()
    except ResponseError as error:
        logger.info("no announcements of released locks for this client: %s", error)
    except _BROKEN as error:
        logger.debug("no connection to wait on: %s", error)
    else:
        return listener
    return None
