"""From capacity and error rate to bits and hash functions, and back. Pure arithmetic.

A. Broder, M. Mitzenmacher, "Network applications of Bloom filters: a survey", Internet Mathematics
1(4), 2004: the rate (1 - e^(-kn/m))^k and its optimum k = (m/n) ln 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, cast, get_args

from .errors import ConfigurationError

Optimize = Literal["memory", "balanced", "speed"]
BALANCED: Optimize = "balanced"

FIRST_BYTE = 24
"""A shard begins with 8 bytes of header and 16 of state; what follows are bitmaps."""
FIRST_BIT = 8 * FIRST_BYTE

MAX_SHARD_BITS = 2**32 - FIRST_BIT
"""A Redis string holds at most 512 MiB (https://redis.io/docs/latest/commands/setbit/)."""

MAX_SHARDS = 2**12
USUAL_NATIVE_ITEMS, MAX_NATIVE_ITEMS = 2**29, 2**30
"""Items that one key of the server's own filter is, and may be, made for."""
MAX_CAPACITY = 10**15
"""More than the largest shards hold at any rate."""

MIN_SHARD_BITS = 8192

USUAL_SHARD_BITS = 6 * 2**23
"""Shards of 6 MiB unless their number is given. A bitmap is merged into a shard as a whole, with
answers up to 8 MiB: a batch that is large against its shard costs a tenth of what it else does."""

MAX_HASHES = 64
MEMORY_SLACK = 1.018
SPEED_SLACK = 3.0
BALANCE_SLACK = 1.1
CALL_IN_BITS = 5
"""What a call takes of the server beside the bits of its item, in the time of one bit."""

MAX_BITS_PER_ITEM = 1000
MIN_ERROR_RATE = 1e-15

RATE_TOLERANCE = 1.05
"""By which factor the rate of a small filter may exceed what the formula says, because the number
of its set bits varies and other items have all offsets of a new one."""
_UNIT = 1024


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a filter; `shard_bits` is without the header."""

    shard_bits: int
    num_hashes: int
    shards: int

    @property
    def num_bits(self) -> int:
        """Bits of all shards together, m."""
        return self.shard_bits * self.shards


def bytes_text(number: float) -> str:
    """Return a number of bytes as it stands in a sentence: '34.5 GiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < _UNIT:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= _UNIT
    return f"{number:.1f} TiB"


def check_whole(name: str, value: object, least: int, most: int, allowed: str = "") -> int:
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or not least <= int(cast("int", value)) <= most:
        allowed = allowed or f"from {least} to {most}"
        # As a power: Python refuses to write whole numbers of several thousand digits.
        is_large = isinstance(value, int) and value > MAX_CAPACITY
        shown = f"about 2^{cast('int', value).bit_length()}" if is_large else f"{value!r:.80}"
        raise ConfigurationError(f"{name} must be a whole number {allowed}, not {shown}")
    return int(cast("int", value))


def check_seconds(name: str, value: object, *, least: float, most: float = math.inf) -> float:
    # NumPy's numbers too.
    usable = isinstance(value, Real) and not isinstance(value, bool)
    if not usable or math.isnan(value) or not least <= value <= most:  # type: ignore[arg-type,operator]  # narrowed above
        limits = f"from {least:g}" + (f" to {most:g}" if most < math.inf else " on")
        raise ConfigurationError(f"{name} must be a number of seconds {limits}, not {value!r:.80}")
    return float(value)  # type: ignore[arg-type]  # a number by now


def check_flag(name: str, value: object) -> bool:
    # threading.Lock is often asked by acquire(0); NumPy's True and False are no numbers.
    is_flag = isinstance(value, Integral) or str(getattr(value, "dtype", "")) == "bool"
    if not is_flag or value not in (0, 1):
        raise ConfigurationError(f"{name} must be True or False, not {value!r:.80}")
    return bool(value)


def check_error_rate(error_rate: object) -> float:
    is_number = isinstance(error_rate, Real) and not isinstance(error_rate, bool)
    if not is_number or not MIN_ERROR_RATE <= float(cast("float", error_rate)) < 1.0:
        raise ConfigurationError(
            f"error_rate must be a number from {MIN_ERROR_RATE} up to but not including 1, "
            f"not {error_rate!r}"
        )
    return float(cast("float", error_rate))


def check_num_hashes(num_hashes: object, error_rate: float) -> int | None:
    if num_hashes is None:
        return None
    checked = check_whole(
        "num_hashes", num_hashes, 1, MAX_HASHES, f"from 1 to {MAX_HASHES} or None"
    )
    bits = bits_needed(MAX_CAPACITY, error_rate, checked) / MAX_CAPACITY
    if bits > MAX_BITS_PER_ITEM:
        raise ConfigurationError(
            f"num_hashes must be more than {num_hashes} at error_rate {error_rate:g}: it takes "
            f"{bits:.0f} bits an item, and an exact set of fingerprints takes about 600"
        )
    return checked


def check_optimize(optimize: object) -> Optimize | None:
    if optimize is not None and (
        not isinstance(optimize, str) or optimize not in get_args(Optimize)
    ):
        raise ConfigurationError(
            f"optimize must be 'memory', 'balanced', 'speed' or None, not {optimize!r:.80}"
        )
    return cast("Optimize | None", optimize)


def bits_needed(capacity: int, error_rate: float, num_hashes: int) -> int:
    """Return the smallest m for which k hash functions, any k, keep the rate at n items."""
    # Of rates near 1 the root is rounded to 1, and the logarithm of 0 does not exist.
    root = min(error_rate ** (1 / num_hashes), 1 - 2**-53)
    # log1p(-x) keeps its digits where p^(1/k) is small.
    return math.ceil(-num_hashes * capacity / math.log1p(-root))


def whole_collisions(fill_ratio: float, num_bits: int, num_hashes: int) -> float:
    """Return a bound of the chance that one other item has nearly all offsets of a new one."""
    # There are m^3 sequences of offsets. One of n items has the same with probability n/m^3, and as
    # often the same moved on by s places, for each s; of those s offsets are set by chance. Both
    # signs of s make n (1 + f)/(1 - f)/m^3 at a fill of f. Twice that is taken, because sequences
    # that agree at every other place add to it where m is a power of 2: counted exactly for m up
    # to 8192, the most was 1.8 times.
    count = estimate_count(fill_ratio * num_bits, num_bits, num_hashes)
    clear = max(1 - fill_ratio, 1 / num_bits)
    return float(min(1.0, 2 * count * (1 + fill_ratio) / clear / num_bits**3))


def best_num_hashes(error_rate: float, optimize: Optimize = BALANCED) -> int:
    """Return the fewest hash functions that are good enough; see docs/internals/format.md."""
    capacity = 10**9
    ideal = min(max(1, math.ceil(-math.log2(error_rate))), MAX_HASHES)
    costs: dict[int, float] = {k: bits_needed(capacity, error_rate, k) for k in range(1, ideal + 1)}
    if optimize == BALANCED:
        costs = {k: bits * (k + CALL_IN_BITS) for k, bits in costs.items()}
        enough = BALANCE_SLACK * min(costs.values())
    else:
        slack = MEMORY_SLACK if optimize == "memory" else SPEED_SLACK
        enough = slack * capacity * -math.log2(error_rate) / math.log(2)
    return next((k for k, cost in costs.items() if cost <= enough), ideal)


def shard_capacity(capacity: int, shards: int) -> int:
    """Return how many items one of several shards must hold."""
    if shards == 1:
        return capacity
    # Items spread over the shards by hash: a shard gets n/S give or take sqrt(n/S).
    mean = capacity / shards
    return math.ceil(mean + 3 * math.sqrt(mean))


def size_for(
    capacity: int,
    error_rate: float,
    *,
    num_hashes: int | None = None,
    shards: int | None = None,
    usual_bits: int = USUAL_SHARD_BITS,
) -> Size:
    """Return the smallest filter that holds `capacity` items at `error_rate`.

    Without `shards` it has as many as keep a shard about `usual_bits` long, or 4096.
    """
    k = num_hashes or best_num_hashes(error_rate)
    all_bits = bits_needed(capacity, error_rate, k)
    count = shards or min(MAX_SHARDS, -(-all_bits // usual_bits))
    items = shard_capacity(capacity, count)
    # With so many bits `whole_collisions` is a hundredth of the rate.
    fill = min(error_rate ** (1 / k), 1 - 2**-53)
    least = math.ceil(math.cbrt(200 * items * (1 + fill) / (1 - fill) / error_rate))
    bits = max(bits_needed(items, error_rate, k), least, MIN_SHARD_BITS)
    if bits > MAX_SHARD_BITS:
        raise too_large(capacity, error_rate, all_bits, shards)
    return Size(bits, k, count)


def native_size_for(capacity: int, error_rate: float, shards: int | None = None) -> Size:
    """Return the size of a filter of the server's own (BF.*) in as few keys as hold the items."""
    # RedisBloom makes a filter that can grow for half of the error rate, because each part that it
    # grows by is made for half the rate of the part before, and all together must keep it.
    bits_per_item = -math.log(error_rate / 2) / math.log(2) ** 2
    count = shards or min(MAX_SHARDS, -(-capacity // USUAL_NATIVE_ITEMS))
    items = shard_capacity(capacity, count)
    if items > MAX_NATIVE_ITEMS:
        raise ConfigurationError(
            f"capacity is {capacity}: with strategy='native' one shard may hold 2^30 items, and "
            f"{count} of them not as many"
        )
    hashes = math.ceil(math.log(2) * bits_per_item)
    return Size(math.ceil(items * bits_per_item), hashes, count)


def too_large(
    capacity: int, error_rate: float, num_bits: float, shards: int | None
) -> ConfigurationError:
    most = shards or MAX_SHARDS
    return ConfigurationError(
        f"capacity {capacity} at error_rate {error_rate} needs about 2^{math.log2(num_bits):.1f} "
        f"bits, but {most} shards hold 2^{32 + math.log2(most):.1f}"
    )


def error_rate_at_fill(fill_ratio: float, num_hashes: int) -> float:
    """Return the chance that an item never added finds all its k bits set: fill^k."""
    return float(fill_ratio**num_hashes)


def estimate_count(bits_set: float, num_bits: int, num_hashes: float) -> float:
    """Return the number of distinct items from that of set bits: -(m/k) ln(1 - X/m).

    S. J. Swamidass, P. Baldi, J. Chem. Inf. Model. 47(3), 2007. A full one counts as one bit less.
    """
    clear = max(num_bits - bits_set, 1.0)
    return -(num_bits / num_hashes) * math.log(clear / num_bits)


def estimate_deviation(capacity: float, num_bits: int, num_hashes: int, sampled_bits: int) -> float:
    """Return the standard deviation of `estimate_count` for a filter at its capacity."""
    # Var(X) = s e^-c (1 - (1 + c s/m) e^-c) with c = kn/m for the set ones of s of the m bits,
    # times (m/s dn/dX)^2 = (m/s e^c/k)^2.
    c = num_hashes * capacity / num_bits
    variance = (math.expm1(c) - c * sampled_bits / num_bits) / sampled_bits
    return num_bits / num_hashes * math.sqrt(max(variance, 0.0))
