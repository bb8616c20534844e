"""What the tests of claims share: a proxy that loses replies, and clocks that a test moves."""

from __future__ import annotations

import pytest
from claim_tools import stopped_clock
from proxy import Proxy


@pytest.fixture
def proxy(valkey):
    """A proxy before that Valkey; it loses nothing until its `judge` is replaced."""
    with Proxy(valkey, handshake=False) as made:
        yield made


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
