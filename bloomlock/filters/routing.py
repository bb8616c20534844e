"""Which way a batch takes, and in what chunks.

A batch reaches the server as the bits of each item, by the filter's strategy, or as a bitmap of all
its bits (strategies/bitmap.py). The bitmap is taken where that is fewer bytes on the wire, both
directions together, and only where the server can merge it in about 10 ms.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Literal, get_args

from bloomlock.errors import ConfigurationError
from bloomlock.hashing import encode_items
from bloomlock.strategies.base import BITS_PER_TRIP
from bloomlock.strategies.bitmap import image_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bloomlock.strategies import Strategy

    from .core import FilterCore
    from .view import View

Route = Literal["auto", "items", "bitmap"]

ITEMS_PER_BITMAP = 2**18
"""Items of one chunk at most: bounds the memory of a batch to about 200 MB."""


def check_route(core: FilterCore, route: object) -> None:
    """Raise ConfigurationError if a batch cannot take this route."""
    routes = get_args(Route)
    if not isinstance(route, str) or route not in routes:
        raise ConfigurationError(
            f"route must be {', '.join(map(repr, routes[:-1]))} or {routes[-1]!r}, not {route!r}"
        )
    if route == "bitmap" and core.strategy.exclusive:
        raise ConfigurationError(
            f"route must be 'auto' or 'items' with strategy {core.strategy.name!r}, which keeps "
            "others out while it adds an item, not 'bitmap'"
        )


def choose(
    core: FilterCore, view: View, count: int, route: Route, *, write: bool, answers: bool = True
) -> Strategy:
    """Return how a chunk of `count` items reaches the server."""
    way = core.bitmap if answers or not write else core.merging
    if route == "items" or core.strategy.exclusive or way.forbidden:
        return core.strategy
    if route == "bitmap":
        return way
    if not core.strategy.whole or not way.suits(view.shards[0]):
        return core.strategy
    num_hashes = view.descriptor.size.num_hashes
    as_items = count * num_hashes * core.strategy.bytes_per_bit
    as_bitmap = sum(map(image_bytes, view.shards)) * (2 if write and answers else 1)
    return way if as_bitmap <= as_items else core.strategy


class Chunks:
    """The items of a batch, encoded, a chunk at a time.

    Args:
        core: The filter, attached before the first chunk is taken.
        items: Any iterable; read no further than a chunk at a time.
        route: The way they are to take.

    Attributes:
        taken: The items of the last chunk as they were given.

    Raises:
        TypeError: If `items` is one item and not many.
        ConfigurationError: If the route is not possible.
    """

    def __init__(self, core: FilterCore, items: Iterable[str | bytes], route: Route) -> None:
        """Read nothing yet."""
        if isinstance(items, (str, bytes)):
            raise TypeError(
                f"items must be an iterable of str or bytes, not one {type(items).__name__}"
            )
        check_route(core, route)
        self._core = core
        self._stream = iter(items)
        self._route = route
        self._count = 0
        self.taken: list[str | bytes] = []
        self._most = ITEMS_PER_BITMAP if hasattr(items, "__len__") else 0

    def take(self) -> list[bytes]:
        """Return the next items, none at the end.

        Raises:
            TypeError, ConfigurationError: For the first item that is not usable, with its index;
                those before it in the chunk are not lost: they were not taken.
        """
        self.taken = list(islice(self._stream, self._size()))
        encoded = encode_items(self.taken, self._count)
        self._count += len(encoded)
        return encoded

    def _size(self) -> int:
        core = self._core
        per_exchange = core.strategy.bits_per_exchange // core.descriptor.size.num_hashes
        if core.fill.refuse:
            # A chunk must not go far beyond what is still free.
            few = BITS_PER_TRIP // core.descriptor.size.num_hashes
            return max(1, few, min(ITEMS_PER_BITMAP, core.fill.until_look))
        if self._route == "items" or core.strategy.exclusive or not core.strategy.whole:
            return max(1, per_exchange)
        # Of items that may come slowly few are waited for at first.
        self._most = min(ITEMS_PER_BITMAP, max(per_exchange, 1, 2 * self._most))
        return self._most
