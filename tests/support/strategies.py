"""The strategies that every filter has to work with."""

from __future__ import annotations

STRATEGIES = ("atomic", "lua", "transaction", "pipeline", "lock")
"""Written out, so that a strategy missing from the library fails a test."""
