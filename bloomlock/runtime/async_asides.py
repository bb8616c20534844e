"""The steps of a core that are no requests, for asyncio; see asides.py."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from bloomlock.effects import (
    Behind,
    Clock,
    Effect,
    EnterContext,
    ExitContext,
    FreeMemory,
    Pause,
    Subscribe,
)

from .asides import free_memory, not_a_manager
from .clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .hub import Hub


class AsyncAsides:
    """What one run of a core has besides its requests.

    Args:
        find_hub: Gives the client's hub, joined, or None.
        connects_by: Gives the parameters of the connections to the server of a key.
        run_behind: Carries out a Behind.
    """

    def __init__(
        self,
        find_hub: Callable[[Subscribe], Awaitable[Hub | None]],
        connects_by: Callable[[str], Awaitable[Mapping[str, Any]]],
        run_behind: Callable[[Behind], Awaitable[None]],
    ) -> None:
        """Start with nothing."""
        self._run_behind = run_behind
        self._find_hub = find_hub
        self._connects_by = connects_by
        self._hub: Hub | None = None
        self._entered: list[Any] = []

    async def carry_out(self, step: Effect) -> Any:
        """Carry out a step and return its answer."""
        if isinstance(step, (Pause, Behind)):
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                await self._run_behind(step)
        elif isinstance(step, Subscribe):
            self._hub = self._hub or await self._find_hub(step)
            return self._hub.channel if self._hub else b""
        elif isinstance(step, (FreeMemory, Clock)):
            if isinstance(step, FreeMemory):
                answer: Any = free_memory(await self._connects_by(step.key))
            else:
                answer = boot_clock
            return answer
        elif isinstance(step, (EnterContext, ExitContext)):
            return await (
                self._enter(step.manager) if isinstance(step, EnterContext) else self._leave()
            )
        elif self._hub is not None:
            return await self._hub.wait(step.addressee, step.seconds)
        return None

    async def _enter(self, manager: Any) -> Exception | None:
        if not hasattr(type(manager), "__aenter__"):
            return not_a_manager(manager, "an asynchronous context manager")
        try:
            await manager.__aenter__()
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        self._entered.append(manager)
        return None

    async def _leave(self) -> Exception | None:
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
            if self._hub is not None:
                self._hub.part()
