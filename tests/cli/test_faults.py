"""What happens to the lines in flight when the server, or one of its users, does the unexpected."""

from __future__ import annotations

import threading

import pytest
from cli_process import PATIENCE, answer, send
from proxy import Proxy

from bloomlock import BloomFilter, delete_filter
from bloomlock.server import PrivateServer

LINES = [b"line %d" % number for number in range(3000)]
TEXT = b"\n".join(LINES + LINES) + b"\n"
# A batch of so many lines is no bitmap of so large a filter. With sixteen hash functions the first,
# of 625 lines, is eleven commands.
DEDUP = ("dedup", "--optimize", "memory", "--capacity", "10000000", "--name")


class LoseOne:
    """Loses one of the updates."""

    def __init__(self, number: int, how: str) -> None:
        self._number = number
        self._how = how
        self._updates = 0

    def __call__(self, command: str, _: int) -> str:
        self._updates += command == "BITFIELD"
        chosen = command == "BITFIELD" and self._updates == self._number
        return self._how if chosen else "pass"


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("number", [1, 23])
def test_a_lost_reply_loses_no_line(run, valkey, name, how, number):
    with Proxy(valkey, LoseOne(number, how)) as proxy:
        done = run(*DEDUP, name, url=proxy.url, given=TEXT)
        assert proxy.lost == 1
    assert done.returncode == 0
    assert done.stdout.splitlines() == LINES
    assert done.stderr.startswith(b"bloomlock: the reply was lost when ")
    assert done.stderr.count(b"\n") == 1


def test_a_server_that_is_stuck_stops_it(run, valkey, name):
    ended = threading.Event()
    updates = []

    def judge(command: str, _: int) -> str:
        updates.append(command)
        if updates.count("BITFIELD") > 11:
            ended.wait(PATIENCE)
            return "before"
        return "pass"

    with Proxy(valkey, judge) as proxy:
        # Long enough for every answer that a busy machine gives.
        url = f"{proxy.url}?socket_timeout=3"
        done = run(*DEDUP, name, url=url, given=TEXT)
        ended.set()
    assert done.returncode == 2
    written = done.stdout.splitlines()
    # The first round trip was answered, the second may have been carried out.
    assert written == LINES[: len(written)]
    assert 600 < len(written) < 1400
    assert done.stderr.splitlines()[-1].startswith(
        (b"bloomlock: the reply was lost", b"bloomlock: Timeout")
    )
    assert b"Traceback" not in done.stderr


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


def test_clearing_it_meanwhile_stops_it_and_loses_nothing(start, valkey, name):
    process = start("dedup", "--name", name)
    send(process, b"a\n")
    assert answer(process) == b"a\n"
    with BloomFilter.open(name, client=valkey) as bloom:
        bloom.clear()
        output, error = process.communicate(b"b\n", PATIENCE)
        assert process.returncode == 2
        # Marked in the new generation, so it has to be written.
        assert bloom.exists("b")
    assert output == b"b\n"
    assert error.startswith(f"bloomlock: filter '{name}' was cleared or replaced".encode())
    assert error.endswith(b"use --on-lost recreate\n")
    assert error.count(b"\n") == 1


@pytest.mark.parametrize("how", ["clear", "delete"])
def test_going_on_with_a_new_one_where_that_is_wanted(start, valkey, name, how):
    process = start("dedup", "--name", name, "--on-lost", "recreate")
    send(process, b"a\nb\na\n")
    assert answer(process) == b"a\nb\n"
    if how == "clear":
        with BloomFilter.open(name, client=valkey) as bloom:
            bloom.clear()
    else:
        delete_filter(name, client=valkey)
    output, error = process.communicate(b"b\nc\nb\n", PATIENCE)
    assert (process.returncode, output) == (0, b"b\nc\n")
    assert error == (
        f"bloomlock: filter '{name}' was cleared or lost; attaching to it anew\n".encode()
    )


@pytest.mark.parametrize("strategy", ["atomic", "lua"])
def test_after_a_clear_each_line_gets_its_own_answer(start, valkey, name, strategy):
    with BloomFilter(name, 20_000, client=valkey, shards=4) as bloom:
        process = start("dedup", "--name", name, "--on-lost", "recreate", "--strategy", strategy)
        send(process, b"a\n")
        assert answer(process) == b"a\n"
        bloom.clear()
        lines = LINES[:400]
        bloom.update(lines[::3])
        output, _ = process.communicate(b"\n".join(lines) + b"\n", PATIENCE)
    assert process.returncode == 0
    assert output.splitlines() == [line for n, line in enumerate(lines) if n % 3]
