"""Connections that receive announcements: one for each waiting thread, one for all tasks of a loop.

A channel stays the same when its connection is opened again, because it stands in the queues of
locks. A pool does not count them: waiters must not take what holders need to release.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.commands import encode_command

from . import connections, redispy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bloomlock.effects import Subscribe

logger = logging.getLogger("bloomlock.runtime")

RECONNECT_PAUSE = 0.1
LONGEST_READ_S = 3600.0
KEPT_MESSAGES = 10_000
IDLE_LISTENERS = 4
"""Connections kept for the next waits; each waiting thread uses one of its own."""
_BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)


def new_channel() -> bytes:
    return f"bloomlock:wake:{secrets.token_hex(8)}".encode()


@contextlib.contextmanager
def _subscribing() -> Iterator[None]:
    """Log why there are no announcements; then those who wait look from time to time."""
    try:
        yield
    except ResponseError as error:
        logger.info("no announcements of released locks for this client: %s", error)
    except _BROKEN as error:
        logger.debug("no connection to wait on: %s", error)


class Listener:
    """A subscribed connection of a waiting thread, made with the settings of a pool."""

    def __init__(self, pool: Any, idle: list[Listener]) -> None:
        self.channel = new_channel()
        self.pool = pool
        self._idle = idle
        self.connection: Any = None
        self._read = redispy.reply_reader(pool)
        self._pid = os.getpid()

    def connect(self, seconds: float | None = None) -> None:
        connection = connections.open_connection(self.pool, seconds)
        try:
            redispy.send(connection, encode_command("SUBSCRIBE", self.channel))
            self._read(connection)
        except BaseException:
            redispy.close_quietly(connection)
            raise
        self.connection = connection

    def is_open(self) -> bool:
        return self.connection is not None and self._pid == os.getpid()

    def wait(self, addressee: bytes, seconds: float) -> bytes | None:
        """Return the message to `addressee`, or None when time is up or something may be missed."""
        until = time.monotonic() + seconds
        try:
            if self.connection is None:
                self.connect(seconds)
                return None
            while True:
                redispy.set_read_timeout(self.connection, max(seconds, redispy.SHORTEST_READ_S))
                try:
                    message = self._read(self.connection)
                except RedisTimeoutError:
                    return None
                if message[0] == b"message" and message[2].partition(b" ")[0] == addressee:
                    payload: bytes = message[2]
                    return payload
                seconds = until - time.monotonic()
        except (*_BROKEN, RedisError):
            self.close()
            time.sleep(min(RECONNECT_PAUSE, max(0.0, seconds)))
        return None

    def part(self) -> None:
        """Keep the connection for the next wait, which looks whether it is of its process."""
        if self.connection is not None and len(self._idle) < IDLE_LISTENERS:
            self._idle.append(self)
        else:
            self.close()

    def close(self) -> None:
        # A KeyboardInterrupt in between leaves none that is closed and counts as open.
        connection, self.connection = self.connection, None
        if connection is not None:
            redispy.close_quietly(connection)


def listen(idle: list[Listener], pool: Any, step: Subscribe) -> Listener | None:
    """Return an idle listener of a pool or a new one; None if there can be none."""
    # Of a cluster's nodes only the one that hands the lock on knows who listens there.
    for listener in [one for one in idle if one.pool is pool]:
        try:
            idle.remove(listener)
        except ValueError:
            continue  # Another thread has taken it.
        if listener.is_open():
            return listener
        listener.close()
    if step.connect:
        with _subscribing():
            listener = Listener(pool, idle)
            listener.connect(step.seconds)
            return listener
    return None


class Hub:
    """Announcements for the tasks of one client on one loop."""

    def __init__(self) -> None:
        self.channel = new_channel()
        self.loop = asyncio.get_running_loop()
        self._source: Any = None
        self._connection: Any = None
        self._connecting = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._users = 0
        self._waiting: dict[bytes, asyncio.Future[bytes | None]] = {}
        # A message may come before its addressee waits for it.
        self._early: OrderedDict[bytes, bytes] = OrderedDict()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def join(self, source: Any, seconds: float | None) -> bool:
        """Return whether the caller listens from now on."""
        if not self.is_open:
            self._source = source
            with _subscribing():
                await self._connect(seconds)
        self._users += self.is_open
        return self.is_open

    def part(self) -> None:
        """Stop listening; the last one stops the task that reads."""
        self._users -= 1
        if not self._users:
            self._early.clear()
            if self._reader is not None:
                self._reader.cancel()

    async def wait(self, addressee: bytes, seconds: float) -> bytes | None:
        """Return the message to `addressee`, or None when time is up or something may be missed."""
        if addressee in self._early:
            return self._early.pop(addressee)
        if self._connection is None:
            try:
                await self._connect(seconds)
            except (*_BROKEN, RedisError):
                await asyncio.sleep(min(RECONNECT_PAUSE, seconds))
            return None
        reader = self._reader
        if reader is None or reader.done() or reader.cancelling():
            self._reader = asyncio.create_task(self._read(reader), name="bloomlock-hub")
        future = self._waiting[addressee] = self.loop.create_future()
        try:
            async with asyncio.timeout(seconds):
                payload: bytes | None = await future
        except TimeoutError:
            return None
        else:
            return payload
        finally:
            del self._waiting[addressee]

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await redispy.async_close_quietly(connection)

    async def _connect(self, seconds: float | None) -> None:
        async with asyncio.timeout(seconds), self._connecting:
            if self._connection is not None:
                return
            connection = await connections.async_open_connection(self._source)
            try:
                await redispy.async_send(connection, encode_command("SUBSCRIBE", self.channel))
                await redispy.async_read_push(connection)
            except BaseException:
                await redispy.async_close_quietly(connection)
                raise
            self._connection = connection

    async def _read(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            # It was cancelled, but may not be out of the connection yet.
            await asyncio.wait([previous])
        try:
            while self._connection is not None:
                message = await redispy.async_read_push(self._connection, LONGEST_READ_S)
                if message and message[0] == b"message":
                    self._dispatch(message[2])
        except (*_BROKEN, RedisError):
            await self.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_result(None)

    def _dispatch(self, payload: bytes) -> None:
        addressee = payload.split(b" ", 1)[0]
        future = self._waiting.get(addressee)
        if future is not None and not future.done():
            future.set_result(payload)
            return
        self._early[addressee] = payload
        if len(self._early) > KEPT_MESSAGES:
            self._early.popitem(last=False)
