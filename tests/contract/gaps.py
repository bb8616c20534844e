"""One operation after the other, each with something at its next command: an act, or a loss."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proxy import Proxy, Verdict

MOST = 250
"""No operation of these tests sends as many commands."""


class Gap:
    """The command of one number.

    Attributes:
        number: It; the first is 0.
        reached: Whether the operation sent as many.
    """

    def __init__(self, proxy: Proxy, number: int) -> None:
        self.number, self.reached = number, False
        self._proxy = proxy

    @contextlib.contextmanager
    def before(self, act: Callable[[], object]) -> Iterator[None]:
        """Let `act` happen before that command of what is done meanwhile."""

        def do() -> Verdict:
            act()
            return "pass"

        with self._at(do):
            yield

    @contextlib.contextmanager
    def lost(self, verdict: Verdict) -> Iterator[None]:
        """Cut the connection before that command arrives, or after it is carried out."""
        with self._at(lambda: verdict):
            yield

    @contextlib.contextmanager
    def _at(self, do: Callable[[], Verdict]) -> Iterator[None]:
        left = self.number

        def judge(_name: str, _number: int) -> Verdict:
            nonlocal left
            left -= 1
            if left == -1:
                self.reached = True
                return do()
            return "pass"

        self._proxy.judge = judge
        try:
            yield
        finally:
            self._proxy.judge = lambda _name, _number: "pass"


def gaps(proxy: Proxy) -> Iterator[Gap]:
    """Yield the gaps of an operation, until it has not as many commands."""
    for number in range(MOST):
        gap = Gap(proxy, number)
        yield gap
        if not gap.reached:
            assert number, "the operation sent nothing"
            return
    pytest.fail(f"an operation of {MOST} commands?")
