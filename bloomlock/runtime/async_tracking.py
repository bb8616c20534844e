"""A connection on which the server tells that one key was changed, for asyncio; see tracking.py.

The event loop itself takes down what comes. There is no task that waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .tracking import News, Unreachable, check_reply, tracking_command, tracking_settings

logger = logging.getLogger("bloomlock.runtime")

REPLY_SECONDS = 5.0
_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, TimeoutError, OSError)


class AsyncTracking(asyncio.Protocol):
    """News of one key, for the tasks of one loop; get one by `start_async_tracking`."""

    def __init__(self) -> None:
        """Start before the reply to the command that makes the server tell."""
        self._loop = asyncio.get_running_loop()
        self._reply = b""
        self._replied: asyncio.Future[bytes] = self._loop.create_future()
        self._connection: Any = None
        self._changed = False

    async def connect(self, source: Any, key: str) -> None:
        """Connect like a pool or a node of a cluster does.

        Raises:
            ResponseError: If the server does not allow it.
            redis.exceptions.RedisError, OSError: If it cannot be reached.
        """
        connection = source.connection_class(**tracking_settings(source))
        await connection.connect()
        try:
            transport = connection._writer.transport  # noqa: SLF001 - there is no other way
            transport.set_protocol(self)
            transport.write(tracking_command(key))
            async with asyncio.timeout(REPLY_SECONDS):
                reply = await self._replied
            if not reply:
                raise RedisConnectionError("the server closed the connection")  # noqa: TRY301 - to close it
            self._changed = bool(check_reply(reply))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        """Take down that the key was changed; first of all comes the reply."""
        if self._replied.done():
            self._changed = True
            return
        self._reply += data
        if self._reply.endswith(b"\r\n"):
            self._replied.set_result(self._reply)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the base's signature
        """Take down that nothing will come any more."""
        self._connection = None
        if not self._replied.done():
            self._replied.set_result(b"")

    def look(self) -> News:
        """Tell what happened since the last look. Cost: none."""
        if self._connection is None or self._loop.is_closed():
            return News.BROKEN
        if self._changed:
            self._changed = False
            return News.CHANGED
        return News.NONE

    async def close(self) -> None:
        """Close the connection; later looks find it broken."""
        connection, self._connection = self._connection, None
        if connection is not None and not self._loop.is_closed():
            await connection.disconnect(nowait=True)


async def start_async_tracking(source: Any, key: str) -> AsyncTracking | Unreachable | None:
    """Return news of a key; None if this client is not allowed to have them."""
    tracking = AsyncTracking()
    try:
        await tracking.connect(source, key)
    except _UNREACHABLE as error:
        logger.debug("no connection for news of %r: %s", key, error)
        return Unreachable()
    except RedisError as error:
        logger.info("no news of %r for this client: %s", key, error)
        return None
    return tracking
