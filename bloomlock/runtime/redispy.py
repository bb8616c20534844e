"""The short way around redis-py's connections: bytes are written and replies read directly.

redis-py's layers around writing and reading take a sixth of an `add` by one client, and a third in
asyncio. What is used here and in connections.py beyond its documentation is one function for each
thing, and tests/runtime/test_redispy.py holds each to what a real server does with it.
"""

from __future__ import annotations

import asyncio
import select
import time
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeAlias

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.connection
from redis._parsers.hiredis import NOT_ENOUGH_DATA, _AsyncHiredisParser, _HiredisParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

Connection: TypeAlias = Any
"""A connection of redis-py for threads or for asyncio, a proxy of one included."""

LONGEST_LINE = 64
SHORTEST_READ_S = 0.001
READ_BYTES = 65536
CLOSED = "Connection closed by server."

OWN_CLASSES = frozenset(
    (
        redis.connection.Connection,
        redis.connection.SSLConnection,
        redis.connection.UnixDomainSocketConnection,
        redis.asyncio.connection.Connection,
        redis.asyncio.connection.SSLConnection,
        redis.asyncio.connection.UnixDomainSocketConnection,
    )
)
"""Connections whose socket and parser are used directly: a sixth of an add by one client.

Not if they check their health, which is done when they send and read."""
FRESH_SECONDS = 0.05
"""A connection of a thread used so recently is not asked whether it is still open."""
_HAS_MARKS = hasattr(redis.connection.Connection, "should_reconnect")
_PLAIN_REPLIES = frozenset(b"*:$+")
_PLAIN_TYPES = frozenset((int, bytes, type(None)))
_read_by_redis_py: Callable[[Connection], Any] = methodcaller(
    "read_response", disable_decoding=True, disconnect_on_error=False
)


def is_open(connection: Connection) -> bool:
    return getattr(connection, "_sock", None) is not None


def async_is_open(connection: Connection) -> bool:
    return bool(connection.is_connected)


def is_usable(connection: Connection, used: float) -> bool:
    if is_marked(connection):
        return False
    try:
        # Readable means closed by the server, or that there are replies without a request.
        return time.monotonic() - used < FRESH_SECONDS or not connection.can_read()
    except (RedisError, OSError):
        return False


def async_is_usable(connection: Connection, _used: float) -> bool:
    return bool(connection.is_connected) and not (is_marked(connection) or has_input(connection))


def is_marked(connection: Connection) -> bool:
    """Return whether redis-py has something to do to a connection as soon as it is released.

    That is another server after a maintenance hand-off (since 7.0), or a new credential.
    """
    if type(connection) in OWN_CLASSES and _HAS_MARKS:
        # Without calls: this is asked in each request.
        return connection._should_reconnect or connection._re_auth_token is not None  # noqa: SLF001
    marked = getattr(connection, "should_reconnect", None)
    return (marked is not None and marked()) or (
        getattr(connection, "_re_auth_token", None) is not None
    )


def has_input(connection: Connection) -> bool:
    """Return whether bytes, or the end of the stream, wait at the socket of a connection."""
    writer = connection._writer  # noqa: SLF001
    sock = None if writer is None else writer.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _is_direct(connection: Connection) -> bool:
    return type(connection) in OWN_CLASSES and not connection.health_check_interval


def _read_reply(connection: Connection) -> Any:
    parser = connection._parser  # noqa: SLF001 - there is no public way
    # Without a call that can be spared: this is done for each reply.
    if (
        type(parser) is not _HiredisParser
        or type(connection) not in OWN_CLASSES
        or connection.health_check_interval
    ):
        return _read_by_redis_py(connection)
    reader: Any = parser._reader  # noqa: SLF001
    sock = connection._sock  # noqa: SLF001
    if reader is None or sock is None or hasattr(parser, "_next_response"):
        return _read_by_redis_py(connection)
    if reader.has_data():
        return _next_reply(connection, parser, reader)
    buffer = parser._buffer  # noqa: SLF001
    try:
        received = sock.recv_into(buffer)
    except OSError as error:
        raise _reading_failed(error) from error
    if not received:
        raise RedisConnectionError(CLOSED)
    reader.feed(buffer, 0, received)
    if buffer[0] in _PLAIN_REPLIES:
        reply = reader.gets(False)
        if type(reply) is list and reply and isinstance(reply[0], RedisConnectionError):
            raise reply[0]
        if reply is not NOT_ENOUGH_DATA:
            return reply
    # Errors, messages of RESP3, and what has not come whole.
    return _read_by_redis_py(connection)


def _next_reply(connection: Connection, parser: Any, reader: Any) -> Any:
    """Return a reply that came with the one before, of which the first byte is not seen."""
    reply = reader.gets(False)
    if reply is NOT_ENOUGH_DATA:
        return _read_by_redis_py(connection)
    if type(reply) in _PLAIN_TYPES or not _is_message(parser, reply):
        return reply
    parser.handle_push_response(reply)
    return _read_by_redis_py(connection)


def _is_message(parser: Any, reply: Any) -> bool:
    """Return whether a reply is a push message of RESP3; raise an error."""
    error = reply[0] if type(reply) is list and reply else reply
    if isinstance(error, RedisConnectionError if error is not reply else Exception):
        raise error
    message = parser._hiredis_PushNotificationType  # noqa: SLF001 - there is no public way
    return message is not None and isinstance(reply, message)


def reply_reader(pool: object) -> Callable[[Connection], Any]:
    """Return a function that reads the next reply, or raises it; it leaves the connection open."""
    if hasattr(pool, "sentinel_manager"):
        # The connection's own reading turns the reply READONLY into a lost connection.
        read = redis.connection.AbstractConnection.read_response
        return partial(read, disable_decoding=True, disconnect_on_error=False)
    return _read_reply


def send(connection: Connection, *data: bytes | memoryview) -> None:
    """Send encoded commands uncopied, connecting first if need be."""
    sock = connection._sock if _is_direct(connection) else None  # noqa: SLF001 - there is no public way
    if sock is None:
        connection.send_packed_command(data)
        return
    try:
        for part in data:
            sock.sendall(part)
    except TimeoutError as error:
        connection.disconnect()
        raise RedisTimeoutError("Timeout writing to socket") from error
    except OSError as error:
        connection.disconnect()
        raise RedisConnectionError(
            f"Error {error.errno} while writing to socket. {error.strerror}."
        ) from error
    except BaseException:
        connection.disconnect()
        raise


def receive(connection: Connection, count: int, room: memoryview, replies: list[Any]) -> None:
    """Receive the next replies past the parser, which takes twice the time for large strings.

    Strings of more than some bytes are views of `room`. The parser is given everything from the
    first reply on that is no simple string, array or string, or that has no room.
    """
    reader: Any = getattr(getattr(connection, "_parser", None), "_reader", None)
    sock = getattr(connection, "_sock", None)
    if sock is None or not hasattr(reader, "has_data") or reader.has_data():
        return
    start = filled = 0
    needed = 1
    while len(replies) < count:
        if needed > len(room):
            break
        while filled < needed:
            filled += _receive(sock, room[filled:])
        try:
            reply, start = _take_reply(room[:filled], start)
        except _Incomplete as incomplete:
            needed = incomplete.needed
        except ValueError:
            break
        else:
            replies.append(reply)
            needed = start + 1
    if filled > start:
        reader.feed(room, start, filled - start)


def _receive(sock: socket.socket, room: memoryview | bytearray) -> int:
    try:
        received = sock.recv_into(room)
    except OSError as error:
        raise _reading_failed(error) from error
    if not received:
        raise RedisConnectionError(CLOSED)
    return received


def _reading_failed(error: OSError) -> RedisError:
    if isinstance(error, TimeoutError):
        return RedisTimeoutError("Timeout reading from socket")
    return RedisConnectionError(f"Error while reading from socket: {error.args}")


class _Incomplete(Exception):  # noqa: N818 - no error
    def __init__(self, needed: int) -> None:
        super().__init__()
        self.needed = needed


def _take_reply(data: memoryview, start: int) -> tuple[Any, int]:
    """Return the reply that begins at `start`, and where it ends; ValueError for other replies."""
    line, end, _ = bytes(data[start : start + LONGEST_LINE]).partition(b"\r\n")
    if not end and len(line) < LONGEST_LINE:
        raise _Incomplete(len(data) + 1)
    kind, rest, start = line[:1], line[1:], start + len(line) + 2
    if kind == b"+" and end:
        return rest, start
    if kind not in (b"*", b"$") or not rest.isdigit():
        raise ValueError(line)
    if kind == b"$":
        stop = start + int(rest)
        if stop + 2 > len(data):
            raise _Incomplete(stop + 2)
        text = data[start:stop]
        return text if len(text) > LONGEST_LINE else bytes(text), stop + 2
    elements = []
    for _ in range(int(rest)):
        element, start = _take_reply(data, start)
        elements.append(element)
    return elements, start


def set_read_timeout(connection: Connection, seconds: float) -> None:
    # By the socket itself: `can_read` takes four system calls a message.
    connection._sock.settimeout(seconds)  # noqa: SLF001 - there is no public way


def close_quietly(connection: Connection) -> None:
    """Close a connection; the next command opens it again."""
    connection.disconnect()


def async_reply_reader(pool: object) -> Callable[[Connection], Awaitable[Any]]:
    if hasattr(pool, "sentinel_manager"):
        read = redis.asyncio.connection.AbstractConnection.read_response
        return partial(read, disable_decoding=True, disconnect_on_error=False)
    return _async_read_reply


async def _async_read_reply(connection: Connection) -> Any:
    parser = connection._parser  # noqa: SLF001 - there is no public way
    stream = connection._reader  # noqa: SLF001
    reader: Any = getattr(parser, "_reader", None)
    if type(parser) is not _AsyncHiredisParser or stream is None or not _is_direct(connection):
        return await _read_by_redis_py(connection)
    reply = reader.gets(False)
    if reply is NOT_ENOUGH_DATA:
        try:
            async with asyncio.timeout(connection.socket_timeout):
                while reply is NOT_ENOUGH_DATA:
                    received = await stream.read(READ_BYTES)
                    if not received:
                        raise RedisConnectionError(CLOSED)
                    reader.feed(received)
                    reply = reader.gets(False)
        except OSError as error:  # TimeoutError is one
            raise _reading_failed(error) from error
    if type(reply) in _PLAIN_TYPES or not _is_message(parser, reply):
        return reply
    await parser.handle_push_response(reply)  # type: ignore[no-untyped-call]
    return await _read_by_redis_py(connection)


async def async_read_push(connection: Connection, seconds: float | None = None) -> Any:
    return await connection.read_response(
        disable_decoding=True, timeout=seconds, disconnect_on_error=False, push_request=True
    )


async def async_send(connection: Connection, *data: bytes | memoryview) -> None:
    writer = connection._writer if _is_direct(connection) else None  # noqa: SLF001
    if writer is None or writer.transport.is_closing():
        await connection.send_packed_command(data)
        return
    writer.writelines(data)
    if not writer.transport.get_write_buffer_size():
        return
    try:
        async with asyncio.timeout(connection.socket_timeout):
            await writer.drain()
    except TimeoutError:
        await async_close_quietly(connection)
        raise RedisTimeoutError("Timeout writing to socket") from None
    except OSError as error:
        await async_close_quietly(connection)
        raise RedisConnectionError(f"Error while writing to socket: {error.args}") from error
    except BaseException:
        await async_close_quietly(connection)
        raise


async def async_close_quietly(connection: Connection) -> None:
    """Close a connection without waiting for its end; the next command opens it again."""
    await connection.disconnect(nowait=True)
