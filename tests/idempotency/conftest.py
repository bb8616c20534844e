"""What the tests of functions and messages that take effect once share."""

from __future__ import annotations

import pytest
from proxy import Proxy

from bloomlock import BloomFilter


@pytest.fixture
def proxy(valkey):
    """A proxy before that Valkey; it loses nothing until its `judge` is replaced."""
    with Proxy(valkey) as made:
        yield made


@pytest.fixture
def done(r, valkey):
    """A filter of keys that are done."""
    with BloomFilter("done", 1000, client=valkey) as made:
        yield made
