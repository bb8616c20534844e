"""What one run of a core has open: a subscription, and context managers of the caller."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from bloomlock.effects import EnterContext, ExitContext, NextMessage, Subscribe

from .clients import not_a_manager

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .subscriptions import Hub, Listener


class Subscriber(Protocol):
    """What gives a core of a thread its subscription."""

    def subscribe(self, step: Subscribe) -> Listener | None:
        """Return a connection that listens, or None if there can be none."""

    def unsubscribe(self, subscription: Listener, /) -> None:
        """End what `subscribe` began."""


class AsyncSubscriber(Protocol):
    """What gives a core of a task its subscription."""

    async def subscribe(self, step: Subscribe) -> Hub | None:
        """Return what listens for this client, joined, or None if nothing can."""

    def unsubscribe(self, subscription: Hub, /) -> None:
        """End what `subscribe` began."""


class Scope:
    """What one run of a core has open: a subscription and context managers."""

    def __init__(self, runtime: Subscriber) -> None:
        self._runtime = runtime
        self._subscription: Listener | None = None
        self._entered: list[Any] = []

    def subscribe(self, step: Subscribe) -> bytes:
        """Listen from now on; return the channel."""
        self._subscription = self._subscription or self._runtime.subscribe(step)
        return self._subscription.channel if self._subscription else b""

    def next_message(self, step: NextMessage) -> bytes | None:
        """Wait for a message on the channel."""
        if self._subscription is None:
            return None
        return self._subscription.wait(step.addressee, step.seconds)

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


class AsyncScope:
    """What one run of a core has open: a subscription and context managers."""

    def __init__(self, runtime: AsyncSubscriber) -> None:
        self._runtime = runtime
        self._subscription: Hub | None = None
        self._entered: list[Any] = []

    async def subscribe(self, step: Subscribe) -> bytes:
        """Listen from now on; return the channel."""
        self._subscription = self._subscription or await self._runtime.subscribe(step)
        return self._subscription.channel if self._subscription else b""

    async def next_message(self, step: NextMessage) -> bytes | None:
        """Wait for a message on the channel."""
        if self._subscription is None:
            return None
        return await self._subscription.wait(step.addressee, step.seconds)

    async def enter(self, step: EnterContext) -> Exception | None:
        """Enter a context manager."""
        if not hasattr(type(step.manager), "__aenter__"):
            return not_a_manager(step.manager, "an asynchronous context manager")
        try:
            await step.manager.__aenter__()
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        self._entered.append(step.manager)
        return None

    async def leave(self, _: ExitContext) -> Exception | None:
        """Leave the context manager entered last."""
        try:
            await self._entered.pop().__aexit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        return None

    async def close(self) -> None:
        """Leave what the core did not, and stop listening."""
        try:
            while self._entered:
                await self._entered.pop().__aexit__(*sys.exc_info())
        finally:
            if self._subscription is not None:
                self._runtime.unsubscribe(self._subscription)


ASYNC_STEPS: dict[type, Callable[[AsyncScope, Any], Awaitable[Any]]] = {
    Subscribe: AsyncScope.subscribe,
    NextMessage: AsyncScope.next_message,
    EnterContext: AsyncScope.enter,
    ExitContext: AsyncScope.leave,
}
