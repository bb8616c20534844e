"""What the tests of `@once` share."""

from __future__ import annotations

import pytest
from claim_tools import stopped_clock

from bloomlock import BloomFilter


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """The clocks of another server, and of all clients here."""
    with stopped_clock(tmp_path) as made:
        made.rule(monkeypatch)
        yield made


@pytest.fixture
def done(r, valkey):
    """A filter of keys that are done."""
    with BloomFilter("done", 1000, client=valkey) as made:
        yield made
