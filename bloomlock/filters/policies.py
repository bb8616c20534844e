"""What a caller may choose a filter to do when something is out of the ordinary, checked."""

from __future__ import annotations

from typing import Literal, get_args

from bloomlock.errors import ConfigurationError

OnFull = Literal["warn", "raise"]
OnLost = Literal["raise", "recreate"]
OnUnknown = Literal["raise", "new"]


def choice(parameter: str, value: object, allowed: object) -> str:
    """Return `value` if it is one of a Literal's, or raise ConfigurationError.

    >>> choice("on_lost", "recreate", OnLost)
    'recreate'
    """
    choices = get_args(allowed)
    if isinstance(value, str) and value in choices:
        return value
    raise ConfigurationError(
        f"{parameter} must be {' or '.join(map(repr, choices))}, not {value!r}"
    )


def refuses(on_full: object) -> bool:
    """Tell whether a full filter refuses new items; ConfigurationError if `on_full` is unknown.

    >>> refuses("warn"), refuses("raise")
    (False, True)
    """
    if on_full == "grow":
        raise ConfigurationError(
            "on_full must be 'warn' or 'raise', not 'grow': filters that grow are not available yet"
        )
    return choice("on_full", on_full, OnFull) == "raise"
