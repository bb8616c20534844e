"""A lock that is a row of a SQL table: unique name, owner's token, lease by the database's clock.

Every step is one statement that commits by itself, so a lost reply leaves at worst a row that
ends with its lease. The fence is drawn in RETURNING, when the row is already ours: drawn in
VALUES, a slow newcomer could come after a later holder with a smaller number.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_TABLE = """
CREATE TABLE IF NOT EXISTS locks (
    name text PRIMARY KEY,
    token uuid NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS locks_expires_at ON locks (expires_at);
CREATE SEQUENCE IF NOT EXISTS locks_fence;
"""
# clock_timestamp() and not now(): the statement may have waited for another's transaction.
_TAKE = """
INSERT INTO locks (name, token, expires_at)
VALUES (%(name)s, %(token)s, clock_timestamp() + make_interval(secs => %(ttl)s))
ON CONFLICT (name) DO UPDATE
SET token = EXCLUDED.token, expires_at = clock_timestamp() + make_interval(secs => %(ttl)s)
WHERE locks.expires_at <= clock_timestamp() OR locks.token = EXCLUDED.token
RETURNING nextval('locks_fence')
"""
_GIVE_BACK = "DELETE FROM locks WHERE name = %(name)s AND token = %(token)s"
_SWEEP = "DELETE FROM locks WHERE expires_at <= clock_timestamp()"
SHORTEST_PAUSE = 0.002
LONGEST_PAUSE = 0.05


class SqlLockTimeoutError(TimeoutError):
    """Others held the row all the time."""


class SqlLockLostError(RuntimeError):
    """The row was no longer ours when it was given back: another client may have worked."""


def create_table(pool: ConnectionPool) -> None:
    """Create table and sequence; once, not from several processes at the same time."""
    with pool.connection() as connection:
        connection.execute(_TABLE)


def sweep(pool: ConnectionPool) -> int:
    """Remove the rows whose lease is over; returns how many.

    Nobody needs it to get a lock, an expired row is taken over; it keeps the table small.
    """
    with pool.connection() as connection:
        return connection.execute(_SWEEP).rowcount


class Sweeper:
    """Sweeps every so often, in a thread, as long as its context lasts."""

    def __init__(self, pool: ConnectionPool, seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            sweep(self._pool)


class SqlLock:
    """Context manager that holds the row of a name.

    Args:
        pool: Pool of autocommit connections.
        name: Name of the lock.
        ttl: Seconds of the lease. It is not renewed: longer than the longest work.
        timeout: Seconds to wait for it.
    """

    def __init__(
        self, pool: ConnectionPool, name: str, ttl: float = 30.0, timeout: float = 30.0
    ) -> None:
        self._pool = pool
        self._timeout = timeout
        # Fixed before anything is sent: what arrived can be given back without its reply.
        self._row = {"name": name, "token": uuid.uuid4(), "ttl": ttl}
        self.fence: int | None = None

    def __enter__(self) -> Self:
        try:
            self.fence = self._wait()
        except BaseException:
            # The row may be ours, the reply lost or never read.
            with contextlib.suppress(Exception):
                self._give_back()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            # The body's own error says more than what becomes of the lock.
            with contextlib.suppress(Exception):
                self._give_back()
        elif not self._give_back():
            raise SqlLockLostError(f"the lock {self._row['name']!r} was lost while it was held")

    def _wait(self) -> int:
        deadline, pause = time.monotonic() + self._timeout, SHORTEST_PAUSE
        while True:
            with self._pool.connection() as connection:
                taken = connection.execute(_TAKE, self._row).fetchone()
            if taken is not None:
                return int(taken[0])
            if time.monotonic() > deadline:
                raise SqlLockTimeoutError(
                    f"no lock {self._row['name']!r} within {self._timeout:g} s"
                )
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _give_back(self) -> bool:
        with self._pool.connection() as connection:
            return connection.execute(_GIVE_BACK, self._row).rowcount == 1
