"""A bare round trip: what nothing that asks the server can be faster than."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.place import Place, connect

from .base import Contender

if TYPE_CHECKING:
    from collections.abc import Callable

PING = (b"*1\r\n$4\r\nPING\r\n",)


class Ping(Contender):
    """PING, whatever it is asked: redis-py's `ping()`, or bytes on one of its connections.

    Attributes:
        call: One round trip.
    """

    def __init__(self, place: Place, *, way: str = "client") -> None:
        client = connect(place.url)
        self.call: Callable[[], Any] = client.ping
        if way == "bytes":
            connection: Any = client.connection_pool.get_connection()

            def ping() -> object:
                connection.send_packed_command(PING)
                return connection.read_response()

            self.call = ping

    def add(self, _item: str) -> bool:
        return bool(self.call())

    def exists(self, _item: str) -> bool:
        return bool(self.call())

    def clear(self) -> None:
        """Do nothing: it keeps nothing."""
