"""What a filter object tells without asking the server; the same for threads and asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import FilterCore


class FilterFace:
    """The parameters of a filter as attributes."""

    _core: FilterCore

    @property
    def name(self) -> str:
        """The filter's name."""
        return self._core.keys.name

    @property
    def capacity(self) -> int:
        """Distinct items the filter is sized for, n."""
        return self._core.descriptor.capacity

    @property
    def error_rate(self) -> float:
        """False-positive rate at that fill, p."""
        return self._core.descriptor.error_rate

    @property
    def num_bits(self) -> int:
        """Bits of all shards together, m."""
        return self._core.descriptor.size.num_bits

    @property
    def num_hashes(self) -> int:
        """Bits tested and set for one item, k."""
        return self._core.descriptor.size.num_hashes

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """One Murmur3 seed for each hash function; None: one 128-bit digest for all."""
        return self._core.descriptor.seeds

    @property
    def shards(self) -> int:
        """Redis strings the bits are spread over."""
        return self._core.descriptor.size.shards

    @property
    def generation(self) -> int:
        """Changes whenever the filter is cleared or replaced; 0 before the first use."""
        return self._core.descriptor.generation

    @property
    def strategy(self) -> str:
        """How updates reach Redis."""
        return self._core.strategy.name

    def __repr__(self) -> str:
        """Tell name and parameters; asks nothing of the server."""
        kind = type(self).__name__
        if self._core.view is None and self._core.wanted is None:
            return f"<{kind} {self.name!r}: not opened yet, {self.strategy}>"
        shards = "1 shard" if self.shards == 1 else f"{self.shards} shards"
        return (
            f"<{kind} {self.name!r}: {self.capacity} items at {self.error_rate:g}, "
            f"{self.num_bits} bits, {self.num_hashes} hashes, {shards}, {self.strategy}>"
        )
