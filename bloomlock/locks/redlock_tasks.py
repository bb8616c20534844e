"""Drives what is asked of several servers at once, each in a task.

A server that does not answer keeps its task for as long as its client waits for a reply, but no
longer than the lease that was asked for; never the caller.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from bloomlock.effects import Core, Limit, Pause
from bloomlock.runtime.clock import boot_clock

from .redlock_asking import AskEach, end_of_grace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.runtime.tasks import Tasks

T = TypeVar("T")


class AsyncCrew:
    """Runs cores that ask several servers, by the runtime of each."""

    def __init__(self, runtimes: Sequence[Tasks]) -> None:
        """Keep the runtimes."""
        self.runtimes = runtimes
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, core: Core[T]) -> T:
        """Carry out the steps of a core and return its result."""
        step: Any
        try:
            step = next(core)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = core.send(None)
                elif isinstance(step, Limit):
                    # Each server has a time limit of its own here.
                    step = core.send(None)
                else:
                    step = core.send(await self._ask(step))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def by_server(self, items: list[T], key_of: Callable[[T], str]) -> list[list[T]]:  # noqa: ARG002 - each item goes to every server
        """Return the items in groups, each of which one request may carry: alone."""
        return [[item] for item in items]

    async def close(self, seconds: float) -> None:
        """Wait for what is still being asked in the background; then give it up."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _ask(self, step: AskEach) -> list[Any]:
        began = boot_clock()
        answers: list[Any] = [None] * len(step.cores)
        servers: dict[asyncio.Task[Any], int] = {}
        for server, core in enumerate(step.cores):
            work = self._errand(server, core, step.lines[server], step.patience)
            task = asyncio.get_running_loop().create_task(work, name="bloomlock-redlock")
            step.lines[server] = task
            servers[task] = server
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        out, until = set(servers), step.until
        while out:
            now = boot_clock()
            if until == step.until and step.enough(answers):
                until = end_of_grace(step, began, now)
            done, out = await asyncio.wait(
                out, timeout=max(0.0, until - now), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for task in done:
                if not task.cancelled():
                    answers[servers[task]] = task.result()
        return answers

    async def _errand(
        self, server: int, core: Core[Any], before: asyncio.Task[Any] | None, patience: float
    ) -> Any:
        if before is not None:
            await asyncio.wait([before])
        try:
            async with asyncio.timeout(patience):
                return await self.runtimes[server].run(core)
        except Exception as error:  # noqa: BLE001 - whoever asked is told what came of it
            return error
