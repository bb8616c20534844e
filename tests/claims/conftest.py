"""What the tests of claims share: filters, and a proxy that loses replies."""

from __future__ import annotations

import contextlib

import pytest
from flat_options import given
from proxy import Proxy

from bloomlock import BloomFilter


@pytest.fixture
def proxy(clock):
    """A proxy before that server; it loses nothing until its `judge` is replaced."""
    with Proxy(clock.url, handshake=False) as made:
        yield made


@pytest.fixture
def make(clock):
    """Makes filters of one name on that server, and closes them."""
    with contextlib.ExitStack() as stack:
        yield lambda client=clock.url, **options: stack.enter_context(
            BloomFilter("pages", 1000, client=client, **given(options))
        )


@pytest.fixture
def mine(make):
    """A worker's filter."""
    return make()


@pytest.fixture
def other(mine, make):
    """The same filter as another worker has it."""
    return make()
