"""Slow pipes, readers that go away, signals: what was marked as seen has been written."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import termios
import threading
from pathlib import Path

import pytest
import redis
from cli_process import COMMAND, PATIENCE, answer, send
from proxy import Proxy
from servers import wait_until

LINES = [b"https://example.org/some/longer/path/%06d" % i for i in range(100_000)]
FULL_PIPE = 60_000


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return str(path)


def waits_for_its_reader(process) -> bool:
    """Return whether the process stands in a write to its full output."""
    size = array.array("i", [0])
    fcntl.ioctl(process.stdout, termios.FIONREAD, size)
    if size[0] <= FULL_PIPE:
        return False
    try:
        # The number of the system call, or "running", and its arguments.
        call = Path(f"/proc/{process.pid}/syscall").read_text("ascii").split()
    except OSError:
        return True
    return call[1:2] == ["0x1"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_line_is_answered_before_the_next_one_comes(start, name, shared):
    process = start("dedup", *(("--name", name) if shared else ()))
    for line in (b"a\n", b"b\n", b"c\nd\n"):
        send(process, line)
        assert answer(process) == line
    send(process, b"a\nhalf a ")
    send(process, b"line\nb\n")
    assert answer(process) == b"half a line\n"
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_while_it_waits(start, name, number):
    process = start("dedup", "--name", name)
    send(process, b"a\nunfinished")
    assert answer(process) == b"a\n"
    process.send_signal(number)
    assert process.wait(PATIENCE) == -number
    assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_writes_loses_nothing(start, name, file, marked, number):
    process = start("dedup", "--name", name, file)
    wait_until(lambda: waits_for_its_reader(process))
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    written = process.stdout.read().split()
    assert process.wait(PATIENCE) == -number
    assert process.stderr.read() == b""
    assert len(written) < len(LINES)
    assert set(written) == marked(LINES)


def test_a_signal_while_it_asks_loses_nothing(start, valkey, name, file, marked):
    asked, go_on = threading.Event(), threading.Event()

    def judge(command: str, number: int) -> str:
        if command == "BITFIELD" and proxy.seen.count("BITFIELD") > 30:
            asked.set()
            go_on.wait(PATIENCE)
        return "pass"

    with Proxy(valkey, judge) as proxy:
        # So large a filter that its bitmap does not travel.
        process = start("dedup", "--capacity", "10000000", "--name", name, file, url=proxy.url)
        assert asked.wait(PATIENCE)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        go_on.set()
        written = process.stdout.read().split()
        assert process.wait(PATIENCE) == -signal.SIGINT
    assert process.stderr.read() == b""
    assert 1000 < len(written) < 5000
    assert set(written) == marked(LINES)


def test_a_shell_sees_130_after_ctrl_c(name, valkey):
    process = subprocess.Popen(
        ["sh", "-c", 'trap : INT; "$@"; echo $?', "sh", *COMMAND, "dedup", "--name", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"BLOOMLOCK_URL": valkey},
    )
    with process:
        send(process, b"a\n")
        assert answer(process) == b"a\n"
        os.killpg(process.pid, signal.SIGINT)
        assert answer(process) == b"130\n"
        assert process.stderr.read() == b""


def test_ignored_signals_stay_ignored(start, name):
    process = start(
        "dedup", "--name", name, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    send(process, b"a\n")
    assert answer(process) == b"a\n"
    process.send_signal(signal.SIGHUP)
    send(process, b"b\n")
    assert answer(process) == b"b\n"
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


def test_a_second_signal_ends_it_at_once(start, name, file):
    process = start("dedup", "--name", name, file)
    # The pipe is full, and nobody reads: the first signal is noted, and waits.
    wait_until(lambda: waits_for_its_reader(process))
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == -signal.SIGINT


def test_a_reader_that_goes_away_ends_it_in_silence(start, name, file, marked):
    process = start("dedup", "--name", name, file)
    assert answer(process).startswith(LINES[0])
    process.stdout.close()
    assert process.wait(PATIENCE) == -signal.SIGPIPE
    assert process.stderr.read() == b""
    # What the pipe held, and little more.
    assert len(marked(LINES)) < 10_000


def test_nothing_is_marked_for_a_reader_that_has_gone(start, name, marked):
    process = start("dedup", "--name", name)
    send(process, b"a\n")
    assert answer(process) == b"a\n"
    process.stdout.close()
    send(process, b"b\n")
    assert process.wait(PATIENCE) == -signal.SIGPIPE
    assert marked([b"a", b"b"]) == {b"a"}


def test_a_full_disk_is_told(start, name):
    with Path("/dev/full").open("wb") as full:
        process = start("dedup", "--name", name, stdout=full)
        _, error = process.communicate(b"a\nb\n", PATIENCE)
    assert process.returncode == 2
    assert error == (
        b"bloomlock: cannot write to standard output: No space left on device; lines that are "
        b"marked as seen and were not written: at most 2\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_throw_away_filter_is_deleted_when_a_signal_ends_it(start, valkey, number):
    with redis.Redis.from_url(valkey) as client:
        # Keys of other tests may expire meanwhile.
        before = set(client.scan_iter("bloomlock:*dedup-*"))
        process = start("dedup", "--url", valkey)
        send(process, b"a\n")
        assert answer(process) == b"a\n"
        assert set(client.scan_iter("bloomlock:*dedup-*")) > before
        process.send_signal(number)
        assert process.wait(PATIENCE) == -number
        assert set(client.scan_iter("bloomlock:*dedup-*")) == before


def test_non_blocking_pipes_are_waited_for(start, name, file):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = start("dedup", "--name", name, file, stdout=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as output:
        assert output.read().split() == LINES
    assert process.wait(PATIENCE) == 0
