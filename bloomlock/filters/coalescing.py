"""Concurrent single calls on one asyncio filter go out together.

A call that finds the filter idle is carried out at once, by its own task. Calls that come while one
is under way wait for it, and go out as one batch, by a task of its own. No timer is involved.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from bloomlock.effects import Core

    from .state import FilterState

CALLS_PER_BATCH = 512
"""Bounds how long the last caller of a batch waits for its first; and of a thousand callers half
wake up, and call again, while the server works for the other half."""


class WaitingCall(NamedTuple):
    """A call that adds a checked item, or tests it, and the future that its caller awaits."""

    future: asyncio.Future[bool]
    item: str | bytes
    write: bool


class CallBatch:
    """A batch of calls, answered as if they were carried out one after the other.

    It has no test of an item that an earlier call adds, so all tests can go before all adds. A call
    that has no answer in the end was not sent, as far as is known, and is carried out again.
    """

    def __init__(self, state: FilterState, calls: Sequence[WaitingCall]) -> None:
        self._state = state
        self._calls = calls
        self._sent_adds: Sequence[WaitingCall] = ()

    def run(self) -> Core[None]:
        if tests := [call for call in self._calls if not call.write]:
            yield from self._carry_out(tests, write=False)
        if adds := [call for call in self._calls if call.write]:
            self._sent_adds = adds
            yield from self._carry_out(adds, write=True)

    def fail(self, error: Exception, calls: Sequence[WaitingCall] | None = None) -> None:
        for call in _unanswered(self._calls if calls is None else calls):
            call.future.set_exception(self._own(error))

    def give_up(self) -> None:
        """Answer the adds of a batch that was stopped on its way: they may have happened."""
        if self._state.on_unknown == "new":
            _answer(self._sent_adds, [True] * len(self._sent_adds))
        cause = BloomlockError("the task that added it was cancelled")
        self.fail(outcome_unknown(self._state.keys.name, 1, cause), self._sent_adds)

    def _carry_out(self, calls: Sequence[WaitingCall], *, write: bool) -> Core[None]:
        try:
            _answer(calls, (yield from self._ask(calls, write=write)))
        except CapacityError as error:
            _answer(calls, error.results)
            yield from self._refuse(_unanswered(calls), error)
        except PartialResultError as error:
            # What comes after the known answers was not sent, and goes with the next batch.
            _answer(calls, error.results)
            self.fail(error, calls[: len(error.results)] or calls)

    def _ask(self, calls: Sequence[WaitingCall], *, write: bool) -> Core[Sequence[bool]]:
        items = [call.item for call in calls]
        if len(items) == 1:
            one = answers.add if write else answers.exists
            return [(yield from one(self._state, items[0]))]
        many = answers.add_many if write else answers.exists_many
        return (yield from many(self._state, items))

    def _refuse(self, calls: Sequence[WaitingCall], error: CapacityError) -> Core[None]:
        """Accept seen items and refuse new ones in a full filter, as an add of each alone does."""
        seen = yield from self._ask(calls, write=False)
        _answer(calls, [False if is_seen else None for is_seen in seen])
        # If the filter was cleared in between, it may take the others after all.
        if self._state.fill.refusing:
            self.fail(error, calls)

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
        self._waiting: deque[WaitingCall] = deque()
        self._under_way: set[asyncio.Future[bool]] = set()
        self._task: asyncio.Task[None] | None = None

    async def call(self, item: str | bytes, *, write: bool) -> bool:
        if not self._busy and not self._locks:
            self._busy = True
            try:
                step = answers.add if write else answers.exists
                answer: bool = await self._run(step(self._state, item))
            finally:
                self._go_on()
            return answer
        # What is no item must not fail the batch of other callers.
        encode_item(item)
        future: asyncio.Future[bool] = self.loop.create_future()
        self._waiting.append(WaitingCall(future, item, write))
        if not self._busy:
            self._go_on()
        try:
            return await future
        except asyncio.CancelledError:
            self._leave(future)
            raise

    def close(self) -> None:
        self._closed = True
        for call in _unanswered(self._waiting):
            call.future.set_exception(
                BloomlockError(
                    f"filter {self._state.keys.name!r} was closed while this call waited for those "
                    "before it; nothing was sent for it"
                )
            )
        self._waiting.clear()

    def _leave(self, future: asyncio.Future[bool]) -> None:
        future.cancel()
        if not future.cancelled():
            # Answered at the same moment; asyncio logs errors that are not looked at.
            future.exception()
        elif future in self._under_way:
            self._under_way.remove(future)
            if not self._under_way and self._task is not None and not self._locks:
                # The batch has no callers left; a server that hangs must not hold up the next.
                self._task.cancel()

    def _go_on(self) -> None:
        """Start a task for the calls that wait; what was under way is over."""
        self._busy = bool(self._waiting) and not self.loop.is_closed()
        if self._busy:
            self._task = self.loop.create_task(self._carry_out_batches())
            # A cancelled task may never have begun, so this is no `finally` in it.
            self._task.add_done_callback(lambda _: self._go_on())

    async def _carry_out_batches(self) -> None:
        while self._waiting:
            if self._closed:
                self.close()
                return
            calls = self._take_batch()
            batch = CallBatch(self._state, calls)
            self._under_way = {call.future for call in calls}
            try:
                await self._run(batch.run())
            except Exception as error:  # noqa: BLE001 - the callers', like those handed out
                batch.fail(error)
            except BaseException:
                if not self.loop.is_closed():
                    batch.give_up()
                raise
            finally:
                self._under_way = set()
                # Before all that came later.
                self._waiting.extendleft(reversed(_unanswered(calls)))
            if not self._waiting:
                # Those who were answered come back first, so that their next calls go out together.
                await asyncio.sleep(0)

    def _take_batch(self) -> list[WaitingCall]:
        """Take the first calls but for those that were cancelled, up to a test of an added item."""
        calls: list[WaitingCall] = []
        added: set[bytes] = set()
        while self._waiting and len(calls) < CALLS_PER_BATCH:
            call = self._waiting[0]
            data = encode_item(call.item)
            if call.write:
                added.add(data)
            elif data in added:
                break
            self._waiting.popleft()
            if not call.future.done():
                calls.append(call)
        return calls


def _answer(calls: Sequence[WaitingCall], known: Sequence[bool | None]) -> None:
    # An error knows the answers of the first items only.
    for call, answer in zip(calls, known, strict=False):
        if answer is not None and not call.future.done():
            call.future.set_result(answer)


def _unanswered(calls: Iterable[WaitingCall]) -> list[WaitingCall]:
    return [call for call in calls if not call.future.done()]
