# Written by tools/async_to_sync.py from bloomlock/locks/_async/connected.py; change that.
"""What a lock object stands on: its client, its runtime, and who holds it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from bloomlock.locks.base import LockBase
from bloomlock.locks.owners import this_thread, thread_has_ended
from bloomlock.locks.watchdog import WATCHDOG
from bloomlock.runtime.clients import sync_client, sync_clients
from bloomlock.runtime.threads import Threads, threads_for, threads_over

if TYPE_CHECKING:
    import redis

    from bloomlock.effects import Core
    from bloomlock.locks.redlock import RedlockSession

    ServerClient = redis.Redis | redis.RedisCluster | str
    Client = ServerClient | None

T = TypeVar("T")


class ConnectedLock(LockBase):
    """A lock with a client; one for asyncio connects at the first use, when there is a loop."""

    _event_class = threading.Event

    if TYPE_CHECKING:

        @property
        def lost(self) -> threading.Event:
            """An event that is set when this hold is lost; a new one for each hold."""

    def _start(self, client: Any) -> None:
        made, self._owns_client = sync_client(client)
        self._runtime = threads_for(made)
        self._session.attach(self._runtime, WATCHDOG)

    def _shared(self, client: Client) -> Client:  # noqa: ARG002 - asyncio connects later
        made: Client = self._runtime.client
        return made

    def _attached(self, seconds: float | None) -> Threads:  # noqa: ARG002 - it is connected
        return self._runtime

    def _run(self, core: Core[T]) -> T:
        return self._runtime.run(core)

    _finish = _run

    def _call_on_lost(self) -> None:
        WATCHDOG.call(self._report_lost)

    _owner = staticmethod(this_thread)
    _has_ended = staticmethod(thread_has_ended)

    def close(self) -> None:
        """Give back the connections; closes the client only if this object made it."""
        self._runtime.close()
        if self._owns_client:
            self._runtime.client.close()


class ConnectedRedlock(ConnectedLock):
    """A lock with clients of several servers."""

    _session: RedlockSession

    def _start(self, client: Any) -> None:
        made = sync_clients(client)
        self._clients = [each for each, is_ours in made if is_ours]
        self._runtime = threads_over([each for each, _ in made])
        self._session.attach(self._runtime, WATCHDOG)

    def close(self) -> None:
        """Close the clients that this object made."""
        for client in self._clients:
            threads_for(client).close()
            client.close()
