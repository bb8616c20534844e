"""The locks for asyncio."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NoReturn

from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.errors import LockNotOwnedError
from bloomlock.runtime.clients import async_client, close_async_client, not_portable
from bloomlock.runtime.finishing import GRACE_SECONDS as FINISH_SECONDS
from bloomlock.runtime.finishing import finish
from bloomlock.runtime.tasks import Tasks, tasks_for

from .async_watchdog import watchdog_of_loop
from .base import READERS, LockBase, check_token, know_each_other, owner_group
from .options import NOT_GIVEN, seconds_to_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType
    from typing import Self, Unpack

    import redis.asyncio

    from .options import LockParameters

    Client = redis.asyncio.Redis | redis.asyncio.RedisCluster | str | None

logger = logging.getLogger("bloomlock.locks")


class AsyncLock(LockBase):
    """Lock for asyncio: the same arguments, the same methods, awaited; a hold is a task's own.

    A hold belongs to the task that carries out `acquire()`. If that task has ended, it belongs to
    the one that called `acquire()`: `asyncio.wait_for(lock.acquire(), 5)` runs it in a task of its
    own before Python 3.12. If that one has ended too, the lock is lost: it is renewed no more, and
    `on_lost` is called. With `thread_local=False` any task may release it, and none has to live.

    All waiting tasks of a client share one connection. `on_lost` and `observer` are called from the
    loop, which they must not block; `on_lost` may be a coroutine function. A cancelled `acquire`
    leaves neither a hold nor a place in the queue.

    >>> from bloomlock.server import PrivateServer
    >>> async def main(url):
    ...     async with AsyncLock("report", client=url) as lock:
    ...         return await lock.owned()
    >>> with PrivateServer() as server:
    ...     asyncio.run(main(server.url))
    True
    """

    _event_class = asyncio.Event

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            client: Client = None,
            ttl: float | None = None,
            **options: Unpack[LockParameters],
        ) -> None:
            """Check the parameters before anything is sent."""

        @property
        def lost(self) -> asyncio.Event:
            """An event that is set when this hold is lost; a new one for each hold."""

    def _start(self, client: Client) -> None:
        self._client = client
        self._owns_client = False
        self._runtime: Tasks | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_lost_tasks: set[asyncio.Future[Any]] = set()
        self._session.holdings.has_ended = _has_ended

    async def _attached(self) -> Tasks:
        """Connect at the first use, when there is a loop."""
        if self._runtime is None:
            made, owned = await async_client(self._client)
            if self._runtime is None:
                self._runtime, self._owns_client = tasks_for(made), owned
            elif owned:
                # Another task was faster while this one connected.
                await close_async_client(made)
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            self._session.attach(self._runtime, watchdog_of_loop())
        return self._runtime

    async def _attached_within(self, seconds: float | None) -> Tasks:
        """Connect within the caller's time limit."""
        if self._runtime is not None or seconds is None:
            return await self._attached()
        try:
            async with asyncio.timeout(seconds + FINISH_SECONDS):
                return await self._attached()
        except TimeoutError:
            raise RedisTimeoutError("the server did not answer within the time limit") from None

    def _call_on_lost(self, on_lost: Callable[[Any], object]) -> None:
        outcome = self._report_lost(on_lost)
        if asyncio.iscoroutine(outcome):
            task = asyncio.ensure_future(self._await_report(outcome))
            self._on_lost_tasks.add(task)
            task.add_done_callback(self._on_lost_tasks.discard)

    async def _await_report(self, outcome: Coroutine[Any, Any, object]) -> None:
        try:
            await outcome
        except BaseException as error:
            # Raised in a task, SystemExit would stop the loop and all renewals with it.
            logger.exception("on_lost of lock %r raised", self.name)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _owner(self) -> object:
        try:
            return asyncio.current_task()
        except RuntimeError:
            return None

    # No coroutine functions: who calls them is known, also where another task carries them out.

    def acquire(
        self,
        blocking: bool | None = None,
        timeout: float | None = NOT_GIVEN,
        *,
        blocking_timeout: float | None = None,
        sleep: float | None = None,
        token: str | bytes | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Take the lock, waiting for it if need be; see Lock.acquire."""
        seconds = self._session.options.wait_s
        if not (blocking is sleep is blocking_timeout is None and timeout is NOT_GIVEN):
            seconds = seconds_to_wait(
                self._session.options, blocking, timeout, blocking_timeout, sleep
            )
        return self._acquire(self._owner(), seconds, None if token is None else check_token(token))

    async def _acquire(self, caller: object, seconds: float | None, token: bytes | None) -> bool:
        runtime = await self._attached_within(seconds)
        owner = self._owner()
        attempt = self._session.begin(owner, seconds, token)
        if isinstance(attempt, bool):
            return attempt
        try:
            got = await runtime.run(self._session.acquire(attempt, owner))
        except BaseException:
            await finish(runtime.run(self._session.undo(attempt, owner)), FINISH_SECONDS)
            raise
        if got and caller is not owner:
            self._session.holdings.bequeath(owner, caller)
        return got

    def release(self) -> Coroutine[Any, Any, None]:
        """Give the lock back; see Lock.release. Cancelling it does not keep the lock held."""
        return self._release(self._owner())

    async def _release(self, caller: object) -> None:
        if self._runtime is None:
            raise LockNotOwnedError(f"lock {self.name!r} is not held by this thread or task")
        released = self._session.release(self._or_this_task(caller))
        await finish(self._runtime.run(released), FINISH_SECONDS)

    def _or_this_task(self, caller: object) -> object:
        """Return who called, or this task if it was called where no task was running."""
        return self._owner() if caller is None else caller

    async def locked(self) -> bool:
        """Return whether any client holds the lock; one round trip."""
        runtime = await self._attached()
        return await runtime.run(self._session.locked())

    def owned(self) -> Coroutine[Any, Any, bool]:
        """Ask the server whether this task holds the lock; see Lock.owned."""
        return self._owned(self._owner())

    async def _owned(self, caller: object) -> bool:
        owner, runtime = self._or_this_task(caller), await self._attached()
        return await runtime.run(self._session.owned(owner))

    def extend(
        self, ttl: float | None = None, *, replace_ttl: bool = True
    ) -> Coroutine[Any, Any, bool]:
        """Let the lease be `ttl` seconds from now, and at each renewal; see Lock.extend."""
        return self._extend(self._owner(), ttl, replace_ttl)

    async def _extend(self, caller: object, ttl: float | None, replace_ttl: bool) -> bool:
        owner, runtime = self._or_this_task(caller), await self._attached()
        return await runtime.run(self._session.extend(owner, ttl, add=not replace_ttl))

    def reacquire(self) -> Coroutine[Any, Any, bool]:
        """Let the lease begin anew; redis-py's name for `extend()`."""
        return self.extend()

    async def close(self) -> None:
        """Close what listens for announcements, and the client if this object made it."""
        if self._runtime is not None:
            await self._runtime.close()
            if self._owns_client:
                await close_async_client(self._runtime.client)

    async def __aenter__(self) -> Self:
        """Acquire; LockTimeoutError if that does not succeed in time."""
        if not await self.acquire():
            raise self._not_obtained()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release; LockLostError if it was lost, unless the body raised something by itself."""
        try:
            await self.release()
        except Exception as failure:
            if self._explain_exit(failure, error):
                raise


class AsyncFairLock(AsyncLock):
    """FairLock for asyncio."""


class AsyncReentrantLock(AsyncLock):
    """ReentrantLock for asyncio: counted for each task."""

    _reentrant = True

    def __init__(
        self,
        name: str,
        client: Client = None,
        ttl: float | None = None,
        *,
        owner: str | None = None,
        **options: Unpack[LockParameters],
    ) -> None:
        """Check the parameters; see ReentrantLock."""
        self._group = owner_group(owner)
        super().__init__(name, client, ttl, **options)


class AsyncReadLock(AsyncLock):
    """The read side of an AsyncReadWriteLock; get it there."""

    _group = READERS


class AsyncReadWriteLock:
    """ReadWriteLock for asyncio.

    Attributes:
        read: The lock that readers take.
        write: The lock that writers take.
    """

    def __init__(
        self,
        name: str,
        client: Client = None,
        ttl: float | None = None,
        **options: Unpack[LockParameters],
    ) -> None:
        """Make both sides; see ReadWriteLock."""
        self.read = AsyncReadLock(name, client, ttl, **options)
        self.write = AsyncLock(name, client, ttl, **options)
        know_each_other(self.read, self.write)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied; see Lock."""
        raise TypeError(not_portable(self))

    @property
    def name(self) -> str:
        """The lock's name."""
        return self.read.name

    async def close(self) -> None:
        """Close both sides."""
        await self.read.close()
        await self.write.close()


def _has_ended(owner: Any) -> bool:
    """Return whether a task that holds a lock has ended, or its loop has."""
    return isinstance(owner, asyncio.Future) and (owner.done() or owner.get_loop().is_closed())
