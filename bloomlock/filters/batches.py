"""Batches: their chunks, the route of each chunk, and the items that are sent.

`route="items"` is the filter's own strategy. "bitmap" sends the bits of all items as one bitmap.
"auto" takes the bitmap if it is quicker and occupies the server for about 10 ms at most.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args

from bloomlock.effects import ConnectionLost
from bloomlock.errors import (
    BatchError,
    BloomlockError,
    ConfigurationError,
    OutcomeUnknownError,
    PartialResultError,
    batch_error,
)
from bloomlock.hashing import check_items, pick
from bloomlock.strategies.base import BITS_PER_TRIP
from bloomlock.strategies.bitmap import is_quick

from .support import BITMAP, SUPPORT, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bloomlock.effects import Core
    from bloomlock.strategies import Strategy

    from .generation import View
    from .state import FilterState

    Results = list[bool | None]

T = TypeVar("T")
logger = logging.getLogger("bloomlock")

BIT_S, SHARD_S, BYTE_S = 0.57e-6, 0.0005, 0.5e-9
"""Costs in seconds: how much longer a bit takes by items than in a bitmap; the fixed cost of the
bitmap of a shard; the cost of a byte of it. Measured with the atomic strategy on one machine."""

FEW_BITS = 256
"""For so few bits the bitmap is never quicker."""

Route = Literal["auto", "items", "bitmap"]
ROUTES = get_args(Route)


def check_batch_size(batch_size: object) -> None:
    if batch_size is not None and (
        isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1
    ):
        raise ConfigurationError(
            f"batch_size must be a whole number of items from 1 on or None, not {batch_size!r:.80}"
        )


def chunks(
    state: FilterState,
    items: Iterable[str | bytes],
    route: Route,
    *,
    finish: bool,
    batch_size: int | None = None,
) -> Iterator[list[str | bytes]]:
    """Yield the items of a batch in chunks; read one chunk of the iterable at a time.

    If the iterable raises, `finish` yields the items before it first. Without `finish` they are
    dropped.
    """
    check_items(items)
    if not isinstance(route, str) or route not in ROUTES:
        raise ConfigurationError(
            f"route must be {', '.join(map(repr, ROUTES[:-1]))} or {ROUTES[-1]!r}, not {route!r}"
        )
    if route not in ("auto", "items"):
        is_known = state.view is not None or state.wanted is not None
        descriptor = state.descriptor if is_known else None
        check_support(BITMAP, state.strategy.name, descriptor)
    check_batch_size(batch_size)
    most = state.items_per_chunk if hasattr(items, "__len__") else 0

    def size_of() -> int:
        nonlocal most
        strategy, num_hashes = state.strategy, state.descriptor.size.num_hashes
        size = max(1, strategy.bits_per_exchange // num_hashes)
        if state.fill.refuse:
            # A chunk must not go far beyond the free capacity.
            few = BITS_PER_TRIP // num_hashes
            size = max(1, few, min(state.items_per_chunk, state.fill.until_look))
        elif route != "items" and (strategy.name == "native" or _has_routes(strategy)):
            # Items may arrive slowly, so the first chunks are small.
            size = most = min(state.items_per_chunk, max(size, 2 * most))
        return size if batch_size is None else min(size, batch_size)

    # iter() refuses here, at the call, if `items` is no iterable.
    return take_chunks(iter(items), size_of, finish=finish)


def take_chunks(
    items: Iterable[T], size_of: Callable[[], int], *, finish: bool
) -> Iterator[list[T]]:
    """Yield the items in chunks; with `finish` also those read before the iterable raised."""
    stream = iter(items)
    while True:
        size = size_of()
        taken: list[T] = []
        try:
            taken.extend(islice(stream, size))
        except Exception:
            if taken and finish:
                yield taken
            raise
        if taken:
            yield taken
        if len(taken) < size:
            return


class Chunk:
    """The items of a call that are sent, each once, and their indices.

    A page may link to itself a hundred times; the item is sent once.

    Args:
        encoded: All items of the call.
        missed: Indices of the items that the near-cache does not answer.

    Attributes:
        items: The items that are sent.
        at: Their indices among all items. The other items are cached, or repeats.
    """

    def __init__(self, encoded: Sequence[bytes], missed: Sequence[int]) -> None:
        self._size, self.at = len(encoded), missed
        self._repeats: list[tuple[int, int]] = []
        some = encoded if len(missed) == len(encoded) else pick(encoded, missed)
        self.items = some
        if len(set(some)) < len(some):
            first: dict[bytes, int] = {}
            for index, item in zip(missed, some, strict=True):
                earlier = first.setdefault(item, index)
                if earlier != index:
                    self._repeats.append((index, earlier))
            self.items, self.at = list(first), list(first.values())

    def spread(self, results: Sequence[int], *, write: bool) -> list[Any]:
        """Return the results of all items: cached ones are seen, of repeats the first is new."""
        if len(self.at) == self._size:
            return list(results)
        spread: list[Any] = [not write] * self._size
        for index, result in zip(self.at, results, strict=True):
            spread[index] = result
        for index, first in self._repeats:
            result = spread[first]
            spread[index] = False if write and result > 0 else result
        return spread


def choose(
    state: FilterState, view: View, count: int, route: Route, *, write: bool, answers: bool
) -> Strategy:
    """Return the strategy that sends this number of items."""
    own = state.strategy
    exact = answers or not write
    by_bitmap = state.bitmap if exact else state.merge
    is_fixed = route == "items" or view.descriptor.slices or not _has_routes(own)
    if is_fixed or by_bitmap.is_forbidden:
        return own
    if route == "auto":
        bits = count * view.descriptor.size.num_hashes
        if bits <= FEW_BITS:
            return own
        # Of n items in S shards some shards have none.
        shards = min(len(view.shards), count)
        image_bytes = view.image_bytes * (write + exact) * shards / len(view.shards)
        is_quicker = bitmap_is_quicker(bits, shards, image_bytes)
        is_quicker &= is_quick(view.shards[0], exact=exact)
        state.route = route = "bitmap" if is_quicker else "items"
        logger.debug("filter %r: %d items go by %s", state.keys.name, count, route)
    return by_bitmap if route == "bitmap" else own


def bitmap_is_quicker(bits: int, shards: float, image_bytes: float) -> bool:
    """Return whether the bitmap is quicker; `image_bytes` counts both directions."""
    return bits * BIT_S > shards * SHARD_S + image_bytes * BYTE_S


def _has_routes(strategy: Strategy) -> bool:
    return strategy.name in SUPPORT[BITMAP].strategies


def fail_after(results: Sequence[bool | None], error: Exception) -> NoReturn:
    """Raise an error of a batch with `results` before its own; a BatchError for other errors."""
    if isinstance(error, PartialResultError):
        error.results[:0] = results
        raise error
    if not results:
        raise error
    raise batch_error(error, results) from error


def fail_after_adding(added: int, error: Exception) -> NoReturn:
    """Raise an error of an update with the number of items that were added before it."""
    if isinstance(error, PartialResultError):
        error.results.clear()
        error.added = added
        raise error
    if not added:
        raise error
    raise batch_error(error, added=added) from error


def take_known(error: PartialResultError) -> list[bool]:
    """Take the answers before the first unknown one out of the results of an error."""
    known = []
    for answer in error.results:
        if answer is None:
            break
        known.append(answer)
    del error.results[: len(known)]
    return known


def before_adding(test: Core[T]) -> Core[T]:
    """Run a test that precedes an add; remove the answers of the test from its error.

    A caller of `add` would take the "not there" of the test for "not new".
    """
    try:
        return (yield from test)
    except BatchError as error:
        raise error.__cause__ or error from None
    except PartialResultError as error:
        error.results.clear()
        raise


class _AddedElsewhereError(BloomlockError):
    """An item was added in a generation that is over, and is seen in the one that followed."""


def added_elsewhere(cause: Exception | None = None) -> ConnectionLost:
    error = _AddedElsewhereError("the filter was cleared or rebuilt")
    error.__cause__ = cause
    return ConnectionLost(error, sent=True, replies=[])


def outcome_unknown(
    name: str, count: int, cause: Exception, *, repeated: bool = False
) -> OutcomeUnknownError:
    what = "an item was" if count == 1 else f"{count} items were"
    what = f"{what} added to filter {name!r}"
    if isinstance(cause, _AddedElsewhereError):
        happened = f"the filter was cleared or rebuilt while {what}"
    else:
        happened = f"the reply was lost {'each time ' if repeated else ''}when {what}"
    advice = "; repeating the update is harmless" if repeated else ""
    error = OutcomeUnknownError(
        f"{happened}; the update may or may not have happened{advice} ({cause})"
    )
    error.__cause__ = cause
    return error
