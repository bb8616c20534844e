"""The lock is lost, or bloomlock is killed, while the command runs."""

from __future__ import annotations

import os
import signal

import pytest
from cli_process import PATIENCE, answer
from private import PrivateServer
from servers import exists, wait_until

LOST = 75
POLITE = "trap 'echo told; exit 3' TERM; echo on; while :; do sleep 0.1; done"
STUBBORN = "trap '' TERM; echo $$; while :; do sleep 0.1; done"
FAMILY = "trap '' TERM; sleep 1000 & echo $!; wait"
# The head of the family listens, the rest does not.
UNRULY = "(trap '' TERM; exec sh -c 'echo $$; exec sleep 1000') & wait"


@pytest.fixture
def key(name):
    return f"bloomlock:{{{name}}}:lock"


def explain(process, *parts: str) -> None:
    """Look at its end: the status, and what it says."""
    assert process.wait(PATIENCE) == LOST
    message = process.stderr.read().decode()
    assert message.startswith("bloomlock: ")
    assert "Traceback" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("taken", [False, True])
def test_a_command_whose_lock_is_deleted_or_taken_is_told(start, name, r, key, taken):
    process = start("lock", "--lease", "2", name, "sh", "-c", POLITE)
    assert answer(process) == b"on\n"
    r.delete(key)
    if taken:
        r.set(key, "somebody else")
    assert answer(process) == b"told\n"
    explain(process, f"lock '{name}' was lost: ", "ending the command")
    assert r.get(key) == (b"somebody else" if taken else None)


@pytest.mark.parametrize("code", [STUBBORN, UNRULY])
def test_a_command_that_does_not_listen_is_killed_with_all_that_it_started(
    start, name, r, key, *, code
):
    words = ("lock", "--lease", "2", "--grace", "0.2", name, "sh", "-c", code)
    process = start(*words, start_new_session=True)
    told = int(answer(process))
    r.delete(key)
    explain(process, "ending the command")
    wait_until(lambda: not exists(told))


def test_a_server_that_comes_back_in_time_is_no_loss(start, name):
    with PrivateServer() as server:
        words = ("lock", "--lease", "300", name, "sh", "-c", "echo on; read x; exit 4")
        process = start(*words, url=server.url)
        assert answer(process) == b"on\n"
        server.kill()
        process.stdin.close()
        # Held while the command ran; that it cannot be given back is somebody else's wait.
        assert process.wait(PATIENCE) == 4
        assert b"stays taken until its lease ends: " in process.stderr.read()


def test_a_loss_that_shows_in_the_end_is_said(start, name, r, key):
    process = start("lock", name, "sh", "-c", "echo on; read x")
    assert answer(process) == b"on\n"
    r.delete(key)
    process.stdin.close()
    explain(process, f"lock '{name}' was lost: its key was gone when it was released")


@pytest.mark.parametrize("code", [FAMILY, UNRULY])
def test_the_command_ends_when_bloomlock_is_killed(start, name, code, valkey):
    words = ("lock", "--grace", "0.2", name, "sh", "-c", code)
    process = start(*words, start_new_session=True)
    told = int(answer(process))
    assert exists(told)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)
    wait_until(lambda: not exists(told))


def test_the_command_is_told_first_when_bloomlock_is_killed(start, name):
    process = start("lock", name, "sh", "-c", POLITE)
    assert answer(process) == b"on\n"
    process.kill()
    process.wait(PATIENCE)
    assert answer(process) == b"told\n"
