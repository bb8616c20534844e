"""What the tests of filters share."""

from __future__ import annotations

import pytest
from loss_proxy import LossProxy


@pytest.fixture
def proxy(valkey):
    """A proxy before that Valkey; it loses nothing until its `judge` is replaced."""
    with LossProxy(valkey, lambda _name, _number: "pass") as made:
        yield made
