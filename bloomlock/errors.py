"""The whole error tree of bloomlock.

Errors that the server itself reports (out of memory, no permission, wrong type) pass through
as redis-py raises them. What stands here is what only bloomlock can know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis.exceptions

if TYPE_CHECKING:
    from collections.abc import Sequence


class BloomlockError(Exception):
    """Root of every error bloomlock raises by itself."""


class ConfigurationError(BloomlockError, ValueError):
    """A parameter is not usable; raised before anything is written."""


class ServerError(BloomlockError, redis.exceptions.ConnectionError):
    """The embedded server could not be started, or a URL does not answer as a Redis server."""


class FilterNotFoundError(BloomlockError, LookupError):
    """`open` found no filter of that name."""


class FilterMismatchError(BloomlockError):
    """What is stored under the name is not the filter the caller described.

    Other parameters, a newer format, or a key that is no filter at all. Nothing was changed.
    """


class PartialResultError(BloomlockError):
    """An operation on several items stopped; what is known of its answers is kept.

    Attributes:
        results: One entry for each item that was sent, in order: True (new, or for a read:
            seen), False, or None where the answer is not known. Items past its end were
            never sent.
    """

    def __init__(self, message: str, results: Sequence[bool | None] = ()) -> None:
        """Keep the sentence and the answers known so far."""
        super().__init__(message)
        self.results: list[bool | None] = list(results)


class FilterLostError(PartialResultError):
    """The filter is missing, was cleared or was replaced since this object attached to it."""


class CapacityError(PartialResultError):
    """The filter is full and `on_full="raise"`: the item was not added."""


class OutcomeUnknownError(PartialResultError):
    """The bytes of an update may have left and no reply came: it may or may not have happened.

    Treat the item as new (working twice is better than never), or ask `exists` if a seen item
    that nobody works on does no harm. `on_unknown="new"` does the former without raising.
    """


class LockError(BloomlockError, redis.exceptions.LockError):
    """Root of the errors of locks."""


class LockTimeoutError(LockError):
    """The lock was not obtained in the time the caller was willing to wait."""


class LockNotOwnedError(LockError, redis.exceptions.LockNotOwnedError):
    """The lock is not held by this thread or task."""


class LockLostError(LockNotOwnedError):
    """The lock was held and is no more.

    Its lease ran out before it could be renewed, or its key was deleted. Somebody else may have
    worked since.
    """


class QuorumError(LockError):
    """Too few servers or replicas acknowledged the lock; what was taken was given back."""
