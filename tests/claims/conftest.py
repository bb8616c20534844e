"""What the tests of claims share: filters, and a proxy that loses replies."""

from __future__ import annotations

import contextlib

import pytest
from flat_options import given
from proxy import Proxy

from bloomlock import BloomFilter


@pytest.fixture
def proxy(clock):
    with Proxy(clock.url, handshake=False) as made:
        yield made


@pytest.fixture
def make(clock):
    with contextlib.ExitStack() as stack:
        yield lambda client=clock.url, **options: stack.enter_context(
            BloomFilter("pages", 1000, client=client, **given(options))
        )


@pytest.fixture
def mine(make):
    return make()


@pytest.fixture
def other(mine, make):
    return make()
