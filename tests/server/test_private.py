"""Throw-away servers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis
import servers
from private import PrivateServer as AnyServer

from bloomlock.server import PrivateServer


def test_it_ends_and_leaves_nothing_behind():
    with PrivateServer() as server:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        path = Path(client.config_get("unixsocket")["unixsocket"])
        pid = client.info("server")["process_id"]
        assert client.config_get("port") == {"port": "0"}
    assert not servers.exists(pid)
    assert not path.parent.exists()


@pytest.mark.parametrize("way", ["sys.exit(1)", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_no_server_of_a_test_outlives_its_owner(python, way):
    done = python(
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(servers.__file__).parent)!r})\n"
        "from private import PrivateServer\n"
        "server = PrivateServer()\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n" + way
    )
    servers.wait_until(lambda: not servers.exists(int(done.stdout)))


def test_a_fork_does_not_end_the_server_of_its_parent():
    with AnyServer() as server:
        child = os.fork()
        if child == 0:
            server.kill()
            server.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert redis.Redis.from_url(server.url).ping()
        assert server.directory.exists()
