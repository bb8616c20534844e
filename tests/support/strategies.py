"""The strategies that every filter has to work with."""

from __future__ import annotations

BITMAPS = ("atomic", "lua", "transaction", "pipeline", "lock")
"""Those that share a bitmap. Written out, so that one missing from the library fails a test."""

STRATEGIES = (*BITMAPS, "native")
"""All. A test with the parameter "native" gets servers that have BF.* (tests/conftest.py)."""


def maker_of(strategy: str) -> str:
    """Return a strategy that another client of the same filter may have."""
    return "native" if strategy == "native" else "atomic"
