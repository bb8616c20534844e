"""What the tests of claims share."""

from __future__ import annotations

import pytest
from proxy import Proxy


@pytest.fixture
def proxy(valkey):
    """A proxy before that Valkey; it loses nothing until its `judge` is replaced."""
    with Proxy(valkey) as made:
        yield made
