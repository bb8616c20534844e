# Written by tools/async_to_sync.py from bloomlock/runtime/_async/scopes.py; change that.
"""The steps of a core that are no requests: subscriptions, context managers, what has no server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bloomlock.effects import (
    Behind,
    Call,
    Clock,
    Elsewhere,
    EnterContext,
    ExitContext,
    FanOut,
    IsCluster,
    NextMessage,
    Parallel,
    Pause,
    Subscribe,
)
from bloomlock.errors import ConfigurationError
from bloomlock.runtime.clock import boot_clock, sleep

if TYPE_CHECKING:
    from bloomlock.effects import Effect
    from bloomlock.runtime._sync.driver import Driver


class Scope:
    """Carries out the steps of one core that are no requests, and closes what they have opened."""

    def __init__(self, runtime: Driver) -> None:
        self._runtime = runtime
        self._subscription: Any = None
        self._entered: list[Any] = []

    def carry_out(self, step: Effect) -> Any:  # noqa: C901, PLR0911, PLR0912 - one for each step
        runtime = self._runtime
        match step:
            case Parallel():
                return runtime.ask_all(step.requests)
            case Pause():
                return sleep(step.seconds)
            case Clock():
                return boot_clock
            case IsCluster():
                return runtime.is_cluster
            case Subscribe():
                self._subscription = self._subscription or runtime.subscribe(step)
                return self._subscription.channel if self._subscription else b""
            case NextMessage():
                if self._subscription is None:
                    return None
                return self._subscription.wait(step.addressee, step.seconds)
            case Behind():
                return runtime._background.run_behind(runtime.run, step)
            case FanOut():
                return runtime._background.fan_out(runtime.members, step)
            case Call():
                return step.function(*step.args)
            case Elsewhere():
                try:
                    return step.run(step.core), None
                except Exception as error:  # noqa: BLE001 - the core's to judge
                    return None, error
            case EnterContext():
                return self._enter(step.manager)
            case ExitContext():
                try:
                    self._entered.pop().__exit__(None, None, None)
                except Exception as error:  # noqa: BLE001 - the core's to judge
                    return error
                return None

    def _enter(self, manager: Any) -> Exception | None:
        if not hasattr(type(manager), "__enter__"):
            return _not_a_manager(manager, "a context manager")
        try:
            manager.__enter__()
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        self._entered.append(manager)
        return None

    def close(self) -> None:
        try:
            while self._entered:
                self._entered.pop().__exit__(*sys.exc_info())
        finally:
            if self._subscription is not None:
                self._runtime.unsubscribe(self._subscription)


def _not_a_manager(manager: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"factory must return {wanted} for each name, not {manager!r:.80}")
