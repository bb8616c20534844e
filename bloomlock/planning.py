"""What a filter of a given size takes: memory, shards, servers, the servers' time. Pure.

The servers' time follows from constants measured on one machine: docs/reference/figures.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from .errors import ConfigurationError
from .sizing import MAX_CAPACITY, check_whole
from .spec import RequestedSpec

if TYPE_CHECKING:
    from datetime import timedelta

    from .sizing import Optimize
    from .slices import Window

# Seconds of the server: for one command, whatever it does (as much as for PING); for one bit of an
# item that comes alone, and in a batch; for one command of a batch, of which there is one for each
# shard that the batch meets.
CALL_S, BIT_S, BATCH_BIT_S, COMMAND_S = 6.5e-6, 0.33e-6, 0.32e-6, 2.1e-6

BATCH = 1000
"""Items of a batch, where nothing else is said."""

# A bit of a filter that no processor's cache holds comes from memory, and takes longer.
LARGE_BITS, LARGE = 2**30, 1.25

WINDOW = 5.0
"""How many times as long an item takes in a filter with a time window: a script asks each slice."""

USED = 0.6
"""Share of a server's time that a plan uses; beyond it waiting grows faster than work."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a filter takes.

    Attributes:
        capacity: Distinct items it holds at `error_rate`; with a window those of one window.
        error_rate: False-positive rate when it is full.
        window_s: Seconds for which an item is remembered at least; None: for ever.
        slices: In how many slices these are divided; None without a window.
        num_hashes: Bits of an item, k.
        num_bits: Bits of all shards; with a window those of all slices.
        bits_per_item: Bits of memory for each item of the capacity.
        memory_bytes: Bytes of all shards' strings.
        shards: Redis strings.
        shard_bytes: Bytes of one.
        single_server_s: Seconds of a server for an item that comes alone.
        batch_server_s: The same for an item in a batch of `batch_size`.
        servers_for_memory: Servers that hold the shards; None if their memory was not given.
        servers_for_rate: Servers that answer the rate in batches; None if no rate was given.
    """

    capacity: int
    error_rate: float
    window_s: float | None
    slices: int | None
    num_hashes: int
    num_bits: int
    bits_per_item: float
    memory_bytes: int
    shards: int
    shard_bytes: int
    single_server_s: float
    batch_server_s: float
    servers_for_memory: int | None
    servers_for_rate: int | None

    @property
    def servers(self) -> int:
        """Servers (masters of a cluster) that are enough for what was given."""
        return max(1, self.servers_for_memory or 1, self.servers_for_rate or 1)


def plan(
    capacity: int,
    error_rate: float,
    *,
    window: timedelta | float | Window | None = None,
    optimize: Optimize | None = None,
    num_hashes: int | None = None,
    shards: int | None = None,
    server_bytes: float | None = None,
    items_per_s: float | None = None,
    batch_size: int = BATCH,
) -> Plan:
    """Return what a filter takes, before there is any.

    Args:
        capacity: Distinct items, n.
        error_rate: False-positive rate when it is full, p.
        window: As of BloomFilter; `capacity` is that of one window.
        optimize: As of BloomFilter.
        num_hashes: As of BloomFilter.
        shards: As of BloomFilter.
        server_bytes: Memory of one server for this filter. A server that saves itself by a fork
            needs more beside it, up to as much again.
        items_per_s: Items that are added or looked up in a second, in batches, at most 60 % of a
            server's time for them.
        batch_size: Items of these batches, b. A batch meets m (1 - (1 - 1/m)^b) of m shards.

    Raises:
        ConfigurationError: If a parameter is not usable, or no filter or server is so large.

    >>> made = plan(41_000_000_000, 1e-6, server_bytes=64 * 2**30, items_per_s=111_200)
    >>> made.num_hashes, made.shards, made.servers_for_memory, made.servers_for_rate
    (7, 4096, 4, 1)
    >>> f"{made.bits_per_item:.1f} bits an item, {made.memory_bytes / 2**30:.0f} GiB"
    '46.8 bits an item, 224 GiB'
    """
    for name, value in {"server_bytes": server_bytes, "items_per_s": items_per_s}.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < math.inf):
            raise ConfigurationError(
                f"{name} must be a number greater than 0 or None, not {value!r:.80}"
            )
    check_whole("batch_size", batch_size, 1, MAX_CAPACITY, "from 1 on")
    described = RequestedSpec.check(
        capacity,
        error_rate,
        shards=shards,
        num_hashes=num_hashes,
        optimize=optimize,
        window=window,
    ).describe()
    size, ring = described.size, described.window
    num_bits, shard_bytes = described.num_bits, described.shard_bytes()
    weighed = size.num_hashes * (LARGE if num_bits > LARGE_BITS else 1.0)
    if ring:
        weighed *= WINDOW
    # How many shards a batch meets, in the mean.
    met = 1.0
    if size.shards > 1:
        met = -size.shards * math.expm1(batch_size * math.log1p(-1 / size.shards))
    batch_server_s = weighed * BATCH_BIT_S + met / batch_size * COMMAND_S
    for_memory = for_rate = None
    if server_bytes is not None:
        on_one = int(server_bytes // shard_bytes)
        if not on_one:
            raise ConfigurationError(
                f"server_bytes must be at least {shard_bytes}, the bytes of one shard, "
                f"not {server_bytes!r}"
            )
        for_memory = -(-size.shards // on_one)
    if items_per_s is not None:
        for_rate = max(1, math.ceil(items_per_s * batch_server_s / USED))
        if for_rate > size.shards:
            raise ConfigurationError(
                f"items_per_s is {items_per_s:g}: {for_rate} servers would share the work, and the "
                f"filter has {size.shards} shards; give shards={for_rate} or more"
            )
    return Plan(
        capacity=described.capacity,
        error_rate=described.error_rate,
        window_s=ring.length_us / 10**6 if ring else None,
        slices=ring.slices if ring else None,
        num_hashes=size.num_hashes,
        num_bits=num_bits,
        bits_per_item=num_bits / described.capacity,
        memory_bytes=shard_bytes * size.shards,
        shards=size.shards,
        shard_bytes=shard_bytes,
        single_server_s=CALL_S + weighed * BIT_S,
        batch_server_s=batch_server_s,
        servers_for_memory=for_memory,
        servers_for_rate=for_rate,
    )
