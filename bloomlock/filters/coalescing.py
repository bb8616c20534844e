"""Concurrent single calls on one asyncio filter go out together.

A call that finds the filter idle is carried out at once, by its own task, as if there were no
others. Calls that come while one is under way wait; when it is answered all that wait go out as
one batch, and what comes meanwhile is the next. No timer is involved: how much goes out together
follows from how long a round trip takes and how many call.

Nothing depends on one caller's life. Batches are carried out by a task of their own. A caller that
is cancelled while it waits is taken out, and its item is never sent; one whose call is under way
gives up its answer and nobody else's.

With the lock strategy every call is carried out by that task, and to its end: what is cut off
half-way leaves a lock behind, and everybody else would wait until its lease is over. With locks of
somebody else each call is made as if there were no others, because such locks are taken one
after the other in a batch, and side by side by calls of their own.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bloomlock.errors import BloomlockError
from bloomlock.items import encode_item

from . import answers
from .gathered import Call, Gathered

if TYPE_CHECKING:
    from bloomlock.effects import Core

    from .core import FilterCore

    Calls = list[tuple[asyncio.Future[bool], Call]]

T = TypeVar("T")

CALLS_PER_BATCH = 512
"""Bounds how long the last caller of a batch waits for its first; and of a thousand callers half
wake up, and call again, while the server works for the other half."""


class Run(Protocol):
    """Carries out a core."""

    async def __call__(self, core: Core[T]) -> T:
        """Return its result."""


class Coalescer:
    """The single calls of one filter on one event loop.

    Args:
        core: The filter.
        run: Carries out its cores.

    Attributes:
        loop: The event loop that was running when it was made.
    """

    def __init__(self, core: FilterCore, run: Run) -> None:
        """Start idle."""
        self.loop = asyncio.get_running_loop()
        self._core = core
        self._run = run
        self._locks = core.strategy.is_exclusive
        self._apart = not core.strategy.may_share_calls
        # Whether somebody's call or a batch is under way, or about to be.
        self._busy = False
        self._closed = False
        self._waiting: dict[asyncio.Future[bool], Call] = {}
        self._under_way: dict[asyncio.Future[bool], Call] = {}
        self._task: asyncio.Task[None] | None = None

    async def call(self, item: str | bytes, *, write: bool) -> bool:
        """Add an item (True: new) or ask for it (True: seen).

        Raises:
            BloomlockError: If the filter was closed before the call was sent.
            Exception: What the call raises when it is made alone.
        """
        if self._apart:
            return await self._call_alone(item, write)
        if not self._busy and not self._locks:
            self._busy = True
            try:
                return await self._call_alone(item, write)
            finally:
                self._go_on()
        # What is no item harms nobody else's batch.
        data = encode_item(item)
        future: asyncio.Future[bool] = self.loop.create_future()
        # A near-cache knows items as they were given.
        self._waiting[future] = (data if self._core.caching is None else item, write)
        if not self._busy:
            self._go_on()
        try:
            return await future
        except asyncio.CancelledError:
            self._leave(future)
            raise

    async def _call_alone(self, item: str | bytes, write: bool) -> bool:
        step = answers.add if write else answers.exists
        return await self._run(step(self._core, item))

    def close(self) -> None:
        """Send nothing more; calls that wait raise BloomlockError."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_exception(
                    BloomlockError(
                        f"filter {self._core.keys.name!r} was closed while this call waited for "
                        "those before it; nothing was sent for it"
                    )
                )

    def _leave(self, future: asyncio.Future[bool]) -> None:
        """Take out a call whose caller is gone."""
        if future.done() and not future.cancelled():
            # Answered at the same moment; asyncio complains of errors that nobody looked at.
            future.exception()
            return
        if self._waiting.pop(future, None) is not None:
            return
        known = self._under_way.pop(future, None) is not None
        if known and not self._under_way and self._task is not None and not self._locks:
            # Nobody is left whom the batch is for; a server that hangs must not hold up the next.
            self._task.cancel()

    def _go_on(self) -> None:
        """What was under way is over: start a batch if somebody waits."""
        self._busy = bool(self._waiting) and not self.loop.is_closed()
        if not self._busy:
            return
        self._task = self.loop.create_task(self._carry_out_batches())
        # The loop keeps weak references to tasks only. That a cancelled task may never have begun
        # is why this is no `finally` in it.
        _TASKS.add(self._task)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        _TASKS.discard(task)
        self._task = None
        self._go_on()

    async def _carry_out_batches(self) -> None:
        while self._waiting:
            batch, calls = self._board()
            await self._carry_out(batch, calls)
            if self._waiting and batch.all_answered:
                # The next batch is on its way when the callers of this one wake up.
                self.loop.call_soon(self._hand_out, calls, batch)
                continue
            self._hand_out(calls, batch)
            # Those who were answered come back first, so that their next calls go out together.
            await asyncio.sleep(0)

    def _board(self) -> tuple[Gathered, Calls]:
        # Some may have been cancelled just now, and not have come to leave by themselves.
        waiting = {future: call for future, call in self._waiting.items() if not future.done()}
        self._under_way, self._waiting = waiting, {}
        if len(waiting) > CALLS_PER_BATCH:
            self._under_way = dict(islice(waiting.items(), CALLS_PER_BATCH))
            self._waiting = dict(islice(waiting.items(), CALLS_PER_BATCH, None))
        gathered = Gathered(self._core, list(self._under_way.values()))
        return gathered, list(self._under_way.items())

    async def _carry_out(self, batch: Gathered, calls: Calls) -> None:
        try:
            await self._run(batch.run())
        except Exception as error:  # noqa: BLE001 - the callers', like those the batch hands out
            batch.fail(error)
        except BaseException:
            batch.give_up()
            self._hand_out(calls, batch)
            raise
        finally:
            self._under_way = {}

    def _hand_out(self, calls: Calls, batch: Gathered) -> None:
        if self.loop.is_closed():
            return
        again = {}
        for (future, call), outcome in zip(calls, batch.outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, bool):
                future.set_result(outcome)
            elif outcome is None:
                again[future] = call
            else:
                future.set_exception(outcome)
        if again:
            # Before all that came later.
            self._waiting = again | self._waiting
            if self._closed:
                self.close()


_TASKS: set[asyncio.Task[Any]] = set()
