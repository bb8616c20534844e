"""Parameters, fill and memory of a filter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from redis.exceptions import ResponseError

from bloomlock.commands import call, encode_command, in_parallel
from bloomlock.descriptor import CLEAR
from bloomlock.keys import discards_key, native_key
from bloomlock.runtime.clients import not_portable

from .claim_lists import ClaimCounts, count_claims
from .generation import count_items
from .state import in_one_generation

if TYPE_CHECKING:
    from datetime import timedelta

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core

    from .generation import Counted, View
    from .state import FilterState


class Parameters:
    """What every kind of filter reports from its descriptor alone."""

    _descriptor: Descriptor

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
    def _descriptor(self) -> Descriptor:  # type: ignore[override]  # of each generation its own
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


@dataclass(frozen=True, slots=True)
class FilterInfo:
    """A filter as it is on the server.

    Attributes:
        name: The filter's name.
        capacity: Distinct items it is sized for, n.
        error_rate: False-positive rate at that fill, p.
        num_bits: Bits of all shards, m.
        num_hashes: Bits of one item, k.
        seeds: One Murmur3 seed for each hash function; None: default hashing.
        key_kind: "secret" if users bring the key, "random" if it is stored; None: there is none.
        shards: Redis strings the bits are spread over.
        generation: Changes whenever the filter is cleared or replaced.
        strategy: How this object's updates reach Redis.
        bits_set: Bits that are 1; with strategy "native" computed from the number of items.
        fill_ratio: bits_set / num_bits; at capacity error_rate to the power of 1 / num_hashes (0.14
            by default at 1e-6).
        estimated_count: Distinct items added, estimated from the set bits; with strategy "native"
            those that were answered as new, which the server counts.
        current_error_rate: Chance that an item never added is taken for a seen one, now.
        memory_bytes: What the server says the keys take; 0 where it does not say.
        route: The route that `route="auto"` took for this object's last batch with a choice; empty:
            there was none yet.
        claims: The claims of this generation, by what became of them.
        window: How long an item is remembered at least; None: for ever.
        discarded: Items that were discarded and not added since; their bits take room of the
            capacity, and they do not count in estimated_count.
        growth: By which factor a slice is for more items than the one before; None: it does not
            grow.
        up_to: Items that a filter that grows can hold; None if it does not grow.
        slices: How many it has grown to; 1 if it does not grow. The bits are those of all slices.
    """

    name: str
    capacity: int
    error_rate: float
    num_bits: int
    num_hashes: int
    seeds: tuple[int, ...] | None
    key_kind: str | None
    shards: int
    generation: int
    strategy: str
    bits_set: int
    fill_ratio: float
    estimated_count: int
    current_error_rate: float
    memory_bytes: int
    route: str = ""
    claims: ClaimCounts = field(default_factory=ClaimCounts)
    window: timedelta | None = None
    discarded: int = 0
    growth: int | None = None
    up_to: int | None = None
    slices: int = 1

    @classmethod
    def of(
        cls, descriptor: Descriptor, counted: Counted, name: str, strategy: str, memory_bytes: int
    ) -> FilterInfo:
        """Return what follows from the parameters and how full the filter is."""
        size, window, growth = descriptor.size, descriptor.window, descriptor.growth
        num_bits, rate = counted.num_bits or descriptor.num_bits, counted.error_rate
        fill_ratio = counted.bits_set / num_bits
        return cls(
            name=name,
            capacity=descriptor.capacity,
            error_rate=descriptor.error_rate,
            num_bits=num_bits,
            num_hashes=size.num_hashes,
            seeds=descriptor.seeds,
            key_kind=None if descriptor.key is None else descriptor.key.kind,
            shards=size.shards,
            generation=descriptor.generation,
            strategy=strategy,
            bits_set=counted.bits_set,
            fill_ratio=fill_ratio,
            estimated_count=counted.items,
            current_error_rate=descriptor.error_rate_at_fill(fill_ratio) if rate is None else rate,
            memory_bytes=memory_bytes,
            window=window.length if window else None,
            discarded=counted.discarded,
            growth=growth.factor if growth else None,
            up_to=descriptor.most_items if growth else None,
            slices=counted.slices,
        )


def info(state: FilterState) -> Core[FilterInfo]:
    """Return all that is known; three round trips, and one more for each 128 MiB."""
    view, counted = yield from _counted(state)
    keys = [state.keys.meta]
    for shard in view.shards:
        native = native_key(shard.key, view.descriptor.generation)
        keys += [shard.key, discards_key(shard.key), native]
    asked = [call(key, encode_command("MEMORY", "USAGE", key)) for key in keys]
    try:
        memory = sum(size or 0 for (size,) in (yield from in_parallel(asked)))
    except ResponseError:
        memory = 0
    known = FilterInfo.of(view.descriptor, counted, state.keys.name, state.strategy.name, memory)
    claims = yield from count_claims(view)
    return replace(known, route=state.route, claims=claims)


def count(state: FilterState) -> Core[int]:
    _, counted = yield from _counted(state)
    return counted.items


def _counted(state: FilterState) -> Core[tuple[View, Counted]]:
    def count_now(view: View) -> Core[tuple[View, Counted] | None]:
        counted = yield from count_items(view.descriptor, view.shards)
        return None if counted is None else (view, counted)

    return (yield from in_one_generation(state, count_now))
