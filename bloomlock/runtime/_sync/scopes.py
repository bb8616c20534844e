# Written by tools/async_to_sync.py from bloomlock/runtime/_async/scopes.py; change that.
"""What one run of a core has open: a subscription, and context managers of the caller."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from bloomlock.effects import EnterContext, ExitContext, NextMessage, Subscribe
from bloomlock.runtime.clients import not_a_manager

if TYPE_CHECKING:
    from collections.abc import Callable


class Subscriber(Protocol):
    """What gives a core its subscription."""

    def subscribe(self, step: Subscribe) -> Any:
        """Return what listens, or None if there can be none."""

    def unsubscribe(self, subscription: Any, /) -> None:
        """End what `subscribe` began."""


class Scope:
    """What one run of a core has open."""

    def __init__(self, runtime: Subscriber) -> None:
        self._runtime = runtime
        self._subscription: Any = None
        self._entered: list[Any] = []

    def subscribe(self, step: Subscribe) -> bytes:
        """Listen from now on; return the channel."""
        self._subscription = self._subscription or self._runtime.subscribe(step)
        return self._subscription.channel if self._subscription else b""

    def next_message(self, step: NextMessage) -> bytes | None:
        """Wait for a message on the channel."""
        if self._subscription is None:
            return None
        message: bytes | None = self._subscription.wait(step.addressee, step.seconds)
        return message

    def enter(self, step: EnterContext) -> Exception | None:
        """Enter a context manager."""
        if not hasattr(type(step.manager), "__enter__"):
            return not_a_manager(step.manager, "a context manager")
        try:
            step.manager.__enter__()
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        self._entered.append(step.manager)
        return None

    def leave(self, _: ExitContext) -> Exception | None:
        """Leave the context manager entered last."""
        try:
            self._entered.pop().__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        return None

    def close(self) -> None:
        """Leave what the core did not, and stop listening."""
        try:
            while self._entered:
                self._entered.pop().__exit__(*sys.exc_info())
        finally:
            if self._subscription is not None:
                self._runtime.unsubscribe(self._subscription)


STEPS: dict[type, Callable[[Scope, Any], Any]] = {
    Subscribe: Scope.subscribe,
    NextMessage: Scope.next_message,
    EnterContext: Scope.enter,
    ExitContext: Scope.leave,
}
