"""The locks on one server."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.clock import boot_clock
from bloomlock.errors import LockError, LockTimeoutError, QuorumError
from bloomlock.locks.hold import async_current_owner
from bloomlock.locks.options import LockOptions
from bloomlock.locks.reports import REPORTS
from bloomlock.locks.session import LockSession
from bloomlock.runtime._async.clients import async_client_of, async_close_client
from bloomlock.runtime._async.driver import AsyncDriver
from bloomlock.runtime.background import GRACE_SECONDS, finish
from bloomlock.runtime.clients import not_portable

if True:  # ASYNC
    from asyncio import Event
else:
    from threading import Event

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType
    from typing import Self, Unpack

    import redis.asyncio

    from bloomlock.effects import Core
    from bloomlock.locks.hold import Hold
    from bloomlock.locks.options import LockParameters

    AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster | str | None

T = TypeVar("T")


class AsyncLock:
    """A lock that one thread or task of all processes holds at a time.

    It is renewed while it is held, handed to the waiter that asked first when it is released, and
    its holder learns when it is lost.

    With asyncio a hold belongs to the task that calls `acquire()`, also where another task carries
    it out: `asyncio.wait_for(lock.acquire(), 5)`. `on_lost` and `observer` are called from the
    loop, which they must not block. A cancelled `acquire` leaves neither a hold nor a place in the
    queue.

    Args:
        name: Free text; the lock's identity on the server.
        client: A client of redis.asyncio (standalone, Sentinel or Cluster), a URL, or None: the URL
            in BLOOMLOCK_URL, else in REDIS_URL, else the embedded server.
        ttl: The lease in seconds (30 if not given): how long the lock outlives its holder.
        renew: Whether the lease is renewed, each third of it, while the lock is held.
        max_hold: Seconds after which it is renewed no more; None: no limit.
        on_lost: Called with the lock when a hold is lost; for threads from a thread of its own.
        blocking: Whether `acquire` waits by default.
        blocking_timeout: How many seconds it waits by default; None: for ever.
        thread_local: Whether a hold belongs to the thread or task that acquired it; False: any may
            release it.
        replicas: How many replicas must have acknowledged a grant, else it is given back.
        observer: Called with a LockEvent for whatever happens: for threads from the one that
            acquires or releases, and for what the watchdog does and finds from another one, so a
            moment late. What it raises is logged; SystemExit and its kin pass in the former.
        prefix: Start of all keys.
        timeout: redis-py's name for a lease that is not renewed.

    Raises:
        ConfigurationError: If a parameter is not usable.
        ServerError: If the URL does not answer as a Redis server.

    Cost: nothing is sent to the server, but for a client that is made from a URL.

    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     async with AsyncLock("report", client=server.url) as lock:
    ...         lock.remaining() > 29, lock.fence > 0
    ...         await AsyncLock("report", client=server.url).acquire(blocking=False)
    (True, True)
    False
    """

    _is_shared = False
    _is_reentrant = False
    _owner = staticmethod(async_current_owner)
    _session: LockSession

    def __init__(
        self,
        name: str,
        client: AsyncClient = None,
        ttl: float | None = None,
        **options: Unpack[LockParameters],
    ) -> None:
        kind = {"is_shared": self._is_shared, "is_reentrant": self._is_reentrant}
        self._use(LockSession(name, LockOptions(ttl, **options), **kind), client)

    def _use(self, session: LockSession, client: Any) -> None:
        session.lock = weakref.ref(self)
        self._session, self._client = session, client
        if True:  # ASYNC
            # It connects at the first use, when there is a loop.
            self._runtime: Any = None
            self._made: list[Any] = []
        else:
            self._take(*self._connect())

    async def _connect(self) -> tuple[Any, list[Any]]:
        """Return the runtime, and the clients that were made for it."""
        client, is_made = await async_client_of(self._client)
        return AsyncDriver.of(client), [client] * is_made

    def _take(self, runtime: Any, made: list[Any]) -> None:
        self._runtime, self._made, self._client = runtime, made, runtime.client
        self._session.runtime = runtime

    if True:  # ASYNC

        async def _attach(self, seconds: float | None) -> None:
            """Connect within the caller's time limit, if any, and be on the running loop."""
            if self._runtime is None:
                try:
                    limit = None if seconds is None else seconds + GRACE_SECONDS
                    async with asyncio.timeout(limit):
                        runtime, made = await self._connect()
                except TimeoutError:
                    text = "the server did not answer within the time limit"
                    raise RedisTimeoutError(text) from None
                if self._runtime is None:
                    self._take(runtime, made)
                else:
                    # Another task was faster while this one connected.
                    await self._close(made)
            for each in self._runtime.members:
                # It raises while another loop is at work.
                await each.be_on_running_loop()

        async def _finish(self, core: Core[T]) -> T:
            """Carry a core out to its end, even if the caller is cancelled."""
            if self._runtime is None:
                # It is not held, so this raises.
                next(core)
            return await finish(self._run(core), GRACE_SECONDS)

    else:

        def _finish(self, core: Core[T]) -> T:
            return self._run(core)

    async def _run(self, core: Core[T]) -> T:
        if True:  # ASYNC
            await self._attach(None)
        result: T = await self._runtime.run(core)
        return result

    @property
    def _hold(self) -> Hold | None:
        return self._session.hold_of(self._owner())

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._session.name

    @property
    def key(self) -> str:
        """Its key: a plain string that holds the token, as redis-py's own Lock keeps it."""
        return self._session.keys.lock

    @property
    def ttl(self) -> float:
        """The lease in seconds."""
        return self._session.options.lease_s

    @property
    def fence(self) -> int | None:
        """The number of this grant, None if the lock is not held.

        It rises with every grant of the lock: give it to whatever the lock protects, and let that
        refuse a smaller number than it has seen. It is the server's time in microseconds, or one
        more than the last fence if that is larger. None for a Redlock too: numbers counted on
        several servers would drift apart.
        """
        hold = self._hold
        return hold.fence if hold is not None else None

    @property
    def token(self) -> str | None:
        """The token of this hold, None if the lock is not held."""
        hold = self._hold
        return hold.token.decode() if hold is not None else None

    def remaining(self) -> float:
        """Return the seconds the holder may rely on the lock; 0.0 if it is not held or lost.

        By the holder's own clock, which goes on in suspend; no round trip.
        """
        hold = self._hold
        if hold is None or hold.lost:
            return 0.0
        return max(0.0, hold.deadline - boot_clock())

    def check(self) -> None:
        """Raise if this thread or task cannot rely on the lock now; no round trip.

        Raises:
            LockLostError: If it was lost.
            LockNotOwnedError: If it is not held.
        """
        self._session.check(self._owner())

    @property
    def lost(self) -> Event:
        """An event that is set when this hold is lost; a new one for each hold."""
        hold = self._hold
        if hold is None:
            return Event()
        if hold.event is None:
            hold.event = Event()
        if hold.lost:
            hold.event.set()
        event: Event = hold.event
        return event

    # In asyncio no coroutine functions: whoever calls them owns the hold, whoever awaits them.

    def acquire(
        self,
        blocking: bool | None = None,
        timeout: float | None = None,
        *,
        blocking_timeout: float | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Take the lock, waiting for it if need be.

        Args:
            blocking: Whether to wait; None: the default of the object.
            timeout: Seconds to wait at most; None: the default of the object, else for ever.
            blocking_timeout: redis-py's name for it.

        Returns:
            True if this thread or task holds the lock now, False if others had it all the time.

        Raises:
            ConfigurationError: If the arguments contradict each other, or the server runs no
                scripts for this client.
            LockError: If this thread or task holds the lock already and would wait for itself.
            QuorumError: If too few replicas acknowledged it.
            redis.exceptions.RedisError: If the server cannot be asked; at most a second after the
                time limit. Nothing is held or queued then, as after KeyboardInterrupt.

        Cost: one round trip if the lock is free (one more with `replicas`), else one or two, and
        one each two seconds of waiting.
        """
        seconds = self._session.options.seconds_to_wait(blocking, timeout, blocking_timeout)
        return self._acquire(self._owner(), seconds)

    async def _acquire(self, owner: object, seconds: float | None) -> bool:
        if True:  # ASYNC
            await self._attach(seconds)
            # What runs alone in a loop, without a task that calls it, owns its hold.
            owner = owner or self._owner()
        attempt = self._session.begin(owner, seconds)
        if isinstance(attempt, bool):
            return attempt
        try:
            return await self._run(self._session.acquire(attempt, owner))
        except BaseException:
            await self._finish(self._session.undo(attempt))
            raise

    def release(self) -> Coroutine[Any, Any, None]:
        """Give the lock back; it goes to the next waiter in the same step.

        Raises:
            LockNotOwnedError: If this thread or task does not hold it; nothing is sent.
            LockLostError: If it was lost.
            redis.exceptions.RedisError: If the server cannot be asked; the lease ends by itself.

        Cost: one round trip.
        """
        return self._finish(self._session.release(self._owner()))

    def locked(self) -> Coroutine[Any, Any, bool]:
        """Return whether any client holds the lock; one round trip."""
        return self._run(self._session.steps.locked())

    def owned(self) -> Coroutine[Any, Any, bool]:
        """Ask the server whether this thread or task holds the lock; no round trip if it does not.

        `check` does the same from what is known here.
        """
        return self._run(self._session.owned(self._owner()))

    def extend(self, ttl: float | None = None) -> Coroutine[Any, Any, bool]:
        """Let the lease be `ttl` seconds from now, and at each renewal from now on.

        Args:
            ttl: Seconds; None: the lease it has. The lease does not go beyond `max_hold`.

        Returns:
            True.

        Raises:
            ConfigurationError: If an argument is not usable.
            LockNotOwnedError: If this thread or task does not hold it.
            LockLostError: If it was lost.

        Cost: one round trip.
        """
        return self._run(self._session.extend(self._owner(), ttl))

    def reacquire(self) -> Coroutine[Any, Any, bool]:
        """Let the lease begin again; redis-py's name for `extend()`."""
        return self.extend()

    async def close(self) -> None:
        """Give back the connections; closes the client only if this object made it."""
        if self._runtime is not None:
            await self._runtime.close()
        await self._close(self._made)

    async def _close(self, clients: list[Any]) -> None:
        for client in clients:
            await async_close_client(client)

    async def __aenter__(self) -> Self:
        """Acquire; LockTimeoutError if that does not succeed in time."""
        if not await self.acquire():
            options = self._session.options
            why = "is held by another client"
            if options.blocking:
                why = f"was not obtained within {options.blocking_timeout:g} s"
            raise LockTimeoutError(f"lock {self.name!r} {why}")
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
            if error is not None:
                error.add_note(str(failure))
                return
            # Several servers that do not answer are as one: the body was done under the lock.
            if isinstance(failure, LockError) and not isinstance(failure, QuorumError):
                raise
            if not isinstance(failure, (RedisError, OSError)):
                raise
            text = "lock %r was not released and is left to expire: %s"
            REPORTS.warning("lock", text, self.name, failure)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: a hold is of this process, and so is a connection."""
        raise TypeError(not_portable(self))

    def __repr__(self) -> str:
        held = self._hold
        state = "not held here" if held is None else f"lost: {held.lost}" if held.lost else "held"
        return f"<{type(self).__name__} {self.name!r}: {state}>"


class AsyncFairLock(AsyncLock):
    """A lock that is granted in the order of asking.

    A waiter that died, or whose connection broke, is passed over. Lock keeps that order too, but
    does not promise it.
    """


class AsyncReentrantLock(AsyncLock):
    """A lock that its holder may acquire again, and then has to release as often.

    Counted here, for each thread or task: a nested acquire costs no round trip.
    """

    _is_reentrant = True


class AsyncReadLock(AsyncLock):
    """The read side of a read-write lock; get it there."""

    _is_shared = True


class AsyncReadWriteLock:
    """A lock that many readers share, or one writer has.

    A waiting writer keeps out readers that come after it; when a writer is done all readers that
    wait then go together, and the next writer after them. So neither side starves. The write side
    is the Lock of the same name. Arguments are those of Lock.

    Attributes:
        read: The lock that readers take.
        write: The lock that writers take.

    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     lock = AsyncReadWriteLock("table", client=server.url)
    ...     async with lock.read:
    ...         await lock.write.acquire(blocking=False)
    False
    """

    def __init__(
        self,
        name: str,
        client: AsyncClient = None,
        ttl: float | None = None,
        **options: Unpack[LockParameters],
    ) -> None:
        self.read = AsyncReadLock(name, client, ttl, **options)
        self.write = AsyncLock(name, self.read._client, ttl, **options)
        # Each side refuses who holds the other and would wait for himself.
        read, write = self.read._session, self.write._session
        read.other_side, write.other_side = write, read

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied; see Lock."""
        raise TypeError(not_portable(self))

    @property
    def name(self) -> str:
        """The lock's name."""
        return self.read.name

    async def close(self) -> None:
        """Give back the connections; closes the client only if this object made it."""
        await self.read.close()
        await self.write.close()
