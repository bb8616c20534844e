"""`bloomlock load`: every line is in the filter, whatever interrupted the load."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest
from cli_process import PATIENCE
from proxy import Proxy

from bloomlock import BloomFilter

LINES = [b"https://example.org/%06d" % number for number in range(60_000)]
AGAIN = "run the same command again: adding a line twice changes nothing"
SMALL = ("--capacity", "80000")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


def holds(valkey, name, lines) -> bool:
    with BloomFilter.open(name, client=valkey) as bloom:
        return all(bloom.exists_many(lines))


class Stop:
    """Holds up one merge of a bitmap and all that follow; then they never happen."""

    def __init__(self, number: int) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._left = number

    def __call__(self, command: str, _: int) -> str:
        self._left -= command in ("SET", "BITFIELD")
        if self._left > 0 or self.go_on.is_set():
            return "pass"
        self.reached.set()
        self.go_on.wait(PATIENCE)
        return "before"


@contextlib.contextmanager
def interrupted(start, valkey, arguments, after, how=signal.SIGKILL):
    """Start a load, and end it when it sends a batch for the `after`th time; give both ends."""
    stop = Stop(after)
    with Proxy(valkey, stop) as proxy:
        process = start("load", *arguments, url=proxy.url)
        assert stop.reached.wait(PATIENCE)
        process.send_signal(how)
        if how == signal.SIGKILL:
            assert process.wait(PATIENCE) == -how
        proxy.judge = lambda *_: "pass"
        stop.go_on.set()
        assert process.wait(PATIENCE) == -how
        yield process, proxy


def test_every_line_is_in_the_filter(run, valkey, name, file):
    done = run("load", "--name", name, *SMALL, str(file))
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"bloomlock: 60000 lines read\n"
    assert holds(valkey, name, LINES)
    with BloomFilter.open(name, client=valkey) as bloom:
        assert bloom.capacity == 80_000
        assert not any(bloom.exists_many(b"not %d" % number for number in range(1000)))


def test_bytes_pipes_and_several_files(run, start, valkey, name, tmp_path):
    first, pipe = tmp_path / "first", tmp_path / "pipe"
    first.write_bytes(b"\xff\nb\0\0a\r")
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(b"piped\0",), daemon=True).start()
    done = run("load", "-z", "--name", name, str(first), "-", str(pipe), given=b"given\0last")
    assert (done.returncode, done.stderr) == (0, b"bloomlock: 6 lines read\n")
    assert holds(valkey, name, [b"\xff\nb", b"", b"a\r", b"given", b"last", b"piped"])
    assert run("load", "--name", name, given=b"").stderr == b"bloomlock: 0 lines read\n"
    assert run("load", "--name", name, given=b"x\ny").stderr == b"bloomlock: 2 lines read\n"


def test_killed_at_any_moment_and_run_again(run, start, valkey, name, file):
    arguments = ("--name", name, *SMALL, str(file))
    for number in (1, 2, 4):
        with interrupted(start, valkey, arguments, number):
            pass
    done = run("load", *arguments)
    assert (done.returncode, done.stderr) == (0, b"bloomlock: 60000 lines read\n")
    assert holds(valkey, name, LINES)


def test_after_ctrl_c_it_says_what_to_do(run, start, valkey, name, file):
    arguments = ("--name", name, *SMALL, str(file))
    with interrupted(start, valkey, arguments, 3, signal.SIGINT) as (process, _):
        assert process.stderr.read() == f"bloomlock: interrupted; {AGAIN}\n".encode()
    assert run("load", *arguments).stderr == b"bloomlock: 60000 lines read\n"
    assert holds(valkey, name, LINES)


@pytest.mark.parametrize(
    ("capacity", "command", "how"),
    [("80000", "EXEC", "before"), ("80000", "EXEC", "after"), ("30000000", "BITFIELD", "after")],
)
def test_a_lost_reply_is_no_interruption(run, valkey, name, file, *, capacity, command, how):
    executed = []

    def judge(sent: str, _: int) -> str:
        executed.append(sent)
        return how if sent == command and executed.count(command) == 2 else "pass"

    with Proxy(valkey, judge) as proxy:
        done = run("load", "--name", name, "--capacity", capacity, str(file), url=proxy.url)
        assert proxy.lost == 1
    assert (done.returncode, done.stderr) == (0, b"bloomlock: 60000 lines read\n")
    assert holds(valkey, name, LINES)


def test_a_server_that_is_gone(run, refuse, valkey, name, file):
    words = ("load", "--name", name, *SMALL, str(file))
    sent = []

    def judge(asked: str, _: int) -> str:
        sent.append(asked)
        return "before" if asked == "SET" and sent.count("SET") > 1 else "pass"

    with Proxy(valkey, judge) as proxy:
        refuse(2, f"; {AGAIN}\n", *words, url=proxy.url)
        assert not holds(valkey, name, LINES)
        proxy.judge = lambda *_: "pass"
        done = run(*words, url=proxy.url)
    assert (done.returncode, done.stderr) == (0, b"bloomlock: 60000 lines read\n")
    assert holds(valkey, name, LINES)


def test_a_full_filter_does_not_ask_for_another_try(run, name, file):
    done = run("load", "--name", name, "--capacity", "50000", "--on-full", "raise", str(file))
    assert done.returncode == 2
    assert b"full" in done.stderr.splitlines()[-1]
    assert AGAIN.encode() not in done.stderr
