"""The watchdog of an event loop; see watchdog.py, whose thread watches the holds of threads."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from bloomlock.runtime.clock import boot_clock

from .reports import AT_END_SECONDS, REPORTS
from .watchdog import (
    LONGEST_SLEEP,
    Schedule,
    give_back,
    give_up,
    key_of,
    lose_all,
    renew,
    report_left,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from bloomlock.effects import AnyRuntime

    from .hold import Hold
    from .watchdog import Watched


class AsyncWatchdog(Schedule):
    """Watches the holds of all tasks of one loop; get it by `watchdog_of_loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        # The loop must not be kept alive by what is kept for it.
        self._loop = weakref.ref(loop)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_end: AsyncGenerator[None, None] | None = None

    def add(self, hold: Hold, session: Watched, runtime: AnyRuntime) -> None:
        super().add(hold, session, runtime)
        self._set_timer()
        if self._at_end is None:
            # A loop that ends closes its asynchronous generators while it still runs.
            self._at_end = self._give_back_at_end()
            with contextlib.suppress(StopIteration):
                self._at_end.__anext__().send(None)

    async def _give_back_at_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._at_end = None
            until = boot_clock() + AT_END_SECONDS
            abandoned = self.take_abandoned(_task_is_over)
            before = asyncio.all_tasks()
            report_left(
                await asyncio.gather(
                    *(hold.runtime.run(give_back(hold, until)) for hold in abandoned),
                    return_exceptions=True,
                )
            )
            # The loop has cancelled its tasks already; what a silent server keeps is of later.
            for task in (late := asyncio.all_tasks() - before):
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _set_timer(self) -> None:
        loop = self._loop()
        if loop is None or not self._holds:
            return
        seconds = min(max(0.0, self.next_time() - boot_clock()), LONGEST_SLEEP)
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._look)

    @staticmethod
    def call(function: Callable[[], None]) -> None:
        """Call a function that runs the user's code, in the loop."""
        function()

    def _look(self) -> None:
        self._timer = None
        now = boot_clock()
        try:
            lose_all(self.over(now), self.remove)
            for (runtime, *_), holds in self.due(now).items():
                task = asyncio.get_running_loop().create_task(
                    self._renew(runtime, holds), name="bloomlock-renewal"
                )
                self._tasks.add(task)
                # Also of one that is cancelled before its first step.
                task.add_done_callback(partial(self._after_renewal, holds))
        finally:
            self._set_timer()

    async def _renew(self, runtime: Any, holds: list[Hold]) -> None:
        try:
            for part in runtime.by_server(holds, key_of):
                await runtime.run(renew(part, boot_clock, self.remove))
        except Exception:  # noqa: BLE001 - reported
            REPORTS.exception("lock", "renewing locks failed")

    def _after_renewal(self, holds: list[Hold], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        give_up(holds, boot_clock())
        self._set_timer()


def _task_is_over(owner: object) -> bool:
    return not isinstance(owner, asyncio.Future) or owner.done()


def watchdog_of_loop() -> AsyncWatchdog:
    loop = asyncio.get_running_loop()
    watchdog = _WATCHDOGS.get(loop)
    if watchdog is None:
        for other in list(_WATCHDOGS):
            # Its generator keeps a loop that was closed without being shut down.
            if other.is_closed():
                del _WATCHDOGS[other]
        watchdog = _WATCHDOGS[loop] = AsyncWatchdog(loop)
    return watchdog


_WATCHDOGS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWatchdog] = (
    weakref.WeakKeyDictionary()
)
