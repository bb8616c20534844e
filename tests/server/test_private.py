"""Throw-away servers."""

from __future__ import annotations

from pathlib import Path

import redis
import servers

from bloomlock.server import PrivateServer


def test_it_ends_and_leaves_nothing_behind():
    with PrivateServer() as server:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        path = Path(client.config_get("unixsocket")["unixsocket"])
        pid = client.info("server")["process_id"]
        assert client.config_get("port") == {"port": "0"}
    assert not servers.exists(pid)
    assert not path.parent.exists()
