"""Many processes that want the embedded server at the same moment get one server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import redis

from bloomlock import server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STARTERS = 8
ROUNDS = 10
WORKER = """
import os, sys
import redis
from bloomlock.server import embedded_url
print("ready", flush=True)
for line in sys.stdin:
    os.environ["BLOOMLOCK_HOME"] = line.strip()
    url = embedded_url()
    try:
        print(url, redis.Redis.from_url(url).info("server")["run_id"], flush=True)
    except redis.ConnectionError:
        print(url, "stopped meanwhile", flush=True)
"""


class Starters:
    def __init__(self) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for _ in range(STARTERS)
        ]
        assert self.answers() == ["ready\n"] * STARTERS

    def answers(self) -> list[str]:
        return [process.stdout.readline() for process in self.processes if process.stdout]

    def go(self, home: Path) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{home}\n")

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def starters() -> Iterator[Starters]:
    made = Starters()
    yield made
    made.end()


@pytest.mark.processes
def test_eight_starters_at_once_get_one_server(home, starters, pid):
    for number in range(ROUNDS):
        starters.go(home)
        answers = starters.answers()
        url, _ = answers[0].split()
        assert answers == [answers[0]] * STARTERS, f"round {number}"
        assert "stopped" not in answers[0]
        assert url == f"unix://{home}/server.sock?db=0"
        client = redis.Redis.from_url(url)
        assert client.incr("rounds") == number + 1
        log = (home / "server.log").read_text()
        assert log.count("Valkey is starting") == number + 1, f"round {number}"
        # Every second time it goes as in a crash: its socket stays behind.
        if number % 2:
            os.kill(pid(), signal.SIGKILL)
        else:
            server.stop()


@pytest.mark.processes
def test_starters_and_a_stopper_never_lose_data(home, starters):
    for number in range(ROUNDS):
        starters.go(home)
        assert len(set(starters.answers())) == 1
        assert redis.Redis.from_url(server.embedded_url()).incr("rounds") == number + 1
        starters.go(home)
        # Some of them find the old server, some wait for its end and start the next one.
        server.stop()
        assert all(line.startswith("unix://") for line in starters.answers())
    assert (home / "server.log").read_text().count("Valkey is starting") <= 2 * ROUNDS + 1
