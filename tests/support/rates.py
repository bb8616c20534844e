"""The false-positive rate of one shard, with what the formula of its size leaves out."""

from __future__ import annotations

import math

from bloomlock.sizing import whole_collisions


def expected_error_rate(count, num_bits, num_hashes):
    """(1 - e^(-kn/m))^k."""
    return (-math.expm1(-num_hashes * count / num_bits)) ** num_hashes


def rate_of(count, num_bits, num_hashes):
    """With the unevenness of the number X of set bits in (X/m)^k (to the second order)."""
    filled, pairs = num_hashes * count / num_bits, num_hashes * (num_hashes - 1) / 2
    fill, clear = -math.expm1(-filled), math.exp(-filled)
    variance = num_bits * clear * (1 - (1 + filled) * clear)
    uneven = 1 + pairs * max(variance, 0.0) / (num_bits * fill) ** 2
    return fill**num_hashes * uneven + whole_collisions(fill, num_bits, num_hashes)
