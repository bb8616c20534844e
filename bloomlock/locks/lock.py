"""The locks for threads."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from bloomlock.runtime.clients import not_portable, sync_client
from bloomlock.runtime.threads import threads_for

from .base import READERS, LockBase, check_token, know_each_other, owner_group
from .options import NOT_GIVEN, seconds_to_wait
from .watchdog import WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self, Unpack

    import redis

    from .options import LockParameters

    Client = redis.Redis | redis.RedisCluster | str | None


class Lock(LockBase):
    """A lock that one thread of all processes holds at a time.

    It is renewed while it is held, handed to the waiter that asked first when it is released, and
    its holder learns when it is lost.

    Args:
        name: Free text; the lock's identity on the server.
        client: A redis-py client (standalone, Sentinel or Cluster), a URL, or None: the URL in
            BLOOMLOCK_URL, else in REDIS_URL, else the embedded server.
        ttl: The lease in seconds (30 if not given): how long the lock outlives its holder.
        renew: Whether the lease is renewed, each third of it, while the lock is held.
        max_hold: Seconds after which it is renewed no more; None: no limit.
        on_lost: Called with the lock, from a thread of its own, when a hold is lost.
        blocking: Whether `acquire` waits by default.
        blocking_timeout: How many seconds it waits by default; None: for ever.
        thread_local: Whether a hold belongs to the thread that acquired it; False: any thread
            may release it.
        replicas: How many replicas must have acknowledged a grant, else it is given back.
        observer: Called with a LockEvent for whatever happens: what the watchdog does and finds
            from a thread of its own, the rest from the thread that acquires or releases. What it
            raises is logged; SystemExit and its kin pass in the latter threads only.
        prefix: Start of all keys.
        timeout: redis-py's name for a lease that is not renewed.
        sleep: redis-py's; accepted, and not needed.
        raise_on_release_error: Whether leaving a `with` raises LockLostError.

    Raises:
        ConfigurationError: If a parameter is not usable.
        ServerError: If the URL does not answer as a Redis server.

    Cost: nothing is sent to the server, but for a client that is made from a URL.

    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     with Lock("report", client=server.url) as lock:
    ...         lock.remaining() > 29, lock.fence > 0
    ...         Lock("report", client=server.url).acquire(blocking=False)
    (True, True)
    False
    """

    _event_class = threading.Event

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
        def lost(self) -> threading.Event:
            """An event that is set when this hold is lost; a new one for each hold."""

    def _start(self, client: Client) -> None:
        self._session.holdings.has_ended = has_ended
        made, self._owns_client = sync_client(client)
        self._runtime = threads_for(made)
        self._session.attach(self._runtime, WATCHDOG)

    def _call_on_lost(self, on_lost: Callable[[Any], object]) -> None:
        WATCHDOG.call(partial(self._report_lost, on_lost))

    # Not its number: that is given to another thread when this one has ended.
    _owner = staticmethod(threading.current_thread)

    def acquire(
        self,
        blocking: bool | None = None,
        timeout: float | None = NOT_GIVEN,
        *,
        blocking_timeout: float | None = None,
        sleep: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Take the lock, waiting for it if need be.

        Args:
            blocking: Whether to wait; None: the default of the object.
            timeout: Seconds to wait at most; None or -1: the default of the object, else for ever.
            blocking_timeout: redis-py's name for it.
            sleep: redis-py's; accepted, and not needed.
            token: One to use instead of a fresh one; no other client may use it.

        Returns:
            True if this thread holds the lock now, False if it was not obtained in time.

        Raises:
            ConfigurationError: If the arguments contradict each other.
            LockError: If this thread holds the lock already and would wait for itself, with a
                `timeout` too (threading.Lock waits for that time and returns False).
            QuorumError: If too few replicas acknowledged it.
            redis.exceptions.RedisError: If the server cannot be asked; at most a second after the
                time limit. There is neither a hold nor a place in the queue then, as after
                KeyboardInterrupt; from a server that is silent they are taken back when it answers.

        Cost: one round trip if the lock is free (one more with `replicas`), else one or two, and
        one each two seconds of waiting.
        """
        seconds = self._session.options.wait_s
        if not (blocking is sleep is blocking_timeout is None and timeout is NOT_GIVEN):
            seconds = seconds_to_wait(
                self._session.options, blocking, timeout, blocking_timeout, sleep
            )
        owner = self._owner()
        attempt = self._session.begin(owner, seconds, None if token is None else check_token(token))
        if isinstance(attempt, bool):
            return attempt
        try:
            return self._runtime.run(self._session.acquire(attempt, owner))
        except BaseException:
            self._runtime.run(self._session.undo(attempt, owner))
            raise

    def release(self) -> None:
        """Give the lock back; it goes to the next waiter in the same step.

        Raises:
            LockNotOwnedError: If this thread does not hold it; nothing is sent.
            LockLostError: If it was lost.
            redis.exceptions.RedisError: If the server cannot be asked; the lease ends by itself.

        Cost: one round trip; two if a client began to wait meanwhile.
        """
        self._runtime.run(self._session.release(self._owner()))

    def locked(self) -> bool:
        """Return whether any client holds the lock; one round trip."""
        return self._runtime.run(self._session.locked())

    def owned(self) -> bool:
        """Ask the server whether this thread holds the lock; one round trip, none if it does not.

        `check` does the same from what is known here.
        """
        return self._runtime.run(self._session.owned(self._owner()))

    def extend(self, ttl: float | None = None, *, replace_ttl: bool = True) -> bool:
        """Let the lease be `ttl` seconds from now, and at each renewal from now on.

        Args:
            ttl: Seconds; None: the lease it has. The lease does not go beyond `max_hold`.
            replace_ttl: False: `ttl` is added to what is left of the lease, as redis-py does it.

        Returns:
            True.

        Raises:
            ConfigurationError: If an argument is not usable.
            LockNotOwnedError: If this thread does not hold it.
            LockLostError: If it was lost.

        Cost: one round trip.
        """
        return self._runtime.run(self._session.extend(self._owner(), ttl, add=not replace_ttl))

    def reacquire(self) -> bool:
        """Let the lease begin anew; redis-py's name for `extend()`."""
        return self.extend()

    def close(self) -> None:
        """Give back the connections; closes the client only if this object made it."""
        self._runtime.close()
        if self._owns_client:
            self._runtime.client.close()

    def __enter__(self) -> Self:
        """Acquire; LockTimeoutError if that does not succeed in time."""
        if not self.acquire():
            raise self._not_obtained()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release; LockLostError if it was lost, unless the body raised something by itself."""
        try:
            self.release()
        except Exception as failure:
            if self._explain_exit(failure, error):
                raise


class FairLock(Lock):
    """A lock that is granted in the order of asking.

    A waiter that died, or whose connection broke, is passed over. Lock hands over in
    the same order today, because that is also the quickest; here it is a promise.

    Arguments and methods are those of Lock.
    """


class ReentrantLock(Lock):
    """A lock that its holder may acquire again, and then has to release as often.

    Counted here, for each thread: a nested acquire costs no round trip, and a retry cannot count
    twice.

    Args:
        name: As of Lock, and all that follow.
        client: See Lock.
        ttl: See Lock.
        owner: A text; all who give the same one share the lock, in other threads, processes
            or machines, each with a lease of its own. It is free when all of them released it.
        **options: See Lock.
    """

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
        """Check the parameters."""
        self._group = owner_group(owner)
        super().__init__(name, client, ttl, **options)


class ReadLock(Lock):
    """The read side of a ReadWriteLock; get it there."""

    _group = READERS


class ReadWriteLock:
    """A lock that many readers share, or one writer has.

    A waiting writer keeps out readers that come after it; when a writer is done all readers that
    wait then go together, and the next writer after them. So neither side starves. The
    write side is the Lock of the same name.

    Args:
        name: As of Lock, and all that follow.
        client: See Lock.
        ttl: See Lock.
        **options: See Lock.

    Attributes:
        read: The lock that readers take.
        write: The lock that writers take.

    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     lock = ReadWriteLock("table", client=server.url)
    ...     with lock.read:
    ...         lock.write.acquire(blocking=False)
    False
    """

    def __init__(
        self,
        name: str,
        client: Client = None,
        ttl: float | None = None,
        **options: Unpack[LockParameters],
    ) -> None:
        """Make both sides, over one client."""
        self.read = ReadLock(name, client, ttl, **options)
        self.write = Lock(name, self.read._runtime.client, ttl, **options)  # noqa: SLF001 - our own class
        know_each_other(self.read, self.write)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied; see Lock."""
        raise TypeError(not_portable(self))

    @property
    def name(self) -> str:
        """The lock's name."""
        return self.read.name

    def close(self) -> None:
        """Give back the connections; closes the client only if this object made it."""
        self.read.close()


def has_ended(owner: object) -> bool:
    """Return whether a thread that holds a lock has ended."""
    return isinstance(owner, threading.Thread) and not owner.is_alive()
