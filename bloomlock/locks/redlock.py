"""The lock over several independent servers, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock.errors import ConfigurationError, QuorumError
from bloomlock.runtime.clients import sync_clients
from bloomlock.runtime.threads import threads_for, threads_over

from .lock import Lock, has_ended
from .quorum_lock import make_session
from .watchdog import WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    import redis

    from .options import RedlockParameters
    from .quorum_lock import RedlockSession


class Redlock(Lock):
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

    There is no queue across servers: a waiter asks again after a pause of random length, so the
    order is random.

    Args:
        name: Free text; the lock's identity on the servers.
        clients: Redis-py clients or URLs, one for each server; an odd number is best. A server
            that does not answer keeps a thread as long as its client waits for a reply, so give
            clients with a `socket_timeout` (those made from URLs have one of 2 seconds).
        ttl: The lease in seconds (30 if not given).
        server_timeout: How many seconds a server is waited for; None: a tenth of the lease, but at
            least 0.05 and at most 1.
        longest_ttl: The longest lease in seconds that any client asks these servers for; None:
            `ttl`. To be set where others use the same name with a longer `ttl`, or `extend` one.
        pauses: The shortest and the longest pause in seconds before a waiter asks again.
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
    ...     lock = Redlock("report", clients=[server.url for server in servers], longest_ttl=0)
    ...     servers[0].kill()
    ...     with lock:
    ...         lock.owned()
    True
    """

    _session: RedlockSession

    def __init__(
        self,
        name: str,
        clients: Iterable[redis.Redis | redis.RedisCluster | str],
        ttl: float | None = None,
        **options: Unpack[RedlockParameters],
    ) -> None:
        self._use(make_session(name, ttl, **options), clients)

    def _start(self, client: Any) -> None:
        made = sync_clients(client)
        self._session.holdings.has_ended = has_ended
        self._clients = [each for each, is_ours in made if is_ours]
        self._runtime = threads_over([each for each, _ in made])
        self._session.attach(self._runtime, WATCHDOG)

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
    ) -> bool:
        """Take the lock, polling until it is free if need be.

        Args:
            blocking: Whether to wait; None: as the constructor says.
            timeout: Seconds to wait at most; None or -1: as the constructor says.
            blocking_timeout: redis-py's name for it.
            sleep: redis-py's; accepted, but see `pauses`.
            token: Must be None: each try has a fresh one.

        Returns:
            True if this thread holds the lock now, False if others had it all the time.

        Raises:
            ConfigurationError: If the arguments contradict each other, or two of the clients
                turn out to be one server.
            LockError: If this thread holds the lock already and would wait for itself.
            QuorumError: If fewer than a majority of the servers have a vote: when time is up,
                or, without a limit, when none was reached for as long as the lease. What was
                taken is given back then, as after KeyboardInterrupt; a server that does not
                answer keeps it at most until the lease ends.

        Cost: one round trip to each server at once, and a second one to give back what is no
            majority; both for each pause of a wait. It returns with the majority's answer;
            servers that do not answer cost nothing if the others are a majority, else
            `server_timeout`.
        """
        if token is not None:
            raise ConfigurationError(f"token must be None for a Redlock, not {token!r:.80}")
        return super().acquire(blocking, timeout, blocking_timeout=blocking_timeout, sleep=sleep)

    def release(self) -> None:
        """Give the lock back everywhere.

        A server that has not answered yet is asked as soon as it does, in the background.

        Raises:
            LockNotOwnedError: If this thread does not hold it; nothing is sent.
            LockLostError: If it was lost.
            QuorumError: If no majority answered; the lease ends by itself.

        Cost: one round trip to each server at once; `server_timeout` if one has stopped answering.
        """
        super().release()

    def locked(self) -> bool:
        """Return whether a majority of the servers knows one holder; one round trip to each.

        Raises:
            QuorumError: If that depends on servers that do not answer.
        """
        return super().locked()

    def owned(self) -> bool:
        """Ask whether a majority has this thread's token; one round trip to each, or none.

        Raises:
            QuorumError: If that depends on servers that do not answer.
        """
        return super().owned()

    def extend(self, ttl: float | None = None, *, replace_ttl: bool = True) -> bool:
        """Let the lease be `ttl` seconds from now, and at each renewal from now on.

        Args:
            ttl: Seconds, at most `longest_ttl`; None: the lease it has.
            replace_ttl: See Lock.extend.

        Returns:
            True.

        Raises:
            ConfigurationError: If it is longer than `longest_ttl`.
            LockNotOwnedError: If this thread does not hold it.
            LockLostError: If the servers that deny it leave no majority that can have it.
            QuorumError: If no majority answered; the lock is held for what `remaining` says.

        Cost: one round trip to each server at once; `server_timeout` if no majority answers.
        """
        return super().extend(ttl, replace_ttl=replace_ttl)

    def close(self) -> None:
        """Close the clients that this object made."""
        for client in self._clients:
            threads_for(client).close()
            client.close()

    def _explain_exit(self, failure: Exception, error: BaseException | None) -> bool:
        # Logged, as for the other locks: what the body did was done under the lock.
        if isinstance(failure, QuorumError):
            failure = ConnectionError(str(failure))
        return super()._explain_exit(failure, error)
