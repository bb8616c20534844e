"""A server, and a proxy in front of it that the tests tell what to lose."""

from __future__ import annotations

import pytest
import redis
from loss_proxy import LossProxy


@pytest.fixture
def server(valkey):
    """A direct client of an empty server."""
    with redis.Redis.from_url(valkey) as made:
        made.flushall()
        yield made


@pytest.fixture
def proxy(valkey):
    """A proxy that loses nothing until its `judge` is replaced."""
    with LossProxy(valkey, lambda _name, _number: "pass") as made:
        yield made
