"""Processes that want the embedded server at the same moment get one server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import redis

from bloomlock import server

STARTERS, ROUNDS = 6, 4
STARTER = """
import os, sys
import redis
from bloomlock.server import embedded_url
print("ready", flush=True)
for line in sys.stdin:
    url = embedded_url()
    try:
        print(url, redis.Redis.from_url(url).info("server")["run_id"], flush=True)
    except redis.ConnectionError:
        print(url, "stopped meanwhile", flush=True)
"""


@pytest.mark.processes
@pytest.mark.free_running
def test_starters_at_once_get_one_server(home, pid):
    """After a crash too, whose socket stays behind; and another process may stop the server."""
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(STARTERS)
    ]

    def answers():
        return [starter.stdout.readline() for starter in starters]

    def go():
        for starter in starters:
            starter.stdin.write("go\n")

    try:
        assert answers() == ["ready\n"] * STARTERS
        for number in range(ROUNDS):
            go()
            found = answers()
            assert found == [found[0]] * STARTERS, f"round {number}"
            url, run_id = found[0].split()
            client = redis.Redis.from_url(url)
            assert client.info("server")["run_id"] == run_id
            assert client.incr("rounds") == 2 * number + 1
            go()
            # Some find the old server, some wait for its end and start the next one.
            server.stop()
            assert all(line.startswith("unix://") for line in answers())
            assert redis.Redis.from_url(server.embedded_url()).incr("rounds") == 2 * number + 2
            if number % 2:
                os.kill(pid(), signal.SIGKILL)
            else:
                server.stop()
        log = (home / "server.log").read_text()
        assert log.count("Valkey is starting") == 2 * ROUNDS
    finally:
        for starter in starters:
            starter.kill()
            starter.communicate()
