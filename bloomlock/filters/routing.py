"""Which way a batch takes, and in what chunks.

A batch reaches the server as

    items   the bits of each item, by the filter's strategy: for "atomic" BITFIELDs
    script  the places of all items as one packed argument to a script (strategies/lua.py)
    bitmap  the bits of all items as one bitmap (strategies/bitmap.py)

By itself it takes the bitmap where that is fewer bytes on the wire, both directions together, and
the server can merge it in about 10 ms. Else, in the blocked layout, the script, which has one block
to read and write for an item where BITFIELD has each bit. Else items.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Literal, get_args

from bloomlock.errors import ConfigurationError
from bloomlock.items import encode_items
from bloomlock.strategies.base import BITS_PER_TRIP
from bloomlock.strategies.bitmap import image_bytes, is_quick

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.strategies import Strategy

    from .core import FilterCore
    from .view import View

Route = Literal["auto", "items", "script", "bitmap"]


def check_route(core: FilterCore, route: object) -> None:
    """Raise ConfigurationError if a batch cannot take this route."""
    routes = get_args(Route)
    if not isinstance(route, str) or route not in routes:
        raise ConfigurationError(
            f"route must be {', '.join(map(repr, routes[:-1]))} or {routes[-1]!r}, not {route!r}"
        )
    if core.strategy.is_exclusive and route not in ("auto", "items"):
        raise ConfigurationError(
            f"route must be 'auto' or 'items' with strategy {core.strategy.name!r}, which keeps "
            f"others out while it adds an item, not {route!r}"
        )


def check_batch_size(batch_size: object) -> None:
    """Raise ConfigurationError if it is no number of items."""
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(
            f"batch_size must be a whole number of items from 1 on or None, not {batch_size!r:.80}"
        )


def choose(
    core: FilterCore, view: View, count: int, route: Route, *, write: bool, answers: bool = True
) -> Strategy:
    """Return how a chunk of `count` items reaches the server."""
    others = core.for_batches
    by_bitmap = others.bitmap if answers or not write else others.merge
    if route == "auto":
        route = _best_route(core, view, count, write=write, answers=answers or not write)
    if route == "bitmap" and not by_bitmap.is_forbidden:
        return by_bitmap
    if route == "script" and not others.script.is_forbidden:
        return others.script
    return core.strategy


def _best_route(core: FilterCore, view: View, count: int, *, write: bool, answers: bool) -> Route:
    if core.strategy.is_exclusive or not core.strategy.is_atomic or count == 1:
        return "items"
    shard = view.shards[0]
    as_items = count * view.descriptor.size.num_hashes * core.strategy.bytes_per_bit
    as_bitmap = sum(map(image_bytes, view.shards)) * (write + answers)
    if as_bitmap <= as_items and is_quick(shard, exact=answers):
        return "bitmap"
    return "script" if shard.block_bits else "items"


class Chunks:
    """The items of a batch, a chunk at a time.

    Args:
        core: The filter, attached before the first chunk is taken.
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
        core: FilterCore,
        items: Iterable[str | bytes],
        route: Route,
        *,
        finish: bool,
        batch_size: int | None = None,
    ) -> None:
        """Read nothing yet."""
        if isinstance(items, (str, bytes)):
            raise TypeError(
                f"items must be an iterable of str or bytes, not one {type(items).__name__}"
            )
        check_route(core, route)
        check_batch_size(batch_size)
        self._core = core
        self._batch_size = batch_size
        self._stream = iter(items)
        self._route = route
        self._finish = finish
        self._count = 0
        self._failure: Exception | None = None
        self.taken: list[str | bytes] = []
        self._most = core.items_per_chunk if hasattr(items, "__len__") else 0

    def take(self) -> bool:
        """Read the next items; False if there are none.

        Raises:
            Exception: What the iterable raises, as it is.
        """
        if self._failure is not None:
            raise self._failure
        self.taken = []
        try:
            size = self._size()
            if self._batch_size is not None:
                size = min(size, self._batch_size)
            self.taken.extend(islice(self._stream, size))
        except Exception as error:
            if not (self.taken and self._finish):
                raise
            self._failure = error
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
        core = self._core
        per_exchange = core.strategy.bits_per_exchange // core.descriptor.size.num_hashes
        if core.fill.refuse:
            # A chunk must not go far beyond what is still free.
            few = BITS_PER_TRIP // core.descriptor.size.num_hashes
            return max(1, few, min(core.items_per_chunk, core.fill.until_look))
        if self._route == "items" or core.strategy.is_exclusive or not core.strategy.is_atomic:
            return max(1, per_exchange)
        # Of items that may come slowly few are waited for at first.
        self._most = min(core.items_per_chunk, max(per_exchange, 1, 2 * self._most))
        return self._most
