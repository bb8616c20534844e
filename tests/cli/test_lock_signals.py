"""Signals on their way through `bloomlock lock` to the command."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest
from cli_process import COMMAND, PATIENCE, answer, environment, read_until, send
from servers import exists, wait_until

from bloomlock import Lock

FORWARDED = ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"]

# Says which signals came, in the order they did; a line on its input ends it.
LISTENER = """
import os, signal
for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: os.write(1, b"%d\\n" % number))
os.write(1, b"ready\\n")
os.read(0, 1)
raise SystemExit(7)
"""
LISTEN = (sys.executable, "-I", "-S", "-c", LISTENER)


@pytest.mark.parametrize("detached", [True, False], ids=["no terminal", "session of the tests"])
def test_each_signal_reaches_the_command_once(start, name, valkey, detached):
    process = start("lock", name, *LISTEN, start_new_session=detached)
    assert answer(process) == b"ready\n"
    for signal_name in FORWARDED:
        number = getattr(signal, f"SIG{signal_name}")
        process.send_signal(number)
        assert answer(process) == b"%d\n" % number
    assert Lock(name, valkey).locked()
    send(process, b"\n")
    assert process.wait(PATIENCE) == 7
    assert process.stdout.read() == b""
    assert not Lock(name, valkey).locked()


def test_who_is_asked_to_end_ends_as_the_command_does(start, name, valkey):
    process = start("lock", name, "sh", "-c", "echo on; exec sleep 1000")
    assert answer(process) == b"on\n"
    process.send_signal(signal.SIGINT)
    # A script of a shell that is interrupted ends only if its command has died of that.
    assert process.wait(PATIENCE) == -signal.SIGINT
    assert process.stderr.read() == b""
    assert not Lock(name, valkey).locked()


def test_without_a_terminal_all_of_the_command_is_told(start, name):
    code = "sleep 1000 & echo $!; wait"
    process = start("lock", name, "sh", "-c", code, start_new_session=True)
    inner = int(answer(process))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == -signal.SIGTERM
    wait_until(lambda: not exists(inner))


def test_ignored_signals_stay_ignored(valkey, name):
    words = ("lock", name, "sh", "-c", "kill -HUP $PPID $$; exit 3")
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP; "$@"', "sh", *COMMAND, *words],
        check=False,
        env=environment(valkey, {}),
    )
    assert done.returncode == 3


@pytest.fixture
def at_a_terminal(valkey):
    """Start a command as the foreground of a terminal of its own."""
    children: list[int] = []

    def at_a_terminal(*words: str) -> tuple[int, int]:
        pid, terminal = pty.fork()
        if pid == 0:
            everything = environment(valkey, {})
            os.execve(COMMAND[0], [*COMMAND, *words], everything)  # noqa: S606 - as a shell does
        children.append(pid)
        return pid, terminal

    yield at_a_terminal
    for pid in children:
        if exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_ctrl_c_reaches_the_command_once(at_a_terminal, name):
    pid, terminal = at_a_terminal("lock", name, *LISTEN)
    read_until(terminal, b"ready\r\n")
    # Two at the same moment would look like one: bloomlock gets to see it later.
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    os.write(terminal, b"\x03")
    seen = read_until(terminal, b"2\r\n")
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGUSR1)
    seen += read_until(terminal, b"%d\r\n" % signal.SIGUSR1)
    assert seen.replace(b"^C", b"").split() == [b"2", b"%d" % signal.SIGUSR1]
    os.write(terminal, b"\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    os.close(terminal)


def test_ctrl_c_ends_both(at_a_terminal, name, valkey):
    code = 'read x; echo "<$x>"; exec sleep 1000'
    pid, terminal = at_a_terminal("lock", name, "sh", "-c", code)
    # The command may read from the terminal.
    os.write(terminal, b"hello\n")
    read_until(terminal, b"<hello>\r\n")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGINT
    assert not Lock(name, valkey).locked()
    os.close(terminal)
