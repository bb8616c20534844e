"""What is begun in asyncio and goes on, whatever becomes of its caller."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from .clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from bloomlock.effects import AsyncRuntime, Behind, Core, FanOut

T = TypeVar("T")
logger = logging.getLogger("bloomlock.runtime")


GRACE_SECONDS = 1.0
"""How long a caller that is cancelled waits at most for what must not stop half-way."""

_GO_ON: set[asyncio.Task[Any]] = set()


async def finish(work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Await something to its end, however often the caller is cancelled meanwhile.

    With `seconds` the work goes on alone when the caller waited that long after it was cancelled.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    until = float("inf")
    while not task.done():
        left = until - loop.time()
        if left <= 0 and cancelled is not None:
            _GO_ON.add(task)
            task.add_done_callback(_forget)
            raise cancelled
        try:
            await asyncio.wait((task,), timeout=left if left < float("inf") else None)
        except asyncio.CancelledError as error:
            if cancelled is None and seconds is not None:
                until = loop.time() + seconds
            cancelled = error
    if task.cancelled():
        raise asyncio.CancelledError
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()


class Background:
    """Tasks that go on without being awaited: a loop keeps its tasks by weak references."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Keep a task until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something and keep it until it ends."""
        task = asyncio.create_task(work, name="bloomlock-behind")
        self.add(task)
        return task

    async def end(self, seconds: float) -> None:
        """Wait for all that goes on; cancel what does not end in time."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def run_behind(self, run: Callable[[Core[None]], Awaitable[None]], step: Behind) -> None:
        """Run a core after what goes on in a line; wait for its end, but not for long."""
        task = self.start(_run_after(step.line[0], run, step.core))
        step.line[0] = task
        await asyncio.wait((task,), timeout=max(0.0, step.seconds))

    async def fan_out(self, runtimes: Sequence[AsyncRuntime], step: FanOut) -> list[Any]:
        """Run a core by each of the runtimes; one that does not end in time keeps its task."""
        began = boot_clock()
        answers: list[Any] = [None] * len(step.cores)
        servers: dict[asyncio.Task[Any], int] = {}
        for server, core in enumerate(step.cores):
            line = step.lines[server]
            task = self.start(_run_at(runtimes[server], core, line[0], step.background_s))
            line[0] = task
            servers[task] = server
        out, until = set(servers), step.until
        while out:
            now = boot_clock()
            if until == step.until and step.is_enough(answers):
                until = step.end_of_grace(began, now)
            done, out = await asyncio.wait(
                out, timeout=max(0.0, until - now), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for task in done:
                if not task.cancelled():
                    answers[servers[task]] = task.result()
        return answers


async def _run_after(
    before: asyncio.Task[Any] | None,
    run: Callable[[Core[None]], Awaitable[None]],
    core: Core[None],
) -> None:
    if before is not None:
        await asyncio.wait((before,))
    try:
        await run(core)
    except Exception:
        logger.exception("failed to release a lock or claim; it expires by itself")


async def _run_at(
    runtime: AsyncRuntime,
    core: Core[Any],
    before: asyncio.Task[Any] | None,
    background_s: float,
) -> Any:
    if before is not None:
        await asyncio.wait([before])
    try:
        async with asyncio.timeout(background_s):
            return await runtime.run(core)
    except Exception as error:  # noqa: BLE001 - an answer of the FanOut
        return error


def _forget(task: asyncio.Task[Any]) -> None:
    _GO_ON.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("what went on after its caller was cancelled failed: %s", error)
