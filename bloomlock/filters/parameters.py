"""The parameters of a filter as attributes, wherever its bits are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor


class Parameters:
    """What every kind of filter tells from its descriptor alone."""

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
        """Bits of all shards together, m."""
        return self._descriptor.size.num_bits

    @property
    def num_hashes(self) -> int:
        """Bits tested and set for one item, k."""
        return self._descriptor.size.num_hashes

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """One Murmur3 seed for each hash function; None: one 128-bit digest for all."""
        return self._descriptor.seeds

    @property
    def layout(self) -> str:
        """Where the bits of an item lie: "classic", anywhere in its shard; "blocked", together."""
        return self._descriptor.layout

    @property
    def key_kind(self) -> str | None:
        """Where its key comes from: "secret", from users; "random", stored; None: it has none."""
        return None if self._descriptor.key is None else self._descriptor.key.kind

    @property
    def shards(self) -> int:
        """Redis strings the bits are spread over."""
        return self._descriptor.size.shards

    def _shape(self) -> str:
        layout = "" if self.layout == "classic" else f", {self.layout}"
        keyed = "" if self.key_kind is None else f", {self.key_kind} key"
        shards = "1 shard" if self.shards == 1 else f"{self.shards} shards"
        return (
            f"{self.capacity} items at {self.error_rate:g}, {self.num_bits} bits, "
            f"{self.num_hashes} hashes{layout}{keyed}, {shards}"
        )
