"""A chunk of a batch through the near-cache: what is kept is answered here, the rest is asked for.

What `Operation` answered is kept only if the object's view is the same before and after it: then
every answer came with the header of that view, except adds whose reply was lost and which
`on_unknown` counts as new.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

from bloomlock.hashing import encode_item

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.commands import Core

    from .core import FilterCore
    from .near_cache import Asked, NearCache
    from .operation import Results

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
    keep: bool = True,
) -> Core[list[bool]]:
    """Answer a chunk of items in order.

    Args:
        core: The filter, attached.
        items: The items as they were given.
        encoded: The same, encoded.
        ask: Answers encoded items by asking the server.
        write: Whether it adds them.
        keep: Whether to keep answers; else those kept already are used, and no more.

    Raises:
        What `ask` raises; its `results` are about all items up to the last it is about.
    """
    view = core.view
    asked = None if view is None else (yield from core.ask_near(view))
    if asked is None:
        return (yield from ask(encoded))
    known = _look_up(asked.near, items)
    missed = [not kept for kept in known]
    try:
        if not any(known):
            answers = yield from ask(encoded)
        else:
            rest = list(compress(encoded, missed))
            answers = (yield from ask(rest)) if rest else []
            items = list(compress(items, missed))
    except Exception as error:
        asked.near.doubt()
        _complete(error, known, write=write)
        raise
    if answers and core.view is view:
        asked.confirm()
        if keep:
            _keep(core, asked, items, answers, write=write)
    if len(answers) == len(known):
        return answers
    told = iter(answers)
    return [not write if kept else next(told) for kept in known]


def _look_up(near: NearCache, items: Items) -> list[bool]:
    """Tell of each item whether it is kept, unless it looks as if none were."""
    if len(items) > SAMPLE and not any(near.known(items[:SAMPLE])):
        return [False] * len(items)
    return near.known(items)


def _keep(
    core: FilterCore, asked: Asked, items: Items, answers: Sequence[bool], *, write: bool
) -> None:
    seen = items
    if not write:
        seen = list(compress(items, answers))
    elif core.on_unknown == "new":
        seen = [item for item, new in zip(items, answers, strict=True) if not new]
    if core.untold:
        seen = [item for item in seen if encode_item(item) not in core.untold]
    asked.near.keep_many(seen)


def _complete(error: Exception, known: Sequence[bool], *, write: bool) -> None:
    """Put the answers that are kept between those that the error has."""
    results: Results | None = getattr(error, "results", None)
    if results is None or not any(known):
        return
    rest = iter(list(results))
    merged: Results = []
    for kept in known:
        if kept:
            merged.append(not write)
            continue
        try:
            merged.append(next(rest))
        except StopIteration:
            break
    results[:] = merged
