"""What a lock object stands on: its client, its runtime, and who holds it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.locks.base import LockBase

if True:  # ASYNC
    from bloomlock.locks.async_watchdog import watchdog_of_loop
    from bloomlock.locks.reports import REPORTS
    from bloomlock.runtime.background import GRACE_SECONDS, finish
    from bloomlock.runtime.clients import async_client, async_clients, close_async_client
    from bloomlock.runtime.tasks import Tasks, tasks_for, tasks_over
else:
    import threading

    from bloomlock.locks.owners import this_thread, thread_has_ended
    from bloomlock.locks.watchdog import WATCHDOG
    from bloomlock.runtime.clients import sync_client, sync_clients
    from bloomlock.runtime.threads import Threads, threads_for, threads_over

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import redis.asyncio

    from bloomlock.effects import Core
    from bloomlock.locks.redlock import RedlockSession

    AsyncServerClient = redis.asyncio.Redis | redis.asyncio.RedisCluster | str
    AsyncClient = AsyncServerClient | None

T = TypeVar("T")


class AsyncConnectedLock(LockBase):
    """A lock with a client; one for asyncio connects at the first use, when there is a loop."""

    if True:  # ASYNC
        _event_class = asyncio.Event

        if TYPE_CHECKING:

            @property
            def lost(self) -> asyncio.Event:
                """An event that is set when this hold is lost; a new one for each hold."""

        def _start(self, client: Any) -> None:
            self._client = client
            self._owns_client = False
            self._runtime: Tasks | None = None
            self._loop: asyncio.AbstractEventLoop | None = None
            self._on_lost_tasks: set[asyncio.Future[Any]] = set()

        def _shared(self, client: AsyncClient) -> AsyncClient:
            return client

        async def _attached(self, seconds: float | None) -> Tasks:
            """Connect, within the caller's time limit; None: without one."""
            if self._runtime is None and seconds is not None:
                try:
                    async with asyncio.timeout(seconds + GRACE_SECONDS):
                        await self._connect()
                except TimeoutError:
                    text = "the server did not answer within the time limit"
                    raise RedisTimeoutError(text) from None
            runtime = self._runtime or await self._connect()
            if self._loop is not (loop := asyncio.get_running_loop()):
                self._loop = loop
                self._session.attach(runtime, watchdog_of_loop())
            return runtime

        async def _connect(self) -> Tasks:
            made, owned = await async_client(self._client)
            if self._runtime is None:
                self._runtime, self._owns_client = tasks_for(made), owned
            elif owned:
                # Another task was faster while this one connected.
                await close_async_client(made)
            return self._runtime

        async def _run(self, core: Core[T]) -> T:
            return await (await self._attached(None)).run(core)

        async def _finish(self, core: Core[T]) -> T:
            """Carry a core out to its end, even if the caller is cancelled."""
            if self._runtime is None:
                # It is not held, so this raises.
                next(core)
            return await finish(self._run(core), GRACE_SECONDS)

        def _call_on_lost(self) -> None:
            outcome = self._report_lost()
            if asyncio.iscoroutine(outcome):
                task = asyncio.ensure_future(self._await_report(outcome))
                self._on_lost_tasks.add(task)
                task.add_done_callback(self._on_lost_tasks.discard)

        async def _await_report(self, outcome: Coroutine[Any, Any, object]) -> None:
            try:
                await outcome
            except BaseException as error:
                # Raised in a task, SystemExit would stop the loop and all renewals with it.
                REPORTS.exception("lock", "on_lost of lock %r raised", self.name)
                if isinstance(error, asyncio.CancelledError):
                    raise

        @staticmethod
        def _owner() -> object:
            try:
                return asyncio.current_task()
            except RuntimeError:
                return None

        @staticmethod
        def _has_ended(owner: Any) -> bool:
            is_task = isinstance(owner, asyncio.Future)
            return is_task and (owner.done() or owner.get_loop().is_closed())

        async def close(self) -> None:
            """Close what listens for announcements, and the client if this object made it."""
            if self._runtime is not None:
                await self._runtime.close()
                if self._owns_client:
                    await close_async_client(self._runtime.client)

    else:
        _event_class = threading.Event

        if TYPE_CHECKING:

            @property
            def lost(self) -> threading.Event:
                """An event that is set when this hold is lost; a new one for each hold."""

        def _start(self, client: Any) -> None:
            made, self._owns_client = sync_client(client)
            self._runtime = threads_for(made)
            self._session.attach(self._runtime, WATCHDOG)

        def _shared(self, client: AsyncClient) -> AsyncClient:  # noqa: ARG002 - asyncio connects later
            made: AsyncClient = self._runtime.client
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


class AsyncConnectedRedlock(AsyncConnectedLock):
    """A lock with clients of several servers."""

    _session: RedlockSession

    if True:  # ASYNC

        def _start(self, client: Any) -> None:
            super()._start(None)
            made = async_clients(client)
            self._made = [each for each, _ in made]
            self._clients = [each for each, is_ours in made if is_ours]

        async def _connect(self) -> Tasks:
            self._runtime = self._runtime or tasks_over(self._made)
            return self._runtime

        async def close(self) -> None:
            """End what goes on in the background; close the clients that this object made."""
            if self._runtime is not None:
                await self._runtime.end_background(self._session.limits.server_timeout)
            for client in self._clients:
                await close_async_client(client)

    else:

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
