"""Throw-away servers, of each kind there is."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_an_exception_ends_it_too(binary):
    message = "the test's own"
    server = PrivateServer(binary=binary)

    def fail() -> None:
        with server:
            seen.extend((server.directory, server.pid))
            raise RuntimeError(message)

    seen: list[Any] = []
    with pytest.raises(RuntimeError, match=message):
        fail()
    directory, pid = seen
    assert not servers.exists(pid)
    assert not directory.exists()


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
        "        time.sleep(60)\n"
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


def test_kill_and_start_on_the_same_socket(binary):
    with PrivateServer(binary=binary) as server:
        client_of(server).set("key", 1)
        url, pid = server.url, server.pid
        server.kill()
        assert not servers.exists(pid)
        assert not server.running
        with pytest.raises(ServerError, match="is not running"):
            _ = server.pid
        assert server.socket_path.is_socket()  # stale, as after a crash
        server.start()
        assert server.url == url
        assert server.pid != pid
        assert client_of(server).dbsize() == 0


def test_restart_keeps_what_the_config_keeps(binary):
    with PrivateServer(binary=binary, config={"appendonly": True}, port=0) as server:
        port = server.port
        client_of(server).set("key", 1)
        server.restart()
        assert server.port == port
        assert client_of(server).get("key") == "1"
        server.kill()
        server.start()
        assert client_of(server).get("key") == "1"


def test_stop_in_peace_and_start_twice():
    with PrivateServer() as server:
        server.stop()
        assert not server.running
        assert "ready to exit" in (server.directory / "server.log").read_text()
        server.stop()
        server.start()
        pid = server.pid
        server.start()
        assert server.pid == pid


def test_a_suspended_server_is_ended():
    with PrivateServer() as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    assert not servers.exists(pid)


def test_a_server_that_ended_by_itself_is_not_running():
    with PrivateServer() as server:
        client_of(server).shutdown(nosave=True)
        servers.wait_until(lambda: not server.running)
        server.start()
        assert client_of(server).ping()


def test_a_port_of_the_loopback_interface(binary):
    with PrivateServer(binary=binary, port=0) as server:
        # No outgoing connection takes it while the server restarts.
        assert 10_240 <= server.port < 32_768
        assert server.tcp_url == f"redis://127.0.0.1:{server.port}/0"
        client = redis.Redis.from_url(server.tcp_url, decode_responses=True)
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
        with PrivateServer(binary=binary, port=0) as other:
            assert other.port != server.port
    with PrivateServer() as server, pytest.raises(ServerError, match="has no TCP port"):
        _ = server.tcp_url


def test_a_port_in_use_is_told_with_the_log():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = PrivateServer(port=taken.getsockname()[1])
        with pytest.raises(ServerError, match=r"ended while it was starting; .*in use"):
            server.start()
        assert not server.running


def test_directives(binary):
    config = {
        "maxmemory": 10_000_000,
        "hash-max-listpack-entries" if "valkey" in binary.name else "hash-max-ziplist-entries": 7,
        "user": ["default", "on", "nopass", "~*", "&*", "+@all", "-eval"],
        "save": ["3600", "1"],
        "appendonly": True,
    }
    with PrivateServer(binary=binary, config=config) as server:
        client = client_of(server)
        assert client.config_get("maxmemory")["maxmemory"] == "10000000"
        assert client.config_get("save")["save"] == "3600 1"
        assert client.config_get("appendonly")["appendonly"] == "yes"
        assert "7" in client.config_get("hash-max-*-entries").values()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.eval("return 1", 0)


def test_a_server_with_a_password(binary):
    with PrivateServer(binary=binary, config={"requirepass": "a b"}) as server:
        with pytest.raises(redis.AuthenticationError):
            client_of(server).ping()
        assert redis.Redis.from_url(f"{server.url}&password=a%20b").ping()


def test_an_unknown_directive_is_told_with_the_log(binary):
    server = PrivateServer(binary=binary, config={"no-such-thing": 1})
    with pytest.raises(ServerError, match=r"ended while it was starting; .*no-such-thing"):
        server.start()
    assert not server.running


def test_a_directory_of_the_callers_own_is_kept(base):
    place = base / "kept"
    with PrivateServer(directory=place, config={"appendonly": True}) as server:
        assert server.directory == place
        client_of(server).set("key", 1)
    assert (place / "server.log").exists()
    with PrivateServer(directory=place, config={"appendonly": True}) as server:
        assert client_of(server).get("key") == "1"


def test_a_long_directory_has_its_socket_elsewhere(base, monkeypatch):
    place = base / ("long" * 30)
    with PrivateServer(directory=place) as server:
        assert client_of(server).ping()
        elsewhere = server.socket_path.parent
        assert elsewhere != place
    assert not elsewhere.exists()
    assert place.exists()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    with PrivateServer() as server:
        assert client_of(server).ping()


@pytest.mark.parametrize("port", [-1, 65536, "6379", 1.5, True])
def test_a_bad_port(port):
    with pytest.raises(ConfigurationError, match=r"^port is .*: it must be None, 0 "):
        PrivateServer(port=port)


@pytest.mark.parametrize("binary", ["/no/such/server", "/etc/passwd", "no-such-server", "/"])
def test_a_bad_binary(binary):
    with pytest.raises(ConfigurationError, match=rf"^binary is '{binary}': it must be"):
        PrivateServer(binary=binary)


@pytest.mark.parametrize("name", ["port", "UnixSocket", "dir", "daemonize"])
def test_a_directive_that_belongs_to_the_server(name):
    with pytest.raises(ConfigurationError, match=f"^config holds {name.lower()}='x': this dir"):
        PrivateServer(config={name: "x"})


def test_a_program_that_is_no_server():
    server = PrivateServer(binary="/bin/false")
    with pytest.raises(ServerError, match="/bin/false ended while it was starting; it wrote noth"):
        server.start()


def test_nothing_exists_before_the_start():
    server = PrivateServer()
    for name in ("url", "socket_path", "directory", "pid"):
        with pytest.raises(ServerError):
            getattr(server, name)
    assert repr(server) == "<PrivateServer valkey-server not running>"
