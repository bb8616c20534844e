"""What it means that a server answered an error."""

from __future__ import annotations

import redis.exceptions

_REFUSALS = (
    redis.exceptions.ResponseError,
    # -LOADING, -NOAUTH and the like
    redis.exceptions.BusyLoadingError,
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
)
_SLOT_REFUSALS = (
    redis.exceptions.AskError,  # MovedError is a kind of it
    redis.exceptions.TryAgainError,
)
_NO_ROOM = "max number of clients reached"


def is_refusal(error: Exception) -> bool:
    """Return whether an error raised while a reply was read is what the server answered.

    Then the command was not carried out, and the connection goes on. redis-py makes connection
    errors of some answers, though they are as definite as any other.
    """
    return isinstance(error, _REFUSALS) or str(error) == _NO_ROOM


def is_slot_refusal(reply: object) -> bool:
    """Return whether a cluster refused a command because its slot moves, or is elsewhere.

    Nothing was done then. In a transaction it holds for all of it.
    """
    return isinstance(reply, _SLOT_REFUSALS)


def ends_connection(refusal: Exception) -> bool:
    """Return whether the server closes the connection with this answer, and reads no more of it."""
    message = str(refusal)
    return message == _NO_ROOM or message.startswith("Protocol error")


def is_missing(error: Exception) -> bool:
    """Return whether this user or server lacks the command, so that it need not be tried again.

    Other errors come and go, such as those of a server that fails over.
    """
    return isinstance(error, redis.exceptions.NoPermissionError) or (
        isinstance(error, redis.exceptions.ResponseError)
        and str(error).lower().startswith(("unknown command", "syntax error"))
    )
