"""A bare round trip: what nothing that asks the server can be faster than."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from benchmarks.place import Place, connect

from . import base

if TYPE_CHECKING:
    from collections.abc import Callable

PING = (b"*1\r\n$4\r\nPING\r\n",)


class Contender(base.Contender):
    """PING, whatever it is asked.

    Args:
        place: Where.
        way: "client": redis-py's `ping()`; "bytes": bytes made before, sent and read on one
            of redis-py's connections without the client around it.

    Attributes:
        call: One round trip.
    """

    def __init__(self, place: Place, *, way: Literal["client", "bytes"] = "client") -> None:
        """Connect."""
        client = connect(place.url)
        self.call: Callable[[], Any] = client.ping
        if way == "bytes":
            connection: Any = client.connection_pool.get_connection()

            def ping() -> object:
                connection.send_packed_command(PING)
                return connection.read_response()

            self.call = ping

    def add(self, _item: str) -> bool:
        """Make one round trip."""
        return bool(self.call())

    def exists(self, _item: str) -> bool:
        """Make one round trip."""
        return bool(self.call())

    def clear(self) -> None:
        """See base."""
