"""Tokens that nobody else has: random for each process, counted within it."""

from __future__ import annotations

import itertools
import os
import secrets


class Tokens:
    """A source of tokens; a child of fork must start over."""

    def __init__(self) -> None:
        """Draw the random part."""
        self.start_over()

    def start_over(self) -> None:
        """Draw another random part."""
        self._random = secrets.token_urlsafe(15).encode()
        self._numbers = itertools.count(1)

    def new(self) -> bytes:
        """Return the next token."""
        return b"%b.%x" % (self._random, next(self._numbers))


TOKENS = Tokens()
os.register_at_fork(after_in_child=TOKENS.start_over)
