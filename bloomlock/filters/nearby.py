"""A chunk of a batch through the near-cache: what is kept is answered here, the rest is asked for.

What `Operation` answered is kept only if the object's view is the same before and after it: then
every answer came with the header of that view, except adds whose reply was lost and which
`on_unknown` counts as new.
"""

from __future__ import annotations

from itertools import compress, repeat
from typing import TYPE_CHECKING, NamedTuple, cast

from bloomlock.errors import PartialResultError, batch_error
from bloomlock.items import encode_item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.effects import Core

    from .core import FilterCore
    from .near_cache import Asked, NearCache
    from .operation import Results
    from .view import View

    Items = Sequence[str | bytes]
    Ask = Callable[[Sequence[bytes]], Core[list[bool]]]

SAMPLE = 128
"""Items looked up before the rest: looking for many that are new costs as much as hashing them."""


def answer_chunk(
    core: FilterCore,
    items: Items,
    encoded: Sequence[bytes],
    ask: Ask,
    *,
    write: bool,
) -> Core[list[bool]]:
    """Answer a chunk of items in order.

    Args:
        core: The filter, attached.
        items: The items as they were given.
        encoded: The same, encoded.
        ask: Answers encoded items by asking the server.
        write: Whether it adds them.

    Raises:
        What `ask` raises, or a BatchError from it; `results` are about all items up to the last
        that it is about.
    """
    view = core.view
    asked = None if view is None else core.ask_near(view)
    if view is None or asked is None:
        return (yield from ask(encoded))
    chunk = _Chunk(core, view, asked, ask, write)
    known = _look_up(asked.near, items)
    try:
        if not any(known):
            return (yield from chunk.ask(items, encoded))
        return (yield from chunk.ask_for_the_rest(known, items, encoded))
    except Exception:
        asked.near.doubt()
        raise


def _look_up(near: NearCache, items: Items) -> list[bool]:
    """Tell of each item whether it is kept, unless it looks as if none were."""
    if len(items) > SAMPLE and not any(near.known(items[:SAMPLE])):
        return [False] * len(items)
    return near.known(items)


class _Chunk(NamedTuple):
    """What stays the same while a chunk is answered."""

    core: FilterCore
    view: View
    asked: Asked
    asks: Ask
    write: bool

    def ask(self, items: Items, encoded: Sequence[bytes]) -> Core[list[bool]]:
        """Ask for items, and keep those that turn out to be seen."""
        answers = yield from self.asks(encoded)
        if self.core.view is self.view:
            self.asked.confirm()
            seen = items
            if not self.write:
                seen = list(compress(items, answers))
            elif self.core.on_unknown == "new":
                seen = [item for item, new in zip(items, answers, strict=True) if not new]
            if self.core.unreported:
                seen = [item for item in seen if encode_item(item) not in self.core.unreported]
            self.asked.near.keep_many(seen)
        return answers

    def ask_for_the_rest(
        self, known: list[bool], items: Items, encoded: Sequence[bytes]
    ) -> Core[list[bool]]:
        """Ask for the items that are not kept."""
        core, kept_answer = self.core, not self.write
        if all(known):
            return [kept_answer] * len(known)
        missed = [not kept for kept in known]
        told: Iterable[bool | None] = repeat(kept_answer)
        rest: Sequence[bool | None] = []
        try:
            rest = yield from self.ask(
                list(compress(items, missed)), list(compress(encoded, missed))
            )
            if core.view is self.view:
                answers = [kept_answer] * len(known)
                for index, answer in zip(compress(range(len(known)), missed), rest, strict=True):
                    answers[index] = bool(answer)
                return answers
            # The filter was cleared, as has just turned out: what is kept was true before.
            told = yield from self.asks(list(compress(encoded, known)))
        except Exception as error:
            partly = error.results if isinstance(error, PartialResultError) else ()
            if rest:
                told = partly
            else:
                gone = core.view is not self.view or core.lost is not None
                rest, told = partly, repeat(None if gone else kept_answer)
            merged = _merge(known, told, rest)
            if isinstance(error, PartialResultError):
                error.results[:] = merged
            elif any(answer is not None for answer in merged):
                raise batch_error(error, merged) from error
            raise
        return cast("list[bool]", _merge(known, told, rest))


def _merge(
    known: Sequence[bool], kept: Iterable[bool | None], others: Iterable[bool | None]
) -> Results:
    """Return the answers to items that are kept and to the others in order, as far as both go."""
    sources = (iter(others), iter(kept))
    merged: Results = []
    for which in known:
        try:
            merged.append(next(sources[which]))
        except StopIteration:
            break
    return merged
