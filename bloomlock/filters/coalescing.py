"""Concurrent single calls on one asyncio filter go out together.

A call that finds the filter idle is carried out at once, by its own task, as if there were no
others. Calls that come while one is under way wait; when it is answered all that wait go out as
one batch, and what comes meanwhile is the next. No timer is involved: how much goes out together
follows from how long a round trip takes and how many call.

Nothing depends on one caller's life. Batches are carried out by a task of their own. A caller that
is cancelled while it waits is taken out, and its item is never sent; one whose call is under way
gives up its answer and no other caller's.

With the lock strategy every call is carried out by that task, and to its end: what is cut off
half-way leaves a lock behind, and all other clients would wait until its lease is over. With the
locks of a factory each call is made as if there were no others, because such locks are taken one
after the other in a batch, and side by side by calls of their own.

The answers of a batch are those of the calls carried out one after the other, in order:

    1. each `exists` whose item no earlier call of the batch adds is asked. Done before all adds, it
       cannot see a later one; an earlier add of another item concerns it only as a false positive.
    2. the adds are carried out, in order; of several adds of one item the first is answered "new".
    3. each `exists` whose item an earlier call of the batch adds is True if that add succeeded.

An error about the batch as a whole reaches each caller as an exception object of its own.
"""

from __future__ import annotations

import asyncio
import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.errors import (
    BatchError,
    BloomlockError,
    CapacityError,
    FilterLostError,
    OutcomeUnknownError,
    PartialResultError,
)
from bloomlock.hashing import encode_item

from . import answers
from .follow import outcome_unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Core

    from .state import FilterState

T = TypeVar("T")

CALLS_PER_BATCH = 512
"""Bounds how long the last caller of a batch waits for its first; and of a thousand callers half
wake up, and call again, while the server works for the other half."""


UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)
Call: TypeAlias = tuple[str | bytes, bool]
"""A checked item, and whether it is to be added (else it is asked for)."""
Outcome: TypeAlias = bool | Exception | None
Calls: TypeAlias = list[tuple[asyncio.Future[bool], Call]]


class CallBatch:
    """A batch of calls.

    Attributes:
        outcomes: For each call its answer or its error; None: nothing is known to have been sent
            for it, it has to be carried out again. Of a batch that ran to its end at least
            one call has an outcome.
    """

    def __init__(self, state: FilterState, calls: Sequence[Call]) -> None:
        self.outcomes: list[Outcome] = [None] * len(calls)
        self._state = state
        self._calls = calls
        self._adds: list[int] = []
        self._adding = False

    @property
    def all_answered(self) -> bool:
        """Whether no call failed or has to be carried out again."""
        return all(isinstance(outcome, bool) for outcome in self.outcomes)

    def run(self) -> Core[None]:
        """Carry out the calls."""
        self._adds = [index for index, (_, write) in enumerate(self._calls) if write]
        later: list[tuple[int, int]] = []
        if len(self._adds) < len(self._calls):
            asks, later = self._asks_before_and_after_adds()
            if asks:
                yield from self._ask(asks)
        if self._adds:
            self._adding = True
            yield from self._add()
        for index, add in later:
            if isinstance(self.outcomes[add], bool):
                self.outcomes[index] = True

    def _asks_before_and_after_adds(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the asks to carry out, and the others, each with the add of its item."""
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
        return before, after

    def fail(self, error: Exception) -> None:
        """Settle all calls of a batch that could not be begun."""
        for index in self._unknown_of(range(len(self._calls))):
            self.outcomes[index] = self._own(error)

    def give_up(self) -> None:
        """Settle the adds of a batch that was stopped on its way: they may have happened."""
        if not self._adding:
            return
        name = self._state.keys.name
        for index in self._adds:
            if self.outcomes[index] is None:
                self.outcomes[index] = self._state.on_unknown == "new" or OutcomeUnknownError(
                    f"an item was being added to filter {name!r} together with others when that "
                    "was cancelled; the update may or may not have happened",
                    [None],
                )

    def _ask(self, indices: list[int]) -> Core[None]:
        items = [self._calls[index][0] for index in indices]
        try:
            if len(items) == 1:
                seen = [(yield from answers.exists(self._state, items[0]))]
            else:
                seen = yield from answers.exists_many(self._state, items)
        except Exception as error:  # noqa: BLE001 - it is the callers'
            self._share(indices, error)
        else:
            self._take(indices, seen)

    def _add(self) -> Core[None]:
        items = [self._calls[index][0] for index in self._adds]
        try:
            if len(items) == 1:
                new = [(yield from answers.add(self._state, items[0]))]
            else:
                new = yield from answers.add_many(self._state, items)
        except CapacityError as error:
            self._take(self._adds, error.results)
            yield from self._refuse(error)
        except Exception as error:  # noqa: BLE001 - it is the callers'
            self._share(self._adds, error)
        else:
            self._take(self._adds, new)

    def _refuse(self, error: CapacityError) -> Core[None]:
        """Accept seen items and refuse new ones in a full filter, as an add of each alone does."""
        left = self._unknown_of(self._adds)
        yield from self._ask(left)
        for index in left:
            if self.outcomes[index] is True:
                self.outcomes[index] = False
            elif self.outcomes[index] is False:
                # If the filter was cleared meanwhile, the item may be added after all.
                self.outcomes[index] = self._own(error) if self._state.fill.refusing else None

    def _take(self, indices: Sequence[int], known: Sequence[bool | None]) -> None:
        # An error knows the answers of the first items only.
        for index, answer in zip(indices, known, strict=False):
            self.outcomes[index] = answer

    def _share(self, indices: list[int], error: Exception) -> None:
        """Give the error to each call it is about; what was never sent may still be."""
        known: Sequence[bool | None] = ()
        if isinstance(error, PartialResultError) and len(indices) > 1:
            known = error.results
        self._take(indices, known)
        # A server that cannot be reached would let each of the rest wait in vain as well.
        sent = indices if isinstance(error, UNREACHABLE) or not known else indices[: len(known)]
        for index in self._unknown_of(sent):
            self.outcomes[index] = self._own(error)

    def _own(self, error: Exception) -> Exception:
        """Return the error as an add of one item raises it, for one caller alone."""
        if isinstance(error, BatchError) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        is_lost = isinstance(error, FilterLostError)
        if (
            isinstance(error, OutcomeUnknownError)
            and not is_lost
            and isinstance(error.__cause__, Exception)
        ):
            made = outcome_unknown(self._state.keys.name, 1, error.__cause__)
            made.results = [None]
            return made
        return own_error(error)

    def _unknown_of(self, indices: Sequence[int]) -> list[int]:
        return [index for index in indices if self.outcomes[index] is None]


def own_error(error: Exception) -> Exception:
    """Return the error as the call of one item raises it, for one caller alone.

    An exception raised in many tasks would collect the tracebacks of them all.
    """
    try:
        made = copy.copy(error)
    except Exception:  # noqa: BLE001 - of a class whose constructor wants more than its arguments
        made = type(error).__new__(type(error), *error.args)
        made.__dict__.update(error.__dict__)
    made.__cause__, made.__suppress_context__ = error.__cause__, error.__suppress_context__
    # They are about the batch, of which the caller knows nothing.
    made.__dict__.pop("__notes__", None)
    if isinstance(made, CapacityError):
        made.results = []
    elif isinstance(made, PartialResultError):
        made.results = [None]
    return made


class Run(Protocol):
    """Carries out a state."""

    async def __call__(self, core: Core[T]) -> T:
        """Return its result."""


class Coalescer:
    """The single calls of one filter on one event loop.

    Attributes:
        loop: The event loop that was running when it was made.
    """

    def __init__(self, state: FilterState, run: Run) -> None:
        self.loop = asyncio.get_running_loop()
        self._state = state
        self._run = run
        self._locks = state.strategy.is_exclusive
        self._apart = not state.strategy.may_share_calls
        # Whether a call or a batch is under way, or about to be.
        self._busy = False
        self._closed = False
        self._waiting: dict[asyncio.Future[bool], Call] = {}
        self._under_way: dict[asyncio.Future[bool], Call] = {}
        self._task: asyncio.Task[None] | None = None

    async def call(self, item: str | bytes, *, write: bool) -> bool:
        """Add an item (True: new) or ask for it (True: seen)."""
        if self._apart:
            return await self._call_alone(item, write)
        if not self._busy and not self._locks:
            self._busy = True
            try:
                return await self._call_alone(item, write)
            finally:
                self._go_on()
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

    async def _call_alone(self, item: str | bytes, write: bool) -> bool:
        step = answers.add if write else answers.exists
        return await self._run(step(self._state, item))

    def close(self) -> None:
        """Send nothing more; calls that wait raise BloomlockError."""
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
        """Take out a call whose caller is gone."""
        if future.done() and not future.cancelled():
            # Answered at the same moment; asyncio logs errors that are not looked at.
            future.exception()
            return
        if self._waiting.pop(future, None) is not None:
            return
        known = self._under_way.pop(future, None) is not None
        if known and not self._under_way and self._task is not None and not self._locks:
            # The batch has no callers left; a server that hangs must not hold up the next.
            self._task.cancel()

    def _go_on(self) -> None:
        """Start a batch if calls wait; what was under way is over."""
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
            batch, calls = self._next_batch()
            await self._carry_out(batch, calls)
            if self._waiting and batch.all_answered:
                # The next batch is on its way when the callers of this one wake up.
                self.loop.call_soon(self._hand_out, calls, batch)
                continue
            self._hand_out(calls, batch)
            # Those who were answered come back first, so that their next calls go out together.
            await asyncio.sleep(0)

    def _next_batch(self) -> tuple[CallBatch, Calls]:
        # Some may have been cancelled just now, and not have come to leave by themselves.
        waiting = {future: call for future, call in self._waiting.items() if not future.done()}
        self._under_way, self._waiting = waiting, {}
        if len(waiting) > CALLS_PER_BATCH:
            self._under_way = dict(islice(waiting.items(), CALLS_PER_BATCH))
            self._waiting = dict(islice(waiting.items(), CALLS_PER_BATCH, None))
        batch = CallBatch(self._state, list(self._under_way.values()))
        return batch, list(self._under_way.items())

    async def _carry_out(self, batch: CallBatch, calls: Calls) -> None:
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

    def _hand_out(self, calls: Calls, batch: CallBatch) -> None:
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
