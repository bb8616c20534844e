"""All that another filter holds, added to a filter while both are in use.

The bits travel through this client. They are only ever set, so a union may be repeated after any
error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.arrays import np
from bloomlock.delivery import elsewhere
from bloomlock.descriptor import has_discards, unflagged
from bloomlock.effects import ConnectionLost
from bloomlock.parallel import in_parallel
from bloomlock.sizing import FIRST_BYTE
from bloomlock.strategies.bitmap import merge_part

from .dump import Source, groups
from .files import Layout, Part
from .memory_bits import check_same_bits
from .state import in_one_generation
from .support import FROM_FILTER, FROM_MEMORY, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from bloomlock.effects import Core

    from .dump import Progress
    from .generation import View
    from .memory import MemoryBloomFilter
    from .state import FilterState

    Run = Callable[[Core[Any]], Any]


class _ReplacedError(Exception):
    """The filter that is added to is of another generation."""


def update(
    state: FilterState, run: Run, other: FilterState, other_run: Run, progress: Progress | None
) -> Core[None]:
    """Add what another filter holds; `run` and `other_run` carry out cores over their clients."""

    def work(view: View) -> Core[bool | None]:
        def write(parts: Sequence[Part]) -> Core[None]:
            return elsewhere(run, _merge(view, parts, FROM_FILTER))

        def read(theirs: View) -> Core[bool | None]:
            for one, of in ((view, state), (theirs, other)):
                discards = one.discards
                check_support(FROM_FILTER, of.strategy.name, one.descriptor, discards=discards)
            check_same_bits(view.descriptor, theirs.descriptor)
            source = Source(theirs)
            if not (yield from source.begin()):
                return None
            check_support(FROM_FILTER, other.strategy.name, discards=source.is_flagged)
            return (yield from source.pour(write, progress)) or None

        try:
            yield from elsewhere(other_run, in_one_generation(other, read))
        except _ReplacedError:
            return None
        yield from state.fill.look_after_add(view)
        return True

    yield from in_one_generation(state, work)


def update_from_memory(state: FilterState, memory: MemoryBloomFilter) -> Core[None]:
    def work(view: View) -> Core[bool | None]:
        descriptor, discards = view.descriptor, view.discards
        check_support(FROM_MEMORY, state.strategy.name, descriptor, discards=discards)
        check_same_bits(memory._descriptor, descriptor)  # noqa: SLF001 - our own class
        images = memory.images()
        try:
            for pieces in groups(Layout.of(descriptor)):
                # Copies: other threads may be adding, and what is sent again must be the same.
                parts = [
                    Part(n, start, images[n][start:stop].tobytes()) for n, start, stop in pieces
                ]
                yield from _merge(view, parts, FROM_MEMORY)
        except _ReplacedError:
            return None
        yield from state.fill.look_after_add(view)
        return True

    yield from in_one_generation(state, work)


def _merge(view: View, parts: Sequence[Part], feature: str) -> Core[None]:
    merges = []
    for number, start, data in parts:
        skipped = max(0, FIRST_BYTE - start)
        bits = np.frombuffer(data, np.uint8)[skipped:]
        shard = view.shards[number]
        merges.append(merge_part(shard, start + skipped, bits, answers=False, union=True))
    for reply in (yield from in_parallel(merges)):
        if isinstance(reply, ConnectionLost):
            raise reply.cause from None
        if isinstance(reply, Exception):
            raise reply
        header, _ = reply
        if header != view.header:
            # Bits do not undo a discard, so what was discarded would not be there.
            is_same = unflagged(header) == view.header
            check_support(feature, None, discards=is_same and has_discards(header))
            raise _ReplacedError
