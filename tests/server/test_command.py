"""`bloomlock server` in the terminal: one line, a status, never a traceback."""

from __future__ import annotations

import os
import re
import signal

import pytest
import redis
from click.testing import CliRunner, Result

from bloomlock import server
from bloomlock.cli.server import server_group


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(server_group, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_start_status_stop(home, monkeypatch):
    url = f"unix://{home}/server.sock?db=0"
    shown = run("status")
    assert (shown.output, shown.exit_code) == (f"not running, data in {home}\n", 3)
    assert not home.exists()
    started = run("start")
    assert re.fullmatch(rf"started: pid \d+, {re.escape(url)}\n", started.output)
    assert started.exit_code == 0
    again = run("start")
    assert again.output == started.output.replace("started", "already running")
    assert again.exit_code == 0
    redis.Redis.from_url(url).set("key", 1)
    shown = run("status")
    assert re.fullmatch(
        rf"running: pid \d+, Valkey 9\.\S+, up \d+ s, 1 keys, \S+ MiB of memory, \d+ B on disk, "
        rf"{re.escape(url)}\n",
        shown.output,
    )
    assert shown.exit_code == 0
    os.kill(server.status().pid, signal.SIGSTOP)
    monkeypatch.setattr("bloomlock.server.embedded._STATUS_TIMEOUT", 0.2)
    hung = run("status")
    assert (hung.exit_code, hung.output.count("\n")) == (1, 1)
    assert hung.output.startswith("Error: the embedded server in ")
    assert run("stop", "--timeout", "1").output == "stopped\n"
    assert server.status().running is False
    stopped = run("stop")
    assert (stopped.output, stopped.exit_code) == ("was not running\n", 0)


@pytest.mark.parametrize("command", ["start", "stop", "status"])
def test_an_error_is_one_sentence(base, use_home, command):
    (base / "file").touch()
    use_home(base / "file")
    result = run(command)
    assert result.exit_code == 1
    assert result.output == (
        f"Error: {base}/file is not a directory; move it away, or set BLOOMLOCK_HOME to another "
        f"directory or give the URL of a server\n"
    )


def test_a_bad_timeout_is_refused():
    result = run("start", "--timeout", "nan")
    assert result.exit_code != 0
    assert "timeout" in result.output
