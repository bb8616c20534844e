# Written by tools/async_to_sync.py from bloomlock/locks/_async/redlock.py; change that.
"""The lock over several independent servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.locks.options import RedlockOptions
from bloomlock.locks.redlock import RedlockSession
from bloomlock.runtime._sync.clients import clients_of
from bloomlock.runtime._sync.driver import Driver

from .lock import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Unpack

    import redis

    from bloomlock.locks.options import RedlockParameters

    ServerClient = redis.Redis | redis.RedisCluster | str


class Redlock(Lock):
    """A lock that lives on several independent servers and needs a majority of them.

    It survives the loss of any minority of the servers. All are asked at once; the lock is held if
    more than half of `clients` granted it and its lease is not over by then. The same for every
    renewal. There is no fence and no queue: a waiter asks again after a random pause.

    A server that was restarted may have forgotten whom it granted the lock. So it has no vote
    until it has been up for `longest_ttl`; give 0 for servers that write each change to disk
    before they answer (`appendfsync always`). The servers must be masters without automatic
    failover: a replica that takes over has not the age of what it forgot.

    Methods are those of Lock, and cost one round trip to each server at once. They raise
    QuorumError where no majority answers within `server_timeout` (`acquire`: when its time is up,
    or after a lease). What was granted ends by itself at a server that does not answer, or is given
    back in the background.

    Args:
        name: Free text; the lock's identity on the servers.
        clients: Clients of redis or URLs, one for each server; an odd number is best. For
            threads, a server that does not answer keeps one as long as its client waits for a
            reply, so give clients with a `socket_timeout` (those made from URLs have 2 seconds).
        ttl: The lease in seconds (30 if not given).
        server_timeout: How many seconds a server is waited for; None: a tenth of the lease, but at
            least 0.05 and at most 1.
        longest_ttl: The longest lease in seconds that any client asks these servers for, also by
            `extend`; None: `ttl`.
        **options: Those of Lock but for replicas and timeout.

    Raises:
        ConfigurationError: If a parameter is not usable, or a server stands twice in the list.

    Cost: nothing is sent.

    >>> import contextlib
    >>> from bloomlock.server import PrivateServer
    >>> with contextlib.ExitStack() as stack:
    ...     servers = [stack.enter_context(PrivateServer()) for _ in range(3)]
    ...     lock = Redlock("report", clients=[server.url for server in servers], longest_ttl=0)
    ...     servers[0].kill()
    ...     with lock:
    ...         lock.owned()
    True
    """

    def __init__(
        self,
        name: str,
        clients: Iterable[ServerClient],
        ttl: float | None = None,
        **options: Unpack[RedlockParameters],
    ) -> None:
        given = clients_of(clients)
        self._use(RedlockSession(name, RedlockOptions(ttl, **options), len(given)), given)

    def _connect(self) -> tuple[Any, list[Any]]:
        made = [client for client, is_made in self._client if is_made]
        return Driver.over([client for client, _ in self._client]), made
