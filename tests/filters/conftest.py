"""Clients that several files of tests share."""

from __future__ import annotations

import pytest
import redis


@pytest.fixture
def alone(valkey):
    """A client that is not told of changes: what it knows is bounded by time alone."""
    with redis.Redis.from_url(valkey) as admin:
        admin.flushall()
        admin.acl_setuser("alone", enabled=True, nopass=True, keys="*", channels="*",
                          commands=["+@all", "-client|tracking"])  # fmt: skip
        with redis.Redis.from_url(valkey, username="alone", password="any") as made:  # noqa: S106
            yield made
        admin.acl_deluser("alone")
