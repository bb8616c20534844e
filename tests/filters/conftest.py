"""Clients that several files of tests share."""

from __future__ import annotations

import pytest
import redis


@pytest.fixture
def r(valkey):
    """A client of an empty Valkey."""
    with redis.Redis.from_url(valkey) as made:
        made.flushall()
        yield made
