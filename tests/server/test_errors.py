"""Servers that died, hang, read their data or lost their socket."""

from __future__ import annotations

import os
import signal

import pytest
import redis
import servers

from bloomlock import server
from bloomlock.errors import ServerError
from bloomlock.server import embedded
from bloomlock.server.embedded import Home, find_home

LAST_FILE = "appendonlydir/appendonly.aof.1.incr.aof"


def command(*words: str) -> bytes:
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
    return b"*%d\r\n%s" % (len(words), parts)


def test_a_hung_server_is_told_of_and_left_alone_until_stop(home, monkeypatch, pid):
    monkeypatch.setattr(embedded, "_STATUS_TIMEOUT", 0.2)
    server.embedded_url()
    number = pid()
    monkeypatch.setattr(embedded, "_START_TIMEOUT", 0.3)
    monkeypatch.setattr(embedded, "_PING_TIMEOUT", 0.2)
    os.kill(number, signal.SIGSTOP)
    message = rf"\(pid {number}\) runs but does not answer; end it with `bloomlock server stop`"
    with pytest.raises(ServerError, match=message):
        server.embedded_url()
    with pytest.raises(ServerError, match=message):
        server.status()
    # Its lock is held: even without its socket no second server is started on these data.
    (home / "server.sock").rename(home / "kept.sock")
    with pytest.raises(ServerError, match="runs but does not answer"):
        server.embedded_url()
    (home / "kept.sock").rename(home / "server.sock")
    assert servers.exists(number)
    assert (home / "server.log").read_text().count("Valkey is starting") == 1
    assert server.stop(timeout=1.0) is True
    # Its lock goes a moment before it does.
    servers.wait_until(lambda: not servers.exists(number))
    server.embedded_url()
    assert pid() != number


def test_a_server_whose_socket_was_removed_is_told_of(home, monkeypatch, pid):
    monkeypatch.setattr(embedded, "_HANG_TIMEOUT", 0.2)
    redis.Redis.from_url(server.embedded_url()).set("seen", "yes")
    first = pid()
    (home / "server.sock").unlink()
    with pytest.raises(ServerError, match="end it with `bloomlock server stop`"):
        server.embedded_url()
    assert server.stop()
    assert redis.Redis.from_url(server.embedded_url()).get("seen") == b"yes"
    assert pid() != first


@pytest.mark.usefixtures("home")
def test_stop_ends_a_server_that_a_script_keeps_busy(monkeypatch, pid):
    url = server.embedded_url()
    number = pid()
    client = redis.Redis.from_url(url, socket_timeout=0.3, retry=None)
    client.config_set("busy-reply-threshold", 50)
    with pytest.raises(redis.TimeoutError):
        client.eval("while true do end", 0)
    monkeypatch.setattr(embedded, "_START_TIMEOUT", 0.3)
    with pytest.raises(ServerError, match="is not ready in time: BUSY"):
        server.embedded_url()
    assert server.stop() is True
    assert not servers.exists(number)


def test_the_caller_waits_until_the_data_are_read(home):
    redis.Redis.from_url(server.embedded_url()).set("first", 1)
    server.stop()
    work = command("EVAL", "for i = 1, 5000 do end redis.call('INCR', 'n')", "0")
    with (home / LAST_FILE).open("ab") as aof:
        aof.write(work * 4000 + command("SET", "last", "1"))
    client = redis.Redis.from_url(server.embedded_url())
    assert client.mget("first", "n", "last") == [b"1", b"4000", b"1"]


def test_a_server_that_dies_while_starting_leaves_its_last_words(home):
    redis.Redis.from_url(server.embedded_url()).set("key", 1)
    server.stop()
    with (home / LAST_FILE).open("ab") as aof:
        aof.write(b"this is no command\r\n" * 10)
    for _ in range(2):
        with pytest.raises(ServerError) as caught:
            server.embedded_url()
        assert "ended while it was starting; its last log lines: " in str(caught.value)
        assert "Bad file format reading the append only file" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert server.status() is None


def test_data_in_use_on_another_host_are_left_alone(home, monkeypatch, pid):
    monkeypatch.setattr(embedded, "_HANG_TIMEOUT", 0.2)
    server.embedded_url()
    number = pid()
    # What a home directory on the network shows of the server of another machine.
    (home / "server.alive").write_text("elsewhere")
    (home / "server.sock").unlink()
    for function in (server.embedded_url, server.stop, server.status):
        with pytest.raises(ServerError, match="embedded server of the host elsewhere"):
            function()
    assert servers.exists(number)


def test_stop_waits_for_the_process_id_of_a_server_that_starts(home, monkeypatch, pid):
    """Another process has just started it; it has neither a socket yet nor written its id."""
    server.embedded_url()
    number, asked = pid(), []
    find_home().socket_path.unlink()

    def late(_):
        asked.append(number)
        return None if len(asked) < 5 else number

    monkeypatch.setattr(Home, "pid", late)
    assert server.stop()
    assert not find_home().is_alive()
