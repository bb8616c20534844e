"""What the tests of `@once` share."""

from __future__ import annotations

import pytest

from bloomlock import BloomFilter


@pytest.fixture
def done(r, valkey):
    with BloomFilter("done", 1000, client=valkey) as made:
        yield made
