"""The lock over several independent servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.locks.options import RedlockOptions
from bloomlock.locks.redlock import RedlockSession

from .lock import AsyncLock

if True:  # ASYNC
    from bloomlock.runtime.clients import async_clients, close_async_client
    from bloomlock.runtime.tasks import tasks_over
else:
    from bloomlock.locks.watchdog import WATCHDOG
    from bloomlock.runtime.clients import sync_clients
    from bloomlock.runtime.threads import threads_for, threads_over

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Unpack

    import redis.asyncio

    from bloomlock.locks.options import RedlockParameters

    AsyncServerClient = redis.asyncio.Redis | redis.asyncio.RedisCluster | str


class AsyncRedlock(AsyncLock):
    """A lock that lives on several independent servers and needs a majority of them.

    It survives the loss of any minority of the servers, without a failover that could forget a
    grant. Each server is asked at once and on its own; the lock is held if more than half of all
    `clients` granted it, whether the others answer or not, and if its lease is not over by then:
    the holder counts it from before it asked, less 1 % and 2 ms. The same for every renewal.

    A server that was restarted may have forgotten whom it granted the lock. So it has no vote
    until it has been up for `longest_ttl`: its uptime comes with each grant. Servers that write
    each change to disk before they answer (`appendfsync always`) need no such wait; give 0 for
    them. The servers must be masters without automatic failover: a replica that takes over has
    not the age of what it forgot.

    There is no fence: numbers counted on several servers drift apart, and a majority may be
    another one each time. If what the lock protects must refuse late writers, use Lock. On each
    server the lock is the Lock of the same name, and excludes it there.

    The other methods are those of Lock. Each costs one round trip to each server at once, and
    `server_timeout` where no majority answers; then it raises QuorumError: the lease of what was
    to be released ends by itself, and what was to be extended is held for what `remaining` says. A
    server that has not answered yet is told of a release as soon as it does, in the background.
    `extend` takes no longer lease than `longest_ttl`.

    There is no queue across servers: a waiter asks again after a pause of random length, so the
    order is random.

    `acquire` raises QuorumError if fewer than a
    majority of the servers have a vote: when time is up, or, without a limit, when none was reached
    for as long as the lease. What was taken is given back then, as after KeyboardInterrupt or a
    cancellation; a server that does not answer keeps it at most until the lease ends. A try costs
    one round trip to each server at once, and a second one to give back what is no majority; it
    ends with the majority's answer, or after `server_timeout`. It raises ConfigurationError if two
    of the clients turn out to be one server.

    With asyncio what a slow server is still asked goes on in a task of its own, for no longer than
    the lease; `close` waits for such tasks a moment and ends the rest.

    Args:
        name: Free text; the lock's identity on the servers.
        clients: Clients of redis.asyncio or URLs, one for each server; an odd number is best. For
            threads, a server that does not answer keeps one as long as its client waits for a
            reply, so give clients with a `socket_timeout` (those made from URLs have one of 2
            seconds).
        ttl: The lease in seconds (30 if not given).
        server_timeout: How many seconds a server is waited for; None: a tenth of the lease, but at
            least 0.05 and at most 1.
        longest_ttl: The longest lease in seconds that any client asks these servers for; None:
            `ttl`. To be set where others use the same name with a longer `ttl`, or `extend` one.
        renew: Whether the lease is renewed, each third of it, while the lock is held.
        max_hold: Seconds after which it is renewed no more; None: no limit.
        on_lost: Called with the lock, from a thread of its own, when a hold is lost.
        blocking: Whether `acquire` waits by default.
        blocking_timeout: How many seconds it waits by default; None: without limit.
        thread_local: Whether a hold belongs to the thread that acquired it.
        observer: Called with a LockEvent for whatever happens; see Lock.
        prefix: Start of all keys.

    Raises:
        ConfigurationError: If a parameter is not usable, or a server stands twice in the list.

    Cost: nothing is sent.

    >>> import contextlib
    >>> from bloomlock.server import PrivateServer
    >>> with contextlib.ExitStack() as stack:
    ...     servers = [stack.enter_context(PrivateServer()) for _ in range(3)]
    ...     lock = AsyncRedlock("report", clients=[server.url for server in servers], longest_ttl=0)
    ...     servers[0].kill()
    ...     async with lock:
    ...         await lock.owned()
    True
    """

    _session: RedlockSession

    def __init__(
        self,
        name: str,
        clients: Iterable[AsyncServerClient],
        ttl: float | None = None,
        **options: Unpack[RedlockParameters],
    ) -> None:
        self._use(RedlockSession(name, RedlockOptions(ttl, **options)), clients)

    if True:  # ASYNC

        def _start(self, client: Any) -> None:
            super()._start(None)
            made = async_clients(client)
            self._members = [each for each, _ in made]
            self._made = [each for each, is_ours in made if is_ours]

        async def _connect(self) -> None:
            self._runtime = tasks_over(self._members)

        async def close(self) -> None:
            """End what goes on in the background; close the clients that this object made."""
            if self._runtime is not None:
                await self._runtime.end_background(self._session.options.server_timeout)
            for client in self._made:
                await close_async_client(client)

    else:

        def _start(self, client: Any) -> None:
            made = sync_clients(client)
            self._made = [each for each, is_ours in made if is_ours]
            self._runtime = threads_over([each for each, _ in made])
            self._session.attach(self._runtime, WATCHDOG)

        def close(self) -> None:
            """Close the clients that this object made."""
            for client in self._made:
                threads_for(client).close()
                client.close()
