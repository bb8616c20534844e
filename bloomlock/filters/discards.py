"""How items are discarded: one script for the items of each shard makes their tombstones.

An object sets the flag in all shards before its first discard in a generation; that it finds one
with the flag proves nothing, as who set it may have died before the next. So when a `discard` has
returned, every later reply of any shard has the flag, and no near-cache goes on without it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from bloomlock.commands import answer_of, in_parallel
from bloomlock.descriptor import has_discards, unflagged
from bloomlock.effects import ConnectionLost
from bloomlock.errors import OutcomeUnknownError, PartialResultError, batch_error
from bloomlock.hashing import check_items, encode_item, encode_items, pick
from bloomlock.strategies.script import DISCARD as OPERATION
from bloomlock.strategies.script import ask_shard

from .answers import exists_many
from .batches import before_adding, fail_after
from .state import in_one_generation
from .support import DISCARD, check_support

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core

    from .generation import View
    from .state import FilterState

    Item = str | bytes

ITEMS_PER_CHUNK = 10_000
NEEDS = "discard needs"


def discard(state: FilterState, item: Item) -> Core[bool]:
    check_support(DISCARD, state.strategy.name)
    (answer,) = yield from _discard_chunk(state, [encode_item(item)])
    return answer


def discard_many(state: FilterState, items: Iterable[Item]) -> Core[list[bool]]:
    check_items(items)
    check_support(DISCARD, state.strategy.name)
    results: list[bool] = []
    stream = iter(items)
    while taken := list(islice(stream, ITEMS_PER_CHUNK)):
        try:
            encoded = encode_items(taken, len(results))
            results += yield from _discard_chunk(state, encoded)
        except Exception as error:  # noqa: BLE001 - raised again
            fail_after(results, error)
    return results


def _discard_chunk(state: FilterState, items: Sequence[bytes]) -> Core[list[bool]]:
    """Return for each item whether it was there."""
    # None: without an answer as yet.
    answers: list[bool | None] = [None] * len(items)
    lost: list[ConnectionLost] = []
    try:
        view = yield from state.current()
        if len(view.shards) > 1 and state.flagged != view.header:
            # For items that are not there no other client is to pay.
            there = yield from before_adding(exists_many(state, items))
            answers = [None if is_there else False for is_there in there]
        if None in answers:
            work = lambda view: _discard_in(state, view, items, answers, lost)  # noqa: E731
            yield from in_one_generation(state, work)
    except Exception as error:
        if lost:
            raise OutcomeUnknownError(
                f"the reply was lost when {answers.count(None)} items were discarded from filter "
                f"{state.keys.name!r}; each may or may not have been discarded; repeating the "
                f"discard is harmless ({error})",
                answers,
            ) from error
        if isinstance(error, PartialResultError):
            error.results[:] = answers
        elif any(answer is not None for answer in answers):
            raise batch_error(error, answers) from error
        raise
    finally:
        # Whatever the outcome, this object gives no answer from before.
        state.drop_cached()
    return [answer is True for answer in answers]


def _flag_all(state: FilterState, view: View) -> Core[bool]:
    """Set the flag in all shards; False: the filter is of another generation, or broken."""
    asked = [ask_shard(shard, [], OPERATION) for shard in view.shards]
    for (segment,) in (yield from in_parallel(asked)):
        if segment.error is not None:
            answer_of(segment.error, NEEDS)
        if unflagged(segment.header) != view.header or segment.missing is None:
            return False
    state.flagged = view.header
    state.note_discards(view)
    return True


def _discard_in(
    state: FilterState,
    view: View,
    items: Sequence[bytes],
    answers: list[bool | None],
    lost: list[ConnectionLost],
) -> Core[bool | None]:
    """Discard what has no answer; None: it met another generation."""
    is_flagged = len(view.shards) == 1 or state.flagged == view.header
    if not is_flagged and not (yield from _flag_all(state, view)):
        return None
    left = [index for index, answer in enumerate(answers) if answer is None]
    by_shard = view.hasher.by_shard(view.hasher.digests([items[index] for index in left]))
    asked = [[left[index] for index in indices] for indices in by_shard.values()]
    # Sent once: the answer to what was discarded by a first try would be False.
    cores = [
        ask_shard(view.shards[number], pick(items, mine), OPERATION)
        for number, mine in zip(by_shard, asked, strict=True)
    ]
    is_over = False
    failure: Exception | None = None
    for mine, segments in zip(asked, (yield from in_parallel(cores)), strict=True):
        rest = iter(mine)
        for segment in segments:
            some = list(islice(rest, segment.rows))
            error = segment.error
            if isinstance(error, ConnectionLost) and error.sent:
                lost.append(error)
            elif error is not None:
                failure = failure or error
            elif unflagged(segment.header) != view.header or segment.missing is None:
                is_over = True
            else:
                if has_discards(segment.header):
                    state.note_discards(view)
                for index, is_missing in zip(some, segment.missing, strict=True):
                    answers[index] = not is_missing
    if lost or failure is not None:
        answer_of(lost[0] if lost else failure, NEEDS)
    return None if is_over else True
