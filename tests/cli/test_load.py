"""`bloomlock load`: every line is in the filter, whatever interrupted the load."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from cli_process import PATIENCE
from loss_proxy import LossProxy
from servers import wait_until

from bloomlock import BloomFilter
from bloomlock.cli.journal import Journal, Mark

if TYPE_CHECKING:
    from pathlib import Path

LINES = [b"https://example.org/%06d" % number for number in range(120_000)]
LINE_BYTES = len(LINES[0]) + 1
SMALL = ("--capacity", "150000")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    path = tmp_path / "home"
    monkeypatch.setenv("BLOOMLOCK_HOME", str(path))
    return path


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


def journals(home) -> list[Path]:
    return sorted((home / "loads").glob("*.json"))


def offset(home) -> int:
    """Where the only journal says that the load is."""
    (only,) = journals(home)
    return int(json.loads(only.read_bytes())["mark"]["offset"])


def farthest(home) -> int:
    """The same, 0 where there is none; a load that is over has removed it."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return offset(home)
    return 0


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
    """Start a load, and end it when it sends a batch for the `after`th time; give the proxy."""
    stop = Stop(after)
    with LossProxy(valkey, stop) as proxy:
        process = start("load", *arguments, url=proxy.url)
        assert stop.reached.wait(PATIENCE)
        process.send_signal(how)
        if how == signal.SIGKILL:
            assert process.wait(PATIENCE) == -how
        proxy.judge = lambda *_: "pass"
        stop.go_on.set()
        assert process.wait(PATIENCE) == -how
        yield proxy


def test_every_line_is_in_the_filter(run, valkey, name, file, home):
    done = run("load", "--name", name, *SMALL, str(file))
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"bloomlock: 120000 lines read\n"
    assert holds(valkey, name, LINES)
    with BloomFilter.open(name, client=valkey) as bloom:
        assert bloom.capacity == 150_000
        assert not any(bloom.exists_many(b"not %d" % number for number in range(1000)))
    assert journals(home) == []


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


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--name", "n", "/no/such/file"), "cannot read /no/such/file: No such file"),
        (("--name", "n", "--capacity", "0"), "capacity must be a whole number"),
        (("--name", "n", "--url", "unix:///nowhere/at/all.sock"), "no Redis server answers"),
        ((), "--name"),
    ],
)
def test_errors_are_one_sentence(run, arguments, part):
    done = run("load", *arguments, given=b"a\n")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.startswith(b"bloomlock: ")
    assert part in done.stderr.decode()


def test_killed_at_any_moment_it_goes_on_where_it_certainly_was(
    run, start, valkey, name, file, home
):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    def slowly(command: str, _: int) -> str:
        time.sleep(0.15 if command == "SET" else 0)
        return "pass"

    with LossProxy(valkey, slowly) as proxy:
        arguments = ("--name", name, *SMALL, str(file))
        for _ in range(3):
            known = offset(home) if journals(home) else 0
            process = start("load", *arguments, url=proxy.url)
            # On a busy machine it may be at its end before anybody has looked.
            wait_until(
                lambda known=known, process=process: (
                    process.poll() is not None or farthest(home) > known
                ),
                PATIENCE,
            )
            time.sleep(rng.random())
            process.kill()
            if process.wait(PATIENCE) == 0:
                break
            assert offset(home) > known
            assert offset(home) % LINE_BYTES == 0
            assert holds(valkey, name, LINES[: offset(home) // LINE_BYTES])
        before = offset(home) // LINE_BYTES if journals(home) else 0
        proxy.judge = lambda *_: "pass"
        done = run("load", *arguments, url=proxy.url)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines()[-1] == "bloomlock: " + (
        f"{len(LINES) - before} lines read, {before} before" if before else "120000 lines read"
    )
    assert holds(valkey, name, LINES)
    assert journals(home) == []


def test_what_was_acknowledged_is_not_read_again(run, start, valkey, name, file, home):
    arguments = ("--name", name, *SMALL, str(file))
    with interrupted(start, valkey, arguments, 4, signal.SIGINT) as proxy:
        before = offset(home)
        assert 0 < before < len(LINES) * LINE_BYTES
        # Other lines where it has been, in a file that looks the same.
        found = file.stat()
        with file.open("r+b") as changed:
            changed.write((b"x" * (LINE_BYTES - 1) + b"\n") * (before // LINE_BYTES))
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
        done = run("load", *arguments, url=proxy.url)
    percent, known = 100 * before // found.st_size, before // LINE_BYTES
    assert done.stderr.decode() == (
        f"bloomlock: going on at {percent} % (--restart reads all)\n"
        f"bloomlock: {len(LINES) - known} lines read, {known} before\n"
    )
    assert holds(valkey, name, LINES)
    assert not holds(valkey, name, [b"x" * (LINE_BYTES - 1)])


@pytest.mark.parametrize("why", ["restart", "changed", "cleared", "nonsense", "other delimiter"])
def test_what_starts_over(run, start, valkey, name, file, home, why):
    arguments = ["--name", name, *SMALL, str(file)]
    with interrupted(start, valkey, arguments, 3) as proxy:
        assert offset(home) > 0
        if why == "changed":
            os.utime(file)
        elif why == "cleared":
            with BloomFilter.open(name, client=valkey) as bloom:
                bloom.clear()
        elif why == "nonsense":
            journals(home)[0].write_bytes(b'{"mark": {"offset": "1", "lines": []}}')
        options = {"restart": ["--restart"], "other delimiter": ["-z"]}.get(why, [])
        done = run("load", *options, *arguments, url=proxy.url)
    lines = 1 if why == "other delimiter" else len(LINES)
    *told, summary = done.stderr.decode().splitlines()
    assert (done.returncode, summary) == (0, f"bloomlock: {lines} lines read")
    expected = f"bloomlock: {file} has changed since it was loaded in part, or the filter: "
    expected += "starting over"
    assert told == ([expected] if why in ("changed", "cleared", "nonsense") else [])
    assert lines == 1 or holds(valkey, name, LINES)


def test_files_that_were_finished_are_not_read_again(
    run, start, valkey, name, file, tmp_path, home
):
    first = tmp_path / "first"
    first.write_bytes(b"a\nb\nc")
    arguments = ("--name", name, *SMALL, str(first), str(file))
    with interrupted(start, valkey, arguments, 6) as proxy:
        assert len(journals(home)) == 2
        done = run("load", *arguments, url=proxy.url)
    words = done.stderr.split()
    assert done.returncode == 0
    assert int(words[-2]) > 3
    assert int(words[-5]) + int(words[-2]) == len(LINES) + 3
    assert holds(valkey, name, [*LINES, b"a", b"b", b"c"])


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize(("capacity", "command"), [("150000", "EXEC"), ("5000000", "BITFIELD")])
def test_a_lost_reply_is_no_interruption(run, valkey, name, file, *, how, capacity, command):
    executed = []

    def judge(sent: str, _: int) -> str:
        executed.append(sent)
        return how if sent == command and executed.count(command) == 4 else "pass"

    with LossProxy(valkey, judge) as proxy:
        done = run("load", "--name", name, "--capacity", capacity, str(file), url=proxy.url)
        assert proxy.lost == 1
    assert (done.returncode, done.stderr) == (0, b"bloomlock: 120000 lines read\n")
    assert holds(valkey, name, LINES)


@pytest.mark.parametrize(("capacity", "command"), [("150000", "SET"), ("5000000", "BITFIELD")])
def test_a_server_that_is_gone(run, valkey, name, file, home, *, capacity, command):
    arguments = ("--name", name, "--capacity", capacity, str(file))

    def judge(sent: str, _: int) -> str:
        return "before" if sent == command and journals(home) else "pass"

    with LossProxy(valkey, judge) as proxy:
        done = run("load", *arguments, url=proxy.url)
        assert done.returncode == 2
        assert done.stderr.startswith(b"bloomlock: ")
        assert done.stderr.count(b"\n") == 1
        known = offset(home) // LINE_BYTES
        assert 0 < known < len(LINES)
        assert holds(valkey, name, LINES[:known])
        proxy.judge = lambda *_: "pass"
        done = run("load", *arguments, url=proxy.url)
    assert done.returncode == 0
    assert done.stderr.endswith(b" %d lines read, %d before\n" % (len(LINES) - known, known))
    assert holds(valkey, name, LINES)


def test_cleared_meanwhile(start, run, valkey, name, file, home):
    stop = Stop(3)
    with LossProxy(valkey, stop) as proxy:
        arguments = ("--name", name, "--on-lost", "recreate", *SMALL, str(file))
        process = start("load", *arguments, url=proxy.url)
        assert stop.reached.wait(PATIENCE)
        with BloomFilter.open(name, client=valkey) as bloom:
            bloom.clear()
        stop.go_on.set()
        assert process.wait(PATIENCE) == 0
    # What was loaded before it was cleared is not in it, and nothing says so.
    assert not holds(valkey, name, LINES[:1000])
    assert journals(home) == []


def test_where_no_journal_can_be_kept(run, valkey, name, file, tmp_path):
    place = tmp_path / "a file"
    place.touch()
    done = run("load", "--name", name, *SMALL, str(file), BLOOMLOCK_HOME=str(place))
    assert done.returncode == 0
    assert done.stderr.startswith(b"bloomlock: where the load is cannot be written down in ")
    assert done.stderr.splitlines()[1:] == [b"bloomlock: 120000 lines read"]
    assert holds(valkey, name, LINES)


@pytest.mark.parametrize("which", ["", "loads"])
def test_marks_where_others_can_write_are_not_believed(run, valkey, name, file, home, which):
    with BloomFilter(name, 150_000, client=valkey) as bloom:
        planted = Journal(bloom, valkey, str(file), b"\n")
        planted.begin(file.stat())
        planted.advance(Mark(LINE_BYTES * len(LINES), len(LINES)))
    (home / which).chmod(0o770)
    done = run("load", "--name", name, str(file))
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    expected = f"bloomlock: {home / which} belongs to another user or can be written by others"
    assert done.stderr.decode().startswith(expected)


def test_a_mark_of_another_generation_is_never_written(valkey, name, file, home):
    with BloomFilter(name, 1000, client=valkey, on_lost="recreate") as bloom:
        journal = Journal(bloom, valkey, str(file), b"\n")
        assert journal.begin(file.stat()) == Mark()
        journal.advance(Mark(LINE_BYTES, 1))
        assert Journal(bloom, valkey, str(file), b"\n").begin(file.stat()).lines == 1
        bloom.clear()
        journal.advance(Mark(2 * LINE_BYTES, 2))
        journal.flush()
        assert journals(home) == []
        assert Journal(bloom, valkey, str(file), b"\n").begin(file.stat()) == Mark()


def test_a_bar_at_a_terminal(start, name, file):
    ours, theirs = os.openpty()
    process = start("load", "--name", name, *SMALL, str(file), stdout=theirs, stderr=theirs)
    assert process.wait(PATIENCE) == 0
    os.close(theirs)
    assert b" lines" in os.read(ours, 1 << 16)
    os.close(ours)
