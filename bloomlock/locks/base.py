"""What a lock object reports without asking the server; the same for threads and asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from redis.exceptions import RedisError

from bloomlock.errors import LockError, LockTimeoutError, QuorumError
from bloomlock.runtime.clients import not_portable
from bloomlock.runtime.clock import boot_clock

from .reports import REPORTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hold import Hold
    from .session import LockSession


class LockBase:
    """The state of a lock as attributes; those of a hold are of this thread's or task's own."""

    _session: LockSession
    _owner: Callable[[], object]

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

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: a hold is of this process, and so is a connection."""
        raise TypeError(not_portable(self))

    def __repr__(self) -> str:
        held = self._hold
        state = "not held here" if held is None else f"lost: {held.lost}" if held.lost else "held"
        return f"<{type(self).__name__} {self.name!r}: {state}>"

    def _not_obtained(self) -> LockTimeoutError:
        options = self._session.options
        if not options.blocking:
            return LockTimeoutError(f"lock {self.name!r} is held by another client")
        seconds = options.blocking_timeout
        return LockTimeoutError(f"lock {self.name!r} was not obtained within {seconds:g} s")

    def _explain_exit(self, failure: Exception, error: BaseException | None) -> bool:
        """Decide what a failed release means on leaving a `with`; True: raise it."""
        if error is not None:
            error.add_note(str(failure))
            return False
        # Several servers that do not answer are as one: the body was done under the lock.
        if isinstance(failure, LockError) and not isinstance(failure, QuorumError):
            if self._session.options.raise_on_release_error:
                return True
        elif not isinstance(failure, (RedisError, OSError)):
            return True
        text = "lock %r was not released and is left to expire: %s"
        REPORTS.warning("lock", text, self.name, failure)
        return False
