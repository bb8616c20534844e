"""Meaning of a server's error replies."""

from __future__ import annotations

import redis.exceptions

_REFUSALS = (
    redis.exceptions.ResponseError,
    # -LOADING, -NOAUTH and the like
    redis.exceptions.BusyLoadingError,
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
)
_NO_ROOM = "max number of clients reached"


def is_refusal(error: Exception) -> bool:
    """Return whether an error raised while a reply was read is what the server answered.

    Then the command was not carried out. redis-py makes connection errors of some answers.
    """
    return isinstance(error, _REFUSALS) or str(error) == _NO_ROOM


def is_busy(refusal: Exception) -> bool:
    """Return whether the server loads its data or runs a long script, and answers soon."""
    is_loading = isinstance(refusal, redis.exceptions.BusyLoadingError)
    return is_loading or str(refusal).startswith("BUSY ")


def ends_connection(refusal: Exception) -> bool:
    """Return whether the server closes the connection with this answer, and reads no more of it."""
    message = str(refusal)
    return message == _NO_ROOM or message.startswith("Protocol error")


def is_missing(error: Exception) -> bool:
    """Return whether this user or server lacks the command, so that it need not be tried again."""
    if isinstance(error, redis.exceptions.NoPermissionError):
        return "access" not in str(error)  # it has the command, and lacks the key or the channel
    return isinstance(error, redis.exceptions.ResponseError) and str(error).lower().startswith(
        ("unknown command", "syntax error")
    )


def explain(error: Exception, key: str = "") -> str:
    """Return what a server answered, in one line, and what a user can do about it."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "; " in text:
        return text
    if isinstance(error, redis.exceptions.AuthenticationError) and "without" not in text:
        wrong = "invalid" in text
        what = "the password or the user name is wrong" if wrong else "it wants a password"
        return f"{what}; write redis://:PASSWORD@host or redis://USER:PASSWORD@host"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"{text}; the ACL of this user must allow the command, and all keys of the prefix"
    if text.startswith("WRONGTYPE") and key:
        return f"{text}; it is {key!r} or one that belongs to it: choose another name or prefix"
    return text
