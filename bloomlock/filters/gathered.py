"""Single calls that go out together, and what each of them is answered. No asyncio here.

The answers are those of the calls carried out one after the other, in order. A batch may hold adds
and asks of the same item, so:

    1. each ask whose item no earlier call of the batch adds is asked. Done before all adds, it
       cannot see a later one; an earlier add of another item concerns it only as a false positive.
    2. the adds are added, in order; of several adds of one item the first is told "new".
    3. each ask whose item an earlier call of the batch adds is True if that add succeeded.

What a batch as a whole was told in one error is told to each call in an error of its own.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, TypeAlias

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.errors import BatchError, CapacityError, OutcomeUnknownError, PartialResultError
from bloomlock.items import encode_item

from . import answers
from .operation import outcome_unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Core

    from .core import FilterCore

UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)
Call: TypeAlias = tuple[str | bytes, bool]
"""A checked item, and whether it is to be added (else it is asked for)."""
Outcome: TypeAlias = bool | Exception | None


class Gathered:
    """A batch of calls.

    Attributes:
        outcomes: For each call its answer or its error; None: nothing is known to have been sent
            for it, it has to be carried out again. Of a batch that ran to its end at least
            one call has an outcome.
    """

    def __init__(self, core: FilterCore, calls: Sequence[Call]) -> None:
        """Start without outcomes."""
        self.outcomes: list[Outcome] = [None] * len(calls)
        self._core = core
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
        name = self._core.keys.name
        for index in self._adds:
            if self.outcomes[index] is None:
                self.outcomes[index] = self._core.on_unknown == "new" or OutcomeUnknownError(
                    f"an item was being added to filter {name!r} together with others when that "
                    "was cancelled; the update may or may not have happened",
                    [None],
                )

    def _ask(self, indices: list[int]) -> Core[None]:
        items = [self._calls[index][0] for index in indices]
        try:
            if len(items) == 1:
                seen = [(yield from answers.exists(self._core, items[0]))]
            else:
                seen = yield from answers.exists_many(self._core, items)
        except Exception as error:  # noqa: BLE001 - it is the callers'
            self._share(indices, error)
        else:
            self._take(indices, seen)

    def _add(self) -> Core[None]:
        items = [self._calls[index][0] for index in self._adds]
        try:
            if len(items) == 1:
                new = [(yield from answers.add(self._core, items[0]))]
            else:
                new = yield from answers.add_many(self._core, items)
        except CapacityError as error:
            self._take(self._adds, error.results)
            yield from self._refuse(error)
        except Exception as error:  # noqa: BLE001 - it is the callers'
            self._share(self._adds, error)
        else:
            self._take(self._adds, new)

    def _refuse(self, error: CapacityError) -> Core[None]:
        """Tell seen items from new ones in a full filter, as an add of each alone does."""
        left = self._unknown_of(self._adds)
        yield from self._ask(left)
        for index in left:
            if self.outcomes[index] is True:
                item = encode_item(self._calls[index][0])
                self.outcomes[index] = answers.take_unreported(self._core, item)
            elif self.outcomes[index] is False:
                # If the filter was cleared meanwhile, the item may be added after all.
                self.outcomes[index] = self._own(error) if self._core.fill.refusing else None

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
        if isinstance(error, OutcomeUnknownError) and isinstance(error.__cause__, Exception):
            made = outcome_unknown(self._core.keys.name, 1, error.__cause__)
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
