"""What a filter object reports without a request; the same for threads and asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from bloomlock.descriptor import CLEAR
from bloomlock.runtime.clients import not_portable

if TYPE_CHECKING:
    from datetime import timedelta

    from bloomlock.descriptor import Descriptor

    from .state import FilterState


class Parameters:
    """What every kind of filter reports from its descriptor alone."""

    @property
    def _descriptor(self) -> Descriptor:
        raise NotImplementedError

    @property
    def capacity(self) -> int:
        """Distinct items the filter is sized for, n."""
        return self._descriptor.capacity

    @property
    def error_rate(self) -> float:
        """False-positive rate at that fill, p."""
        return self._descriptor.error_rate

    @property
    def num_bits(self) -> int:
        """Bits of all shards together, m; with a window those of all slices."""
        return self._descriptor.num_bits

    @property
    def num_hashes(self) -> int:
        """Bits tested and set for one item, k."""
        return self._descriptor.size.num_hashes

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """One Murmur3 seed for each hash function; None: one 128-bit digest for all."""
        return self._descriptor.seeds

    @property
    def window(self) -> timedelta | None:
        """How long an item is remembered at least; None: for ever."""
        window = self._descriptor.window
        return window.length if window else None

    @property
    def shards(self) -> int:
        """Redis strings the bits are spread over."""
        return self._descriptor.size.shards

    def _shape(self) -> str:
        descriptor = self._descriptor
        windowed = f", {descriptor.window}" if descriptor.window else ""
        keyed = f", {descriptor.key.kind} key" if descriptor.key else ""
        grows = f", grows to {descriptor.most_items} items" if descriptor.growth else ""
        shards = "1 shard" if self.shards == 1 else f"{self.shards} shards"
        return (
            f"{self.capacity} items at {self.error_rate:g}, {self.num_bits} bits, "
            f"{self.num_hashes} hashes{keyed}{windowed}, {shards}{grows}"
        )


class FilterBase(Parameters):
    """Name, parameters and strategy of a filter on a server as attributes."""

    _state: FilterState

    @property
    def _descriptor(self) -> Descriptor:
        return self._state.descriptor

    @property
    def name(self) -> str:
        """The filter's name."""
        return self._state.keys.name

    @property
    def hash_tag(self) -> str:
        """What keys need in their names to lie in the slot of its first shard, on a cluster.

        >>> from bloomlock import BloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     BloomFilter("news/today", 1000, client=server.url).hash_tag
        '{news%2Ftoday}'
        """
        return self._state.keys.tag

    @property
    def generation(self) -> int:
        """Changes whenever the filter is cleared or replaced; 0 before the first use."""
        return self._state.descriptor.generation

    @property
    def cleared(self) -> bool:
        """Whether the generation began with a clear.

        False: the filter was created where none was, or where part of it was lost.
        """
        return self._state.descriptor.origin == CLEAR

    @property
    def has_discards(self) -> bool:
        """Whether items were discarded, as far as this object has heard.

        Every answer of the server says so; this sends nothing.
        """
        view = self._state.view
        return view is not None and view.discards

    @property
    def strategy(self) -> str:
        """How updates reach Redis."""
        return self._state.strategy.name

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: its connections are of this process."""
        raise TypeError(not_portable(self))

    def __repr__(self) -> str:
        """Return name and parameters; no request is sent."""
        kind = type(self).__name__
        if self._state.view is None and self._state.wanted is None:
            return f"<{kind} {self.name!r}: not opened yet, {self.strategy}>"
        return f"<{kind} {self.name!r}: {self._shape()}, {self.strategy}>"
