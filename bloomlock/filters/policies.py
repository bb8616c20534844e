"""What a filter does when it is full: the allowed values, checked."""

from __future__ import annotations

from typing import Literal, get_args

from bloomlock.errors import ConfigurationError

OnFull = Literal["warn", "raise"]


def refuses(on_full: object) -> bool:
    """Tell whether a full filter refuses new items; ConfigurationError if `on_full` is unknown.

    >>> refuses("warn"), refuses("raise")
    (False, True)
    """
    if on_full == "grow":
        raise ConfigurationError(
            "on_full must be 'warn' or 'raise', not 'grow': filters that grow are not available yet"
        )
    if on_full not in get_args(OnFull):
        raise ConfigurationError(f"on_full must be 'warn' or 'raise', not {on_full!r:.80}")
    return on_full == "raise"
