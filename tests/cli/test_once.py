"""`bloomlock once`: which commands run, whose exit status it gives, and what is left behind."""

from __future__ import annotations

import signal

import pytest
from claim_tools import let_expire
from cli_process import PATIENCE, answer, send

from bloomlock import BloomFilter, ClaimState


@pytest.fixture(autouse=True)
def done(r, name, valkey):
    """The filter of the keys that are done."""
    with BloomFilter(name, 1_000_000, client=valkey) as made:
        yield made


def test_a_command_runs_once_for_each_key(run, name, done):
    assert run("once", "--", name, "a", "echo", "ran") == (0, b"ran\n", b"")
    assert run("once", "--", name, "a", "echo", "ran") == (0, b"", b"")
    assert run("once", name, "b", "echo", "-n", "ran") == (0, b"ran", b"")
    assert done.exists_many(["a", "b", "c"]) == [True, True, False]
    assert done.info().claims.committed == 2


@pytest.mark.parametrize(("code", "status"), [("exit 3", 3), ("kill -TERM $$", 143)])
def test_a_command_that_fails_runs_again(run, name, code, status):
    assert run("once", name, "a", "sh", "-c", code) == (status, b"", b"")
    assert run("once", name, "a", "echo", "ran") == (0, b"ran\n", b"")


def test_exit_codes_of_those_who_come_second(run, name, done):
    held = done.claim("a")
    assert run("once", name, "a", "echo") == (75, b"", b"")
    assert run("once", "--busy-exit-code", "4", "--", name, "a", "echo") == (4, b"", b"")
    assert run("once", "--wait", "0.1", name, "a", "echo") == (75, b"", b"")
    held.commit()
    assert run("once", name, "a", "echo") == (0, b"", b"")
    assert run("once", "--done-exit-code", "3", name, "a", "echo") == (3, b"", b"")
    done.claim("b", max_attempts=1).abandon("why")
    assert run("once", name, "b", "echo", "ran") == (1, b"", b"")


def test_what_the_command_finds(run, name):
    script = "echo $BLOOMLOCK_FENCE"
    first, second = (int(run("once", name, key, "sh", "-c", script).stdout) for key in "ab")
    assert 0 < first < second


def test_a_signal_gives_the_key_back(start, name, done):
    words = ("once", name, "a", "sh", "-c", "echo on; read answer")
    process = start(*words, start_new_session=True)
    assert answer(process) == b"on\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == -signal.SIGINT
    assert done.claim("a").state is ClaimState.NEW


def test_a_command_whose_claim_another_has(start, name, r, done):
    process = start("once", name, "a", "--", "sh", "-c", "echo on; read answer")
    assert answer(process) == b"on\n"
    let_expire(r)
    assert done.claim("a").state is ClaimState.NEW
    send(process, b"\n")
    assert process.wait(PATIENCE) == 75
    assert b"another worker claimed the item since" in process.stderr.read()


def test_a_command_that_cannot_be_started_gives_the_key_back(run, refuse, name):
    refuse(127, "cannot run './no/such': No such file", "once", name, "a", "./no/such")
    refuse(2, "ttl must be", "once", "--lease", "0", name, "a", "echo")
    assert run("once", name, "a", "echo", "ran") == (0, b"ran\n", b"")
