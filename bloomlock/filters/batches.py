"""In what chunks a batch goes, which strategy takes it, and what the near-cache answers of it.

`route=` names the strategy of a batch:

    items   the filter's own: for "atomic" the bits of each item by BITFIELDs
    script  the places of all items as one packed argument to a script (strategies/lua.py)
    bitmap  the bits of all items as one bitmap (strategies/bitmap.py)

"auto" is the bitmap where that takes less time (see routes.py) and the server is done with each
command in about 10 ms. Else items.

What a batch was answered is kept in the near-cache only if the object's view is the same before and
after it: then every answer came with the header of that view, except adds whose reply was lost and
which `on_unknown` counts as new.
"""

from __future__ import annotations

import logging
from itertools import chain, compress, islice, repeat
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, cast, get_args

from bloomlock.errors import ConfigurationError, PartialResultError, batch_error
from bloomlock.hashing import EncodedTexts, encode_items, pick
from bloomlock.strategies.base import BITS_PER_TRIP
from bloomlock.strategies.bitmap import is_quick

from .near_cache import flags_of, keys_of
from .routes import bitmap_is_quicker
from .support import OTHER_ROUTES, SUPPORT, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.effects import Core
    from bloomlock.strategies import Strategy

    from .generation import View
    from .near_cache import Asked, Keys, NearCache
    from .operation import Results
    from .state import FilterState

    Items = Sequence[str | bytes]
    Ask = Callable[[Sequence[bytes]], Core[list[bool]]]

logger = logging.getLogger("bloomlock")

SAMPLE = 128
"""Items looked up before the rest: looking for many that are new costs as much as hashing them."""

Route = Literal["auto", "items", "script", "bitmap"]
ROUTES = get_args(Route)


def check_route(state: FilterState, route: object) -> None:
    """Raise ConfigurationError if a batch cannot take this route."""
    if not isinstance(route, str) or route not in ROUTES:
        raise ConfigurationError(
            f"route must be {', '.join(map(repr, ROUTES[:-1]))} or {ROUTES[-1]!r}, not {route!r}"
        )
    if route not in ("auto", "items"):
        is_known = state.view is not None or state.wanted is not None
        descriptor = state.descriptor if is_known else None
        check_support(OTHER_ROUTES, state.strategy.name, descriptor)


def has_routes(strategy: Strategy) -> bool:
    """Return whether batches may go by other routes than the strategy's own."""
    return strategy.name in SUPPORT[OTHER_ROUTES].strategies


def check_batch_size(batch_size: object) -> None:
    """Raise ConfigurationError if it is no number of items."""
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(
            f"batch_size must be a whole number of items from 1 on or None, not {batch_size!r:.80}"
        )


def choose(
    state: FilterState, view: View, count: int, route: Route, *, write: bool, answers: bool = True
) -> Strategy:
    """Return what sends a chunk of `count` items to the server."""
    others, own = state.for_batches, state.strategy
    if route == "items" or own.heeds_discards or not has_routes(own):
        return own
    by_bitmap = others.bitmap if answers or not write else others.merge
    if route == "auto":
        bits = count * view.descriptor.size.num_hashes
        # Another route begins far beyond what goes without arrays.
        if count == 1 or bits <= own.few_bits:
            return own
        route = _choose_route(view, count, bits, write=write, answers=answers or not write)
        state.route = route if not by_bitmap.is_forbidden else "items"
        logger.debug("filter %r: %d items go by %s", state.keys.name, count, state.route)
    if route == "bitmap" and not by_bitmap.is_forbidden:
        return by_bitmap
    if route == "script" and not others.script.is_forbidden:
        return others.script
    return own


def _choose_route(view: View, count: int, bits: int, *, write: bool, answers: bool) -> Route:
    # Of n items in S shards some shards have none.
    part = min(1.0, count / len(view.shards))
    image_bytes = view.image_bytes * (write + answers) * part
    may_merge = is_quick(view.shards[0], exact=answers)
    if may_merge and bitmap_is_quicker(bits, len(view.shards) * part, image_bytes):
        return "bitmap"
    return "items"


class Chunks:
    """The items of a batch, a chunk at a time.

    Args:
        state: The filter, attached before the first chunk is taken.
        items: Any iterable; read no further than a chunk at a time.
        route: The way they are to take.
        finish: Whether the items before the place where the iterable raises are returned first;
            else those not returned by then are dropped.
        batch_size: Items of a chunk at most; None: as many as are worth while.

    Attributes:
        taken: The items of the last chunk as they were given.

    Raises:
        TypeError: If `items` is one item and not many.
        ConfigurationError: If the route or the batch size is not possible.
    """

    def __init__(
        self,
        state: FilterState,
        items: Iterable[str | bytes],
        route: Route,
        *,
        finish: bool,
        batch_size: int | None = None,
    ) -> None:
        if isinstance(items, (str, bytes)):
            raise TypeError(
                f"items must be an iterable of str or bytes, not one {type(items).__name__}"
            )
        check_route(state, route)
        check_batch_size(batch_size)
        self._state = state
        self._batch_size = batch_size
        self._stream = iter(items)
        self._route = route
        self._finish = finish
        self._count = 0
        self._failure: Exception | None = None
        self.taken: list[str | bytes] = []
        # Of a list nothing is waited for behind its last item.
        self._left = len(items) if type(items) is list else None
        self._most = state.items_per_chunk if hasattr(items, "__len__") else 0

    def take(self) -> bool:
        """Read the next items; False if there are none.

        Raises:
            Exception: What the iterable raises, as it is.
        """
        if self._failure is not None:
            raise self._failure
        self.taken = []
        if self._left is not None and self._left <= 0:
            return False
        try:
            size = self._size()
            if self._batch_size is not None:
                size = min(size, self._batch_size)
            self.taken.extend(islice(self._stream, size))
        except Exception as error:
            if not (self.taken and self._finish):
                raise
            self._failure = error
        if self._left is not None:
            self._left -= len(self.taken)
        return bool(self.taken)

    def encode(self) -> Sequence[bytes]:
        """Return the items of the chunk, encoded.

        Raises:
            TypeError, ConfigurationError: For the first item that is not usable, with its index;
                now, or when the items are used.
        """
        encoded = encode_items(self.taken, self._count)
        self._count += len(encoded)
        return encoded

    def _size(self) -> int:
        state, strategy = self._state, self._state.strategy
        per_exchange = strategy.bits_per_exchange // state.descriptor.size.num_hashes
        if state.fill.refuse:
            # A chunk must not go far beyond what is still free.
            few = BITS_PER_TRIP // state.descriptor.size.num_hashes
            return max(1, few, min(state.items_per_chunk, state.fill.until_look))
        if self._route == "items" or not (strategy.name == "native" or has_routes(strategy)):
            return max(1, per_exchange)
        # Of items that may come slowly few are waited for at first.
        self._most = min(state.items_per_chunk, max(per_exchange, 1, 2 * self._most))
        return self._most


def answer_chunk(
    state: FilterState,
    items: Items,
    encoded: Sequence[bytes],
    ask: Ask,
    *,
    write: bool,
) -> Core[list[bool]]:
    """Answer a chunk of items in order.

    Args:
        state: The filter, attached.
        items: The items as they were given.
        encoded: The same, encoded.
        ask: Answers encoded items by asking the server.
        write: Whether it adds them.

    Raises:
        What `ask` raises, or a BatchError from it; `results` are about all items up to the last
        that it is about.
    """
    if state.view is None or state.caching is None:
        return ask(encoded)
    return _answer_by_near(state, state.view, items, encoded, ask, write=write)


def _answer_by_near(
    state: FilterState,
    view: View,
    items: Items,
    encoded: Sequence[bytes],
    ask: Ask,
    *,
    write: bool,
) -> Core[list[bool]]:
    asked = state.ask_near(view)
    if asked is None:
        return (yield from ask(encoded))
    chunk = _Chunk(state, view, asked, ask, write)
    keys = items if isinstance(encoded, EncodedTexts) else keys_of(items)
    missed = _look_up(asked.near, keys)
    try:
        if len(missed) == len(items):
            return (yield from chunk.ask(items, encoded))
        return (yield from chunk.ask_for_the_rest(missed, items, encoded))
    except Exception:
        asked.near.doubt()
        raise


def _look_up(near: NearCache, keys: Keys) -> Sequence[int]:
    """Return where items stand that are not kept; after a sample of these none is looked up."""
    if len(keys) > SAMPLE and len(near.missed(keys[:SAMPLE])) == SAMPLE:
        return range(len(keys))
    return near.missed(keys)


class _Chunk(NamedTuple):
    """What stays the same while a chunk is answered."""

    state: FilterState
    view: View
    asked: Asked
    asks: Ask
    write: bool

    def ask(self, items: Items, encoded: Sequence[bytes]) -> Core[list[bool]]:
        """Ask for items, and keep those that turn out to be seen."""
        answers = yield from self.asks(encoded)
        if self.state.view is self.view:
            self.asked.confirm()
            seen = items
            if not self.write:
                seen = list(compress(items, answers)) if self.state.keeps_found else []
            elif self.state.on_unknown == "new":
                seen = [item for item, new in zip(items, answers, strict=True) if not new]
            self.asked.near.keep_many(seen)
        return answers

    def ask_for_the_rest(
        self, missed: Sequence[int], items: Items, encoded: Sequence[bytes]
    ) -> Core[list[bool]]:
        """Ask for the items that are not kept, which stand at `missed`."""
        state, kept_answer = self.state, not self.write
        answers = [kept_answer] * len(items)
        if not missed:
            return answers
        kept: Iterable[bool | None] = repeat(kept_answer)
        rest: Sequence[bool | None] = []
        try:
            rest = yield from self.ask([items[index] for index in missed], pick(encoded, missed))
            if state.view is self.view:
                for index, answer in zip(missed, rest, strict=True):
                    answers[index] = bool(answer)
                return answers
            # The filter was cleared, as has just turned out: what is kept was true before.
            known = flags_of(missed, len(items))
            kept = yield from self.asks(list(compress(encoded, known)))
        except Exception as error:
            known = flags_of(missed, len(items))
            partly = error.results if isinstance(error, PartialResultError) else ()
            if rest:
                # Those answers are known, also behind a kept item without one.
                kept = chain(partly, repeat(None, len(known) - len(rest) - len(partly)))
            else:
                gone = state.view is not self.view or state.lost is not None
                rest, kept = partly, repeat(None if gone else kept_answer)
            merged = _merge(known, kept, rest)
            if isinstance(error, PartialResultError):
                error.results[:] = merged
            elif any(answer is not None for answer in merged):
                raise batch_error(error, merged) from error
            raise
        return cast("list[bool]", _merge(known, kept, rest))


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


def fail_after(results: Sequence[bool | None], error: Exception) -> NoReturn:
    """Raise an error of a batch with the answers known before it.

    Raises:
        PartialResultError: With `results` before its own; a BatchError for any other error, if
            there are any.
    """
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
