"""Slow pipes, readers that go away, signals, lost replies: what was marked as seen was written."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import termios
import threading
from pathlib import Path

import pytest
from cli_process import PATIENCE, answer, send
from private import PrivateServer
from proxy import Proxy
from servers import wait_until

from bloomlock import BloomFilter

LINES = [b"https://example.org/some/longer/path/%06d" % i for i in range(30_000)]
FULL_PIPE = 60_000
# A batch of so many lines is no bitmap of so large a filter. With sixteen hash functions the first,
# of 625 lines, is eleven commands.
LARGE = ("dedup", "--optimize", "memory", "--capacity", "10000000", "--name")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return str(path)


def waits_for_its_reader(process) -> bool:
    """Return whether the process stands in a write to its full output, all signals noted."""
    size = array.array("i", [0])
    fcntl.ioctl(process.stdout, termios.FIONREAD, size)
    if size[0] <= FULL_PIPE:
        return False
    status = Path(f"/proc/{process.pid}/status").read_text("ascii")
    pending = [line.split()[1] for line in status.splitlines() if "Pnd:" in line[:8]]
    try:
        # The number of the system call, or "running", and its arguments.
        call = Path(f"/proc/{process.pid}/syscall").read_text("ascii").split()
    except OSError:
        return True
    return call[1:2] == ["0x1"] and not any(int(mask, 16) for mask in pending)


# -- pipes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_a_line_is_answered_before_the_next_one_comes(start, name, shared):
    process = start("dedup", *(("--name", name) if shared else ()))
    for line in (b"a\n", b"b\n", b"c\nd\n"):
        send(process, line)
        assert answer(process) == line
    send(process, b"a\ne\nhalf a ")
    assert answer(process) == b"e\n"
    send(process, b"line\nb\n")
    assert answer(process) == b"half a line\n"
    # More lines than a batch, all at once, and then nothing.
    lines = b"".join(b"%d\n" % number for number in range(9_000))
    send(process, lines)
    text = b""
    while len(text) < len(lines):
        text += answer(process)
    assert text == lines
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


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


def test_non_blocking_pipes_are_waited_for(start, name, file):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = start("dedup", "--name", name, file, stdout=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as output:
        assert output.read().split() == LINES
    assert process.wait(PATIENCE) == 0


# -- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_while_it_waits(start, name, marked, number):
    process = start("dedup", "--name", name)
    send(process, b"a\nunfinished")
    assert answer(process) == b"a\n"
    process.send_signal(number)
    assert process.wait(PATIENCE) == -number
    assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    assert marked([b"a", b"unfinished"]) == {b"a"}


def test_a_signal_while_it_writes_loses_nothing(start, name, file, marked):
    process = start("dedup", "--name", name, file)
    wait_until(lambda: waits_for_its_reader(process))
    process.send_signal(signal.SIGTERM)
    written = process.stdout.read().split()
    assert process.wait(PATIENCE) == -signal.SIGTERM
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
        process = start(*LARGE, name, file, url=proxy.url)
        assert asked.wait(PATIENCE)
        process.send_signal(signal.SIGINT)
        go_on.set()
        written = process.stdout.read().split()
        assert process.wait(PATIENCE) == -signal.SIGINT
    assert process.stderr.read() == b""
    assert 600 < len(written) < 5000
    assert set(written) == marked(LINES)


def test_a_second_signal_ends_it_at_once(start, name, file):
    process = start("dedup", "--name", name, file)
    # The pipe is full, and nobody reads: the first signal is noted, and waits.
    wait_until(lambda: waits_for_its_reader(process))
    process.send_signal(signal.SIGINT)
    wait_until(lambda: waits_for_its_reader(process))
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == -signal.SIGINT


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


# -- the server, and its other users -------------------------------------------------------------


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("number", [1, 23])
def test_a_lost_reply_loses_no_line(run, valkey, name, how, number):
    lines, updates = LINES[:3000], []

    def judge(command: str, _: int) -> str:
        updates.append(command)
        lost = command == "BITFIELD" and updates.count("BITFIELD") == number
        return how if lost else "pass"

    with Proxy(valkey, judge) as proxy:
        done = run(*LARGE, name, url=proxy.url, given=b"\n".join(lines + lines) + b"\n")
        assert proxy.lost == 1
    assert done.returncode == 0
    assert done.stdout.splitlines() == lines
    assert done.stderr.startswith(b"bloomlock: the reply was lost when ")
    assert done.stderr.count(b"\n") == 1


def test_a_server_that_dies_stops_it_without_another_line(start, name):
    with PrivateServer() as server:
        process = start("dedup", "--name", name, url=server.url)
        send(process, b"a\n")
        assert answer(process) == b"a\n"
        server.kill()
        output, error = process.communicate(b"b\n", PATIENCE)
    assert process.returncode == 2
    assert error.startswith(b"bloomlock: ")
    assert error.count(b"\n") <= 2
    assert output in (b"", b"b\n")
    # Written without an answer only where that was said.
    assert (output == b"b\n") is (b"lines count as new" in error)


def test_a_clear_meanwhile_stops_it_and_loses_nothing(start, valkey, name):
    process = start("dedup", "--name", name)
    send(process, b"a\n")
    assert answer(process) == b"a\n"
    with BloomFilter.open(name, client=valkey) as bloom:
        bloom.clear()
        output, error = process.communicate(b"b\n", PATIENCE)
        assert process.returncode == 2
        # What is marked in the new generation has to be written.
        assert not bloom.exists("b") or output == b"b\n"
    assert error.startswith(f"bloomlock: filter '{name}' was cleared or replaced".encode())
    assert error.endswith(b"; run the command again\n")
    assert error.count(b"\n") == 1
