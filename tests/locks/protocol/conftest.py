"""A proxy in front of each kind of server, and users who may not do everything."""

from __future__ import annotations

import pytest
import redis
from proxy import Proxy


@pytest.fixture
def proxy(client, server_url):
    """A proxy in front of an empty server, that loses nothing until its `judge` is replaced."""
    with Proxy(server_url) as made:
        yield made


@pytest.fixture
def through(proxy):
    """A client that goes through the proxy."""
    with redis.Redis.from_url(proxy.url) as made:
        made.ping()
        yield made


@pytest.fixture
def as_user(client, server_url):
    """Makes a client of a user who may do everything but what is named."""
    opened = []

    def make(*rules):
        name = f"user{len(opened)}"
        client.execute_command(
            "ACL", "SETUSER", name, "reset", "on", ">secret", "~*", "&*", "+@all", *rules
        )
        made = redis.Redis.from_url(server_url, username=name, password="secret")  # noqa: S106 - of a server that lives as long as the test
        opened.append((name, made))
        return made

    yield make
    for name, made in opened:
        made.close()
        client.execute_command("ACL", "DELUSER", name)
