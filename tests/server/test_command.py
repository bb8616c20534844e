"""`bloomlock server` in the terminal: one line, a status, never a traceback."""

from __future__ import annotations

import os
import re
import signal

import pytest
import redis

from bloomlock import server
from bloomlock.cli import main


@pytest.fixture
def run(capsys):
    """Run `bloomlock server` in this process; give its exit status and what it writes."""

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["server", *arguments])
        return ended.value.code, "".join(capsys.readouterr())

    return run


def test_status_and_stop(run, home, monkeypatch):
    url = f"unix://{home}/server.sock?db=0"
    assert run("status") == (3, f"not running, data in {home}\n")
    assert not home.exists()
    server.embedded_url()
    redis.Redis.from_url(url).set("key", 1)
    status, shown = run("status")
    assert re.fullmatch(
        rf"running: pid \d+, Valkey 9\.\S+, up 0:\d\d:\d\d, 1 keys, \S+ MB of memory, \d+ bytes on "
        rf"disk, {re.escape(url)}\n",
        shown,
    )
    assert status == 0
    os.kill(server.status()["process_id"], signal.SIGSTOP)
    monkeypatch.setattr("bloomlock.server.embedded._STATUS_TIMEOUT", 0.2)
    status, shown = run("status")
    assert (status, shown.count("\n")) == (2, 1)
    assert shown.startswith("bloomlock: the embedded server in ")
    status, shown = run("stop", "--timeout", "1")
    assert (status, shown.splitlines()[0]) == (0, "stopped")
    assert server.status() is None
    assert run("stop") == (0, "was not running\n")


@pytest.mark.parametrize("command", ["stop", "status"])
def test_an_error_is_one_sentence(run, base, use_home, command):
    (base / "file").touch()
    use_home(base / "file")
    status, shown = run(command)
    assert status == 2
    assert shown == (
        f"bloomlock: {base}/file is not a directory; move it away, or set BLOOMLOCK_HOME to "
        f"another directory or give the URL of a server\n"
    )
