"""The lock over several independent servers, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock.errors import ConfigurationError, QuorumError
from bloomlock.runtime.clients import async_clients, close_async_client
from bloomlock.runtime.tasks import tasks_over

from .async_lock import AsyncLock
from .async_watchdog import watchdog_of_loop
from .quorum_lock import make_session

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from typing import Unpack

    import redis.asyncio

    from .options import RedlockParameters
    from .quorum_lock import RedlockSession


class AsyncRedlock(AsyncLock):
    """Redlock for asyncio: the same arguments, the same methods, awaited.

    What a slow server is still asked goes on in a task of its own, for no longer than the lease;
    `close` waits for such tasks a moment and ends the rest.

    >>> import asyncio, contextlib
    >>> from bloomlock.server import PrivateServer
    >>> async def main(urls):
    ...     async with AsyncRedlock("report", clients=urls, longest_ttl=0) as lock:
    ...         return await lock.owned()
    >>> with contextlib.ExitStack() as stack:
    ...     servers = [stack.enter_context(PrivateServer()) for _ in range(3)]
    ...     asyncio.run(main([server.url for server in servers]))
    True
    """

    _session: RedlockSession

    def __init__(
        self,
        name: str,
        clients: Iterable[redis.asyncio.Redis | redis.asyncio.RedisCluster | str],
        ttl: float | None = None,
        **options: Unpack[RedlockParameters],
    ) -> None:
        self._use(make_session(name, ttl, **options), clients)

    def _start(self, client: Any) -> None:
        made = async_clients(client)
        super()._start(None)
        self._made = [each for each, _ in made]
        self._clients = [each for each, is_ours in made if is_ours]

    async def _attached(self) -> Any:
        if self._runtime is None:
            self._runtime = tasks_over(self._made)
            self._session.attach(self._runtime, watchdog_of_loop())
        return self._runtime

    @property
    def fence(self) -> None:
        """None: numbers counted on several servers would drift apart; see Lock for a fence."""
        return

    def acquire(
        self,
        blocking: bool | None = None,
        timeout: float | None = -1,
        *,
        blocking_timeout: float | None = None,
        sleep: float | None = None,
        token: str | bytes | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Take the lock, polling until it is free if need be; see Redlock.acquire."""
        if token is not None:
            raise ConfigurationError(f"token must be None for a Redlock, not {token!r:.80}")
        return super().acquire(blocking, timeout, blocking_timeout=blocking_timeout, sleep=sleep)

    async def close(self) -> None:
        """End what goes on in the background; close the clients that this object made."""
        if self._runtime is not None:
            await self._runtime.end_background(self._session.limits.server_timeout)
        for client in self._clients:
            await close_async_client(client)

    def _explain_exit(self, failure: Exception, error: BaseException | None) -> bool:
        # Logged, as for the other locks: what the body did was done under the lock.
        if isinstance(failure, QuorumError):
            failure = ConnectionError(str(failure))
        return super()._explain_exit(failure, error)
