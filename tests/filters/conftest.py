"""What the tests of filters share."""

from __future__ import annotations

import pytest
import redis
from private import PrivateServer
from proxy import Proxy


@pytest.fixture(scope="package")
def second():
    with PrivateServer() as server:
        yield server.url


@pytest.fixture
def path(tmp_path):
    return tmp_path / "exported"


@pytest.fixture
def proxy(valkey):
    with Proxy(valkey) as made:
        yield made


@pytest.fixture
def restricted(r):
    """Make a client of a user who may do everything but what is named: `restricted("-eval")`."""
    made = []

    def make(*rules):
        r.execute_command("ACL", "SETUSER", "some", "on", ">pw", "~*", "&*", "+@all", *rules)
        path = r.connection_pool.connection_kwargs["path"]
        made.append(redis.Redis(unix_socket_path=path, username="some", password="pw"))  # noqa: S106
        return made[-1]

    yield make
    for client in made:
        client.close()
    r.acl_deluser("some")
