"""The layouts by name: the arithmetic of each, under the same names in one module each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from . import blocked, sizing
from .errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .sizing import Size

Layout = Literal["classic", "blocked"]
CLASSIC: Layout = "classic"
BLOCKED: Layout = "blocked"


class Formulas(Protocol):
    """What a layout says about sizes and rates; `sizing` and `blocked` document the functions."""

    def size_for(
        self,
        capacity: int,
        error_rate: float,
        *,
        num_hashes: int | None = None,
        shards: int | None = None,
    ) -> Size:
        """Return the smallest filter that holds `capacity` items at `error_rate`."""

    def expected_error_rate(self, count: float, num_bits: int, num_hashes: int) -> float:
        """Return the false-positive rate after `count` distinct items."""

    def error_rate_at_fill(self, fill_ratio: float, num_hashes: int) -> float:
        """Return the false-positive rate of a filter with this part of its bits set."""

    def estimate_count(self, bits_set: float, num_bits: int, num_hashes: int) -> float:
        """Return the number of distinct items from the number of set bits."""

    def estimate_deviation(
        self, capacity: float, num_bits: int, num_hashes: int, sampled_bits: int
    ) -> float:
        """Return the standard deviation of `estimate_count` at capacity."""


LAYOUTS: Mapping[str, Formulas] = {CLASSIC: sizing, BLOCKED: blocked}


def check_layout(layout: object, seeds: object = None) -> str:
    """Return `layout`, or raise ConfigurationError.

    >>> check_layout("blocked")
    'blocked'
    """
    if not isinstance(layout, str) or layout not in LAYOUTS:
        known = " or ".join(map(repr, LAYOUTS))
        raise ConfigurationError(f"layout must be {known}, not {layout!r:.80}")
    if layout == BLOCKED and seeds is not None:
        raise ConfigurationError(
            "seeds must be None with layout='blocked', which takes all bits of an item from one "
            f"digest, not {seeds!r:.80}"
        )
    return layout
