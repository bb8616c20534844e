"""At a terminal: questions, a live view, and help."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys

import click
import pytest
from cli_process import PATIENCE, read_until

from bloomlock import BloomFilter
from bloomlock.catalog import list_filters
from bloomlock.cli import COMMANDS, cli


@pytest.fixture
def terminal():
    """Both ends of a terminal: ours, and that of the process."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("reply", "gone"),
    [(b"yes\n", True), (b"n\n", False), (b"\n", False)],
)
def test_delete_asks(start, terminal, name, *, valkey, reply, gone):
    ours, theirs = terminal
    BloomFilter(name, 1000, client=valkey).close()
    process = start("filter", "delete", name, stdin=theirs, stderr=theirs)
    read_until(ours, b"Delete '%b'? [y/N] " % name.encode())
    assert name in list_filters(client=valkey)
    os.write(ours, reply)
    assert process.wait(PATIENCE) == (0 if gone else 1)
    assert (name not in list_filters(client=valkey)) is gone


def test_top_is_live_until_ctrl_c(start, terminal, name, valkey, *, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = terminal
    with BloomFilter(name, 1000, client=valkey) as bloom:
        process = start("filter", "top", "--interval", "0", stdout=theirs)
        read_until(ours, name.encode())
        bloom.update(str(number) for number in range(500))
        read_until(ours, b" 50%")
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 1 << 16)
        assert (process.returncode, process.stderr.read()) == (0, b"")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_help_fits_a_screen_and_has_an_example(run, name):
    command = cli.get_command(click.Context(cli), name)
    below = command.commands if isinstance(command, click.Group) else []
    for words in ([name] if name else [], *([name, each] for each in below)):
        done = run(*words, "--help", COLUMNS="80")
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(" ".join(["Usage: bloomlock", *words, ""]).encode())
        lines = done.stdout.decode().splitlines()
        assert len(lines) <= 24, words
        assert max(map(len, lines)) <= 80
        assert "Example:" in lines[-1]


def test_no_command_is_an_error_with_help(run):
    done = run()
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"Usage: bloomlock ")
    assert all(f"\n  {command} ".encode() in done.stderr for command in COMMANDS)


def test_version(run):
    assert run("--version").stdout.startswith(b"bloomlock 0.")


@pytest.mark.parametrize("arguments", [["add", "--help"], ["dedup", "-"]])
def test_commands_pay_for_nothing_they_do_not_use(arguments):
    code = (
        "import sys; from bloomlock.cli import cli\n"
        f"cli.main({arguments}, standalone_mode=False)\n"
        "print({'rich', 'scrapy', 'scrapy_ext'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"a\n", capture_output=True, check=True, timeout=60
    )
    assert done.stdout.endswith(b"set()\n")
