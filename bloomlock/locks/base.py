"""What a lock object reports without asking the server; the same for threads and asyncio."""

from __future__ import annotations

import hashlib
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from redis.exceptions import RedisError

from bloomlock.errors import ConfigurationError, LockError, LockTimeoutError, QuorumError
from bloomlock.keys import LockKeys
from bloomlock.runtime.clients import not_portable
from bloomlock.runtime.clock import boot_clock

from .compat import in_order
from .options import LockOptions
from .reports import REPORTS
from .session import LockSession

if TYPE_CHECKING:
    from typing import Unpack

    from .options import LockParameters

READERS = b"read"
"""The group of the read side of a read-write lock."""


class LockBase:
    """The state of a lock as attributes; those of a hold are of this thread's or task's own."""

    _event_class: ClassVar[Any]
    _reentrant: ClassVar[bool] = False
    _group: bytes = b""

    def __init__(
        self,
        name: str,
        client: Any = None,
        ttl: float | None = None,
        **options: Unpack[LockParameters],
    ) -> None:
        name, client = in_order(name, client)
        checked = LockOptions(ttl, **options)
        keys = LockKeys.of(name, checked.prefix)
        terms = (name, keys, checked, self._has_ended)
        self._use(LockSession(*terms, group=self._group, reentrant=self._reentrant), client)

    def _use(self, session: LockSession, client: Any) -> None:
        self._session = session
        if session.options.on_lost is not None:
            # It does not keep the lock alive.
            session.report_lost = weakref.WeakMethod(self._call_on_lost)
        self._start(client)

    def _start(self, client: Any) -> None:
        raise NotImplementedError

    def _call_on_lost(self) -> None:
        """Call `on_lost` where it delays no other lock."""
        raise NotImplementedError

    def _report_lost(self) -> Any:
        on_lost = self._session.options.on_lost
        try:
            return None if on_lost is None else on_lost(self)
        except BaseException:  # noqa: BLE001 - reported
            REPORTS.exception("lock", "on_lost of lock %r raised", self.name)
            return None

    def _owner(self) -> object:
        raise NotImplementedError

    @staticmethod
    def _has_ended(owner: Any) -> bool:
        raise NotImplementedError

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
    def timeout(self) -> float | None:
        """The lease in seconds if it is not renewed, else None; redis-py's name."""
        return None if self._session.options.renews else self._session.options.lease_s

    @property
    def blocking(self) -> bool:
        """Whether `acquire` waits by default."""
        return self._session.options.blocking

    @property
    def blocking_timeout(self) -> float | None:
        """How many seconds `acquire` waits by default; None: for ever."""
        return self._session.options.blocking_timeout

    @property
    def thread_local(self) -> bool:
        """Whether a hold belongs to the thread or task that acquired it."""
        return self._session.options.thread_local

    @property
    def raise_on_release_error(self) -> bool:
        """Whether leaving a `with` raises LockLostError."""
        return self._session.options.raise_on_release_error

    @property
    def fence(self) -> int | None:
        """The number of this grant, None if the lock is not held.

        It rises with every grant of the lock: give it to whatever the lock protects, and let that
        refuse a smaller number than it has seen. It is the server's time in microseconds, or
        one more than the last fence if that is larger. The last fence is kept for a minute, or
        two leases if that is longer, after it is behind the server's clock. So it could repeat
        only if the clock is set back after that, by more than has passed since the last grant, or
        if a failover lost the last grant and the new master's clock is behind by more than has
        passed since. None for a Redlock too: numbers counted on several servers would drift apart.
        """
        hold = self._session.holdings.of(self._owner())
        return hold.fence if hold is not None else None

    @property
    def token(self) -> str | None:
        """The token of this hold, None if the lock is not held."""
        hold = self._session.holdings.of(self._owner())
        return hold.token.decode() if hold is not None else None

    @property
    def lost(self) -> Any:
        """An event that is set when this hold is lost; a new one for each hold."""
        hold = self._session.holdings.of(self._owner())
        if hold is None:
            return self._event_class()
        if hold.event is None:
            hold.event = self._event_class()
        if hold.lost:
            hold.event.set()
        return hold.event

    def remaining(self) -> float:
        """Return the seconds the holder may rely on the lock; 0.0 if it is not held or lost.

        By the holder's own clock, which goes on in suspend; no round trip.
        """
        hold = self._session.holdings.of(self._owner())
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
        held = self._session.holdings.of(self._owner())
        state = "not held here" if held is None else f"lost: {held.lost}" if held.lost else "held"
        return f"<{type(self).__name__} {self.name!r}: {state}>"

    def _not_obtained(self) -> LockTimeoutError:
        seconds = self._session.options.blocking_timeout
        if not self._session.options.blocking:
            return LockTimeoutError(f"lock {self.name!r} is held by another client")
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


def know_each_other(read: LockBase, write: LockBase) -> None:
    """Let each side of a read-write lock refuse who holds the other and would wait for himself."""
    read._session.other_side, write._session.other_side = write._session, read._session  # noqa: SLF001 - the same module


def owner_group(owner: str | None) -> bytes:
    """Return the group of an explicit owner; empty for none.

    Raises:
        ConfigurationError: If it is no text.
    """
    if owner is None:
        return b""
    if not isinstance(owner, str) or not owner:
        raise ConfigurationError(f"owner must be a text that is not empty, not {owner!r:.80}")
    return b"owner-" + hashlib.sha256(owner.encode()).hexdigest()[:32].encode()
