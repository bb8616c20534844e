"""A judge of a proxy that stops a client at a chosen command: no race needs luck."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy import Verdict

LONG = 60.0
"""Bound against hanging, in seconds; nothing here takes a hundredth of it."""


class Hold:
    """A judge that holds back command number `at`, or the first of name `name`, until `let_go`."""

    def __init__(self, at: int | None = None, name: str | None = None) -> None:
        self.at = at
        self.name = name
        self.reached = threading.Event()
        self._gone_on = threading.Event()

    def __call__(self, name: str, number: int) -> Verdict:
        if (number == self.at or name == self.name) and not self.reached.is_set():
            self.reached.set()
            self._gone_on.wait(LONG)
        return "pass"

    def let_go(self) -> None:
        self._gone_on.set()
