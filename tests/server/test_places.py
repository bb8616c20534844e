"""Directories that are long, foreign, full or not what they should be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import redis

from bloomlock import server
from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.server.embedded import find_home

NOBODY = 65534


@pytest.fixture
def foreign(base, use_home):
    if os.geteuid() != 0:
        return use_home(Path("/usr"))
    path = base / "foreign"
    path.mkdir(mode=0o777)
    os.chown(path, NOBODY, NOBODY)
    return use_home(path)


@pytest.mark.parametrize("name", ["long" * 30, os.fsdecode(b"latin-\xe9")])
def test_a_directory_that_no_socket_fits_in_is_refused(base, use_home, name):
    use_home(base / name)
    for function in (server.embedded_url, server.stop, server.status):
        with pytest.raises(ServerError, match="too long for a unix socket, or its name is no UTF"):
            function()


@pytest.mark.parametrize("name", ["q? a=b&db=7", "100%25#x ümläut-☃", "a'b\"c\\d"])
def test_special_characters_in_the_path(base, use_home, name):
    home = use_home(base / name)
    client = redis.Redis.from_url(server.embedded_url())
    client.set("key", 1)
    assert server.status()["db0"]["keys"] == 1
    assert (home / "appendonlydir").is_dir()
    assert server.stop() is True


def test_two_spellings_of_a_directory_lead_to_one_server(base, use_home):
    (base / "real").mkdir()
    (base / "link").symlink_to(base / "real")
    use_home(base / "real" / "home")
    url = server.embedded_url()
    use_home(base / "link" / "home")
    assert server.embedded_url() == url


def test_a_relative_home_is_refused(monkeypatch):
    monkeypatch.setenv("BLOOMLOCK_HOME", "data")
    for function in (server.embedded_url, server.stop, server.status):
        with pytest.raises(ConfigurationError, match=r"BLOOMLOCK_HOME is 'data': .* absolute"):
            function()


def test_the_home_of_the_user_is_the_default(monkeypatch, base):
    monkeypatch.delenv("BLOOMLOCK_HOME")
    monkeypatch.setenv("HOME", str(base))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    found = find_home().data_dir
    assert found.is_relative_to(base)
    assert found.name == "bloomlock"
    monkeypatch.setenv("BLOOMLOCK_HOME", "~/mine")
    assert find_home().data_dir == base / "mine"


def test_a_directory_of_somebody_else_is_refused(foreign):
    for function in (server.embedded_url, server.stop, server.status):
        with pytest.raises(ServerError, match=rf"^{foreign} belongs to user \d+ and this process"):
            function()


@pytest.mark.parametrize("mode", [0o775, 0o707, 0o1777])
def test_a_directory_that_others_can_write_is_refused(home, mode):
    home.mkdir()
    home.chmod(mode)
    expected = rf"^{home} can be written by other users \(mode {mode:04o}\), .* chmod it to 0700"
    for function in (server.embedded_url, server.stop, server.status):
        with pytest.raises(ServerError, match=expected):
            function()
    assert stat.S_IMODE(home.stat().st_mode) == mode
    assert list(home.iterdir()) == []
