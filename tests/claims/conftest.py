"""What the tests of claims share: a proxy that loses replies, and clocks that a test moves."""

from __future__ import annotations

import contextlib

import pytest
from claim_tools import stopped_clock
from flat_options import given
from proxy import Proxy

from bloomlock import BloomFilter


@pytest.fixture(scope="package")
def stopped(tmp_path_factory):
    """A server whose clock stands still, for all of these tests."""
    with stopped_clock(tmp_path_factory.mktemp("clock")) as clock:
        yield clock


@pytest.fixture
def clock(stopped, monkeypatch):
    """The clocks of that server, emptied, and of its clients here."""
    stopped.client.flushall()
    stopped.rule(monkeypatch)
    return stopped


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
