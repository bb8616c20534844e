"""Concurrent single calls on one asyncio filter go out together.

A call that finds the filter idle is carried out at once, by its own task. Calls that come while one
is under way wait for it, and go out as one batch, by a task of its own. No timer is involved.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from bloomlock.effects import shorten_traceback
from bloomlock.errors import (
    BatchError,
    BloomlockError,
    CapacityError,
    OutcomeUnknownError,
    PartialResultError,
)
from bloomlock.hashing import encode_item

from . import answers
from .batches import outcome_unknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bloomlock.effects import Core

    from .state import FilterState

CALLS_PER_BATCH = 512
"""Bounds how long the last caller of a batch waits for its first; and of a thousand callers half
wake up, and call again, while the server works for the other half."""

Call: TypeAlias = tuple[str | bytes, bool]
"""A checked item, and whether the call adds it (else it tests it)."""
Calls: TypeAlias = dict[asyncio.Future[bool], Call]


class CallBatch:
    """A batch of calls, answered as if they were carried out one after the other.

    `outcomes` has for each call its answer or its error; None: nothing is known to have been sent
    for it, it has to be carried out again. Of a batch that ran to its end one has an outcome.
    """

    def __init__(self, state: FilterState, calls: Sequence[Call]) -> None:
        self.outcomes: list[bool | Exception | None] = [None] * len(calls)
        self._state = state
        self._calls = calls
        self._adds = [index for index, (_, write) in enumerate(calls) if write]
        self._is_adding = False

    def run(self) -> Core[None]:
        before, after = [], []
        first_adds: dict[bytes, int] = {}
        for index, (item, write) in enumerate(self._calls):
            data = encode_item(item)
            if write:
                first_adds.setdefault(data, index)
            elif data in first_adds:
                after.append((index, first_adds[data]))
            else:
                before.append(index)
        # A test of an item that no earlier call adds goes before all adds, so it sees no later one.
        if before:
            yield from self._call(before, write=False)
        if self._adds:
            self._is_adding = True
            yield from self._call(self._adds, write=True)
        # What an earlier call adds is there if that add succeeded.
        for index, add in after:
            if isinstance(self.outcomes[add], bool):
                self.outcomes[index] = True

    def fail(self, error: Exception) -> None:
        self._settle(range(len(self._calls)), error)

    def give_up(self) -> None:
        """Settle the adds of a batch that was stopped on its way: they may have happened."""
        for index in self._left(self._adds) if self._is_adding else ():
            self.outcomes[index] = self._state.on_unknown == "new" or OutcomeUnknownError(
                f"an item was being added to filter {self._state.keys.name!r} together with others "
                "when that was cancelled; the update may or may not have happened",
                [None],
            )

    def _call(self, indices: list[int], *, write: bool) -> Core[None]:
        known: Sequence[bool | None]
        failure: Exception | None = None
        items = [self._calls[index][0] for index in indices]
        try:
            if len(items) == 1:
                one = answers.add if write else answers.exists
                known = [(yield from one(self._state, items[0]))]
            else:
                many = answers.add_many if write else answers.exists_many
                known = yield from many(self._state, items)
        except Exception as error:  # noqa: BLE001 - it is the callers'
            failure = error
            known = error.results if isinstance(error, PartialResultError) else ()
        # An error knows the answers of the first items only.
        for index, answer in zip(indices, known, strict=False):
            self.outcomes[index] = answer
        if isinstance(failure, CapacityError):
            yield from self._refuse(failure)
        elif failure is not None:
            # What comes after the known answers was not sent, and goes with the next batch.
            self._settle(indices[: len(known)] if known else indices, failure)

    def _refuse(self, error: CapacityError) -> Core[None]:
        """Accept seen items and refuse new ones in a full filter, as an add of each alone does."""
        left = self._left(self._adds)
        yield from self._call(left, write=False)
        for index in left:
            if self.outcomes[index] is True:
                self.outcomes[index] = False
            elif self.outcomes[index] is False:
                # If the filter was cleared in between, the item may be added after all.
                is_full = self._state.fill.refusing
                self.outcomes[index] = self._own(error) if is_full else None

    def _settle(self, indices: Sequence[int], error: Exception) -> None:
        for index in self._left(indices):
            self.outcomes[index] = self._own(error)

    def _left(self, indices: Sequence[int]) -> list[int]:
        return [index for index in indices if self.outcomes[index] is None]

    def _own(self, error: Exception) -> Exception:
        """Return the error as the call of one item raises it, for one caller alone.

        An exception raised in many tasks would collect the tracebacks of them all.
        """
        if isinstance(error, BatchError) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        cause = error.__cause__
        if type(error) is OutcomeUnknownError and isinstance(cause, Exception):
            made: Exception = outcome_unknown(self._state.keys.name, 1, cause)
        else:
            made = type(error).__new__(type(error), *error.args)
            made.__dict__.update(error.__dict__)
            made.__cause__, made.__suppress_context__ = cause, error.__suppress_context__
            # They are about the batch, of which the caller knows nothing.
            made.__dict__.pop("__notes__", None)
        if isinstance(made, PartialResultError):
            made.results = [] if isinstance(made, CapacityError) else [None]
        shorten_traceback(made)
        return made


class Coalescer:
    """The single calls of one filter on one event loop."""

    def __init__(self, state: FilterState, run: Callable[[Core[Any]], Awaitable[Any]]) -> None:
        self.loop = asyncio.get_running_loop()
        self._state = state
        self._run = run
        # What is cut off half-way leaves a lock behind, and all others would wait for its lease.
        self._locks = state.strategy.is_exclusive
        # Whether a call or a batch is under way, or about to be.
        self._busy = False
        self._closed = False
        self._waiting: Calls = {}
        self._under_way: Calls = {}
        self._task: asyncio.Task[None] | None = None

    async def call(self, item: str | bytes, *, write: bool) -> bool:
        step = answers.add if write else answers.exists
        answer: bool
        if not self._busy and not self._locks:
            self._busy = True
            try:
                answer = await self._run(step(self._state, item))
            finally:
                self._go_on()
            return answer
        # What is no item must not fail the batch of other callers.
        data = encode_item(item)
        future: asyncio.Future[bool] = self.loop.create_future()
        # A near-cache knows items as they were given.
        self._waiting[future] = (data if self._state.caching is None else item, write)
        if not self._busy:
            self._go_on()
        try:
            return await future
        except asyncio.CancelledError:
            self._leave(future)
            raise

    def close(self) -> None:
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_exception(
                    BloomlockError(
                        f"filter {self._state.keys.name!r} was closed while this call waited for "
                        "those before it; nothing was sent for it"
                    )
                )

    def _leave(self, future: asyncio.Future[bool]) -> None:
        if future.done() and not future.cancelled():
            # Answered at the same moment; asyncio logs errors that are not looked at.
            future.exception()
        elif self._waiting.pop(future, None) is None:
            known = self._under_way.pop(future, None) is not None
            if known and not self._under_way and self._task is not None and not self._locks:
                # The batch has no callers left; a server that hangs must not hold up the next.
                self._task.cancel()

    def _go_on(self) -> None:
        """Start a batch if calls wait; what was under way is over."""
        self._busy = bool(self._waiting) and not self.loop.is_closed()
        if self._busy:
            self._task = self.loop.create_task(self._carry_out_batches())
            # The loop keeps weak references to tasks only. A cancelled task may never have begun,
            # so this is no `finally` in it.
            _TASKS.add(self._task)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        _TASKS.discard(task)
        self._task = None
        self._go_on()

    async def _carry_out_batches(self) -> None:
        while self._waiting:
            # Some may have been cancelled just now, and not have come to leave by themselves.
            waiting = [one for one in self._waiting.items() if not one[0].done()]
            calls = waiting[:CALLS_PER_BATCH]
            self._under_way, self._waiting = dict(calls), dict(waiting[CALLS_PER_BATCH:])
            batch = CallBatch(self._state, [call for _, call in calls])
            try:
                await self._run(batch.run())
            except Exception as error:  # noqa: BLE001 - the callers', like those handed out
                batch.fail(error)
            except BaseException:
                batch.give_up()
                self._hand_out(calls, batch)
                raise
            finally:
                self._under_way = {}
            if self._waiting and all(isinstance(one, bool) for one in batch.outcomes):
                # The next batch is on its way when the callers of this one wake up.
                self.loop.call_soon(self._hand_out, calls, batch)
                continue
            self._hand_out(calls, batch)
            # Those who were answered come back first, so that their next calls go out together.
            await asyncio.sleep(0)

    def _hand_out(self, calls: list[tuple[asyncio.Future[bool], Call]], batch: CallBatch) -> None:
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
