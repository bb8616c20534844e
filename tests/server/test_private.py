"""Throw-away servers, of each kind there is."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import redis
import servers

from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.server import PrivateServer


@pytest.fixture(params=servers.FINDERS)
def binary(request):
    return servers.require_server(request.param)


def client_of(server: PrivateServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


def test_it_is_private_and_leaves_nothing_behind(binary):
    with PrivateServer(binary=binary) as server:
        client = client_of(server)
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("port") == {"port": "0"}
        assert client.config_get("appendonly") == {"appendonly": "no"}
        assert client.config_get("save") == {"save": ""}
        assert server.port is None
        directory, pid, path = server.directory, server.pid, server.socket_path
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert not servers.exists(pid)
    assert not directory.exists()
    assert not server.running


@pytest.mark.parametrize("way", ["sys.exit(1)", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_it_does_not_outlive_its_owner(python, way):
    done = python(
        "import os, sys\n"
        "from bloomlock.server import PrivateServer\n"
        "server = PrivateServer()\n"
        "server.start()\n"
        "print(server.pid, server.directory, flush=True)\n" + way
    )
    pid, directory = done.stdout.split()
    servers.wait_until(lambda: not servers.exists(int(pid)))
    servers.wait_until(lambda: not Path(directory).exists())


def test_ctrl_c_leaves_it_to_its_owner():
    code = (
        "import time, redis\n"
        "from bloomlock.server import PrivateServer\n"
        "with PrivateServer() as server:\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(600)\n"
        "    except KeyboardInterrupt:\n"
        "        print(redis.Redis.from_url(server.url).ping())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        os.killpg(owner.pid, signal.SIGINT)
        assert owner.stdout.read() == "True\n"


def test_a_fork_does_not_end_the_server_of_its_parent():
    with PrivateServer() as server:
        child = os.fork()
        if child == 0:
            alive = server.running
            server.kill()
            server.close()
            os._exit(0 if alive else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert client_of(server).ping()
        assert server.directory.exists()


def test_directives():
    config = {
        "maxmemory": 10_000_000,
        "requirepass": "a b",
        "user": ["other", "on", "nopass", "~*", "&*", "+@all", "-eval"],
        "save": ["3600", "1"],
    }
    with PrivateServer(config=config) as server:
        with pytest.raises(redis.AuthenticationError):
            client_of(server).ping()
        client = redis.Redis.from_url(f"{server.url}&password=a%20b", decode_responses=True)
        assert client.config_get("maxmemory")["maxmemory"] == "10000000"
        assert client.config_get("save")["save"] == "3600 1"
        assert any("user other on" in line for line in client.acl_list())


def test_a_port_of_the_loopback_interface():
    with PrivateServer(port=0) as server:
        # No outgoing connection takes it while the server restarts.
        assert 10_240 <= server.port < 32_768
        assert server.tcp_url == f"redis://127.0.0.1:{server.port}/0"
        client = redis.Redis.from_url(server.tcp_url, decode_responses=True)
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
        with PrivateServer(port=0) as other:
            assert other.port != server.port
    with PrivateServer() as server, pytest.raises(ServerError, match="has no TCP port"):
        _ = server.tcp_url


def test_it_ends_and_starts_again_at_its_addresses():
    with PrivateServer(config={"appendonly": True}, port=0) as server:
        url, port, pid = server.url, server.port, server.pid
        client_of(server).set("key", 1)
        ends = (server.kill, server.stop, lambda: client_of(server).shutdown(nosave=True))
        for end in ends:
            end()
            servers.wait_until(lambda: not server.running)
            with pytest.raises(ServerError, match="is not running"):
                _ = server.pid
            server.start()
            server.start()
            assert (server.url, server.port) == (url, port)
            assert client_of(server).get("key") == "1"
        server.restart()
        assert client_of(server).get("key") == "1"
        assert server.pid != pid
        os.kill(server.pid, signal.SIGSTOP)
        pid = server.pid
    assert not servers.exists(pid), "also a suspended one"


@pytest.mark.parametrize("port", [65536, "6379", True])
def test_a_bad_port(port):
    with pytest.raises(ConfigurationError, match=r"^port is .*: it must be None, 0 "):
        PrivateServer(port=port)


@pytest.mark.parametrize("binary", ["/no/such/server", "/etc/passwd", "no-such-server"])
def test_a_bad_binary(binary):
    with pytest.raises(ConfigurationError, match=rf"^binary is '{binary}': it must be"):
        PrivateServer(binary=binary)


@pytest.mark.parametrize("name", ["port", "UnixSocket", "dir", "daemonize"])
def test_a_directive_that_belongs_to_the_server(name):
    with pytest.raises(ConfigurationError, match=f"^config holds {name.lower()}='x': this dir"):
        PrivateServer(config={name: "x"})
