"""Clients that count round trips: how often is something sent after all replies were read?"""

from __future__ import annotations

import redis


class Turns:
    """Counts for all connections that are made with `connection_class` set to one of its classes.

    What is sent to several servers before any reply is read is one round trip.

    Attributes:
        count: Round trips so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._reads = True

    def sent(self) -> None:
        self.count += self._reads
        self._reads = False

    def read(self) -> None:
        self._reads = True

    def of(self, action) -> int:
        before = self.count
        action()
        return self.count - before

    def client(self, url: str) -> redis.Redis:
        pool = redis.ConnectionPool.from_url(url)
        pool.connection_class = counting(self, redis.UnixDomainSocketConnection)
        return redis.Redis(connection_pool=pool)


def counting(turns: Turns, base: type) -> type:
    class Counting(base):
        def send_packed_command(self, *args, **kwargs):
            turns.sent()
            return super().send_packed_command(*args, **kwargs)

        def read_response(self, *args, **kwargs):
            turns.read()
            return super().read_response(*args, **kwargs)

    return Counting
