"""The whole error tree of bloomlock.

Errors that the server itself reports (out of memory, no permission, wrong type) pass through
as redis-py raises them, except in the middle of a batch: there they are the cause of a BatchError,
which has the answers known so far. What `items` raises, KeyboardInterrupt and a cancellation always
pass through as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis.exceptions

if TYPE_CHECKING:
    from collections.abc import Sequence


class BloomlockError(Exception):
    """Root of every error bloomlock raises by itself."""

    def __repr__(self) -> str:
        """Return class and message; what redis-py's errors return lacks the message."""
        return Exception.__repr__(self)


class ConfigurationError(BloomlockError, ValueError):
    """A parameter is not usable; raised before anything is written."""


class ServerError(BloomlockError, redis.exceptions.ConnectionError):
    """The embedded server could not be started, or a URL does not answer as a Redis server."""


class FilterNotFoundError(BloomlockError, LookupError):
    """`open` found no filter of that name."""


class FilterMismatchError(BloomlockError):
    """What is stored under the name is not the filter the caller described.

    Other parameters, another format, or a key that is no filter at all. Nothing was changed.
    """


class PartialResultError(BloomlockError):
    """An operation on several items stopped; what is known of its answers is kept.

    Attributes:
        results: One entry for each of the first items, in order: True (new, or for a read: seen),
            False, or None where there is no answer. What None means for an add depends on the
            error: OutcomeUnknownError, it may have been added; others, it was not. Items past the
            end of the list were not added. Empty for an `update`.
        added: Of an `update`, how many of the first items certainly were added.
    """

    def __init__(self, message: str, results: Sequence[bool | None] = (), added: int = 0) -> None:
        super().__init__(message)
        self.results: list[bool | None] = list(results)
        self.added = added


class BatchError(PartialResultError):
    """A batch stopped half-way; `__cause__` says by what: the server, the network, a lock, an item.

    Raised only where some answers are known; else the cause itself is. It is of the cause's kind:
    `except` for redis-py's ConnectionError, TimeoutError, ResponseError or RedisError, for OSError,
    LockTimeoutError, TypeError or ConfigurationError catches it too. What failed was not added.
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Return what makes it again: its class is that of its cause."""
        if self.__cause__ is None:
            return type(self), (str(self), self.results, self.added)
        return batch_error, (self.__cause__, self.results, self.added)


class CapacityError(PartialResultError):
    """The filter is full and `on_full="raise"`: the item was not added."""


class OutcomeUnknownError(PartialResultError):
    """The bytes of an update may have left and no reply came: it may or may not have happened.

    Treat the item as new (working twice is better than never), or ask `exists` if a seen item
    without a worker does no harm. `on_unknown="new"` does the former without raising.
    """


class FilterLostError(OutcomeUnknownError):
    """The filter is missing, was cleared or was replaced since this object attached to it.

    Items of the add that raised it may have been added to the filter that replaced this one.
    """


class LockError(BloomlockError, redis.exceptions.LockError):
    """Root of the errors of locks."""


class LockTimeoutError(LockError):
    """The lock was not obtained in the time the caller was willing to wait."""


class LockNotOwnedError(LockError, redis.exceptions.LockNotOwnedError):
    """The lock is not held by this thread or task."""


class LockLostError(LockNotOwnedError):
    """The lock was held and is no more.

    Its lease ended before it could be renewed, or its key was deleted. Another client may have
    worked since.
    """


class QuorumError(LockError):
    """Too few servers or replicas acknowledged the lock; what was taken was given back."""


class ClaimError(BloomlockError):
    """A claim is not this worker's, or no more: it is not NEW, or was committed or given back."""


class ClaimLostError(ClaimError):
    """The claim was this worker's and is no more; what it did was not committed.

    Its lease ended and another worker claimed the item since, or found it in the filter or to have
    failed `max_attempts` times; or the filter was cleared.
    """


class OnceError(BloomlockError):
    """Root of what a function under `@once` raises in place of running."""


class Duplicate(OnceError):  # noqa: N818 - no error, but what the caller asked to be notified of
    """The work of this key was done before (or, at the error rate, looks like it)."""


class InProgress(OnceError):  # noqa: N818 - as Duplicate
    """The work of this key is under way in another call, and may yet fail.

    Attributes:
        remaining: Seconds that are left of its lease; it may end earlier, or be renewed.
    """

    def __init__(self, message: str, remaining: float = 0.0) -> None:
        super().__init__(message)
        self.remaining = remaining


class FailedTooOften(OnceError):  # noqa: N818 - as Duplicate
    """The work of this key failed `max_attempts` times, and is not tried again.

    Attributes:
        attempts: How often it failed.
    """

    def __init__(self, message: str, attempts: int = 0) -> None:
        super().__init__(message)
        self.attempts = attempts


_BATCH_ERRORS: list[tuple[type[Exception], type[BatchError]]] = [
    (kind, type(f"Batch{kind.__name__}", (BatchError, kind), {"__doc__": BatchError.__doc__}))
    for kind in (
        LockTimeoutError,
        redis.exceptions.ConnectionError,
        redis.exceptions.TimeoutError,
        redis.exceptions.ResponseError,
        redis.exceptions.RedisError,
        OSError,
        TypeError,
        ConfigurationError,
    )
]


def batch_error(
    cause: Exception, results: Sequence[bool | None] = (), added: int = 0
) -> BatchError:
    """Return the BatchError of the cause's kind; the cause itself is left as it is."""
    made = next((made for kind, made in _BATCH_ERRORS if isinstance(cause, kind)), BatchError)
    error = made(str(cause) or type(cause).__name__, results, added)
    error.__cause__ = cause
    return error
