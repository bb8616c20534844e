"""`bloomlock lock`: who holds it when, whose exit status it gives, and what the command gets."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
import redis
from cli_process import COMMAND, PATIENCE, answer, children_of, environment, send
from servers import exists, wait_until

from bloomlock import Lock, ReadWriteLock


@pytest.fixture
def waiting(valkey, name):
    """Tell how many are waiting for the lock."""
    with redis.Redis.from_url(valkey) as client:
        yield lambda: client.zcard(f"bloomlock:{{{name}}}:lock:queue")


@pytest.mark.parametrize(
    ("code", "status"),
    [("true", 0), ("exit 75", 75), ("exit 255", 255), ("kill -9 $$", 137), ("kill -USR1 $$", 138)],
)
def test_the_exit_status_is_that_of_the_command(run, name, code, status):
    assert run("lock", name, "--", "sh", "-c", code) == (status, b"", b"")


def test_the_ends_of_the_command_are_ours(run, name, valkey):
    given = bytes(range(256)) * 1000
    assert run("lock", name, "cat", given=given) == (0, given, b"")
    assert run("lock", name, "sh", "-c", "echo oops >&2") == (0, b"", b"oops\n")
    script = '"$@" sh -c "cat <&7" 7<<END\nfrom seven\nEND'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "lock", name],
        capture_output=True,
        check=False,
        env=environment(valkey, {}),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"from seven\n", b"")


@pytest.mark.parametrize("kind", [[], ["--shared"]])
def test_the_command_finds_a_fence_that_rises(run, name, kind):
    code = 'echo "$BLOOMLOCK_FENCE"'
    fences = [int(run("lock", *kind, name, "sh", "-c", code).stdout) for _ in range(3)]
    assert fences == sorted(set(fences))


def test_the_lock_is_held_while_the_command_runs_and_nothing_is_left(start, name, valkey):
    lock = Lock(name, valkey)
    process = start("lock", name, "--", "sh", "-c", "echo on; read answer")
    assert answer(process) == b"on\n"
    assert lock.locked()
    pids = children_of(process.pid)
    assert len(pids) == 2  # the command and its guard
    send(process, b"\n")
    assert process.wait(PATIENCE) == 0
    assert not lock.locked()
    for pid in pids:
        wait_until(lambda pid=pid: not exists(pid))


def test_the_lock_is_given_back_after_a_command_that_fails(run, refuse, name, tmp_path):
    broken, text = tmp_path / "broken", tmp_path / "text"
    broken.write_text("#!/nowhere/at/all\n")
    broken.chmod(0o755)
    text.touch()
    missing = (str(broken), "no-such-command", "./no/such")
    for command in missing:
        refuse(127, f"cannot run '{command}': No such file", "lock", name, command)
    for command in (str(text), str(tmp_path)):
        refuse(126, f"cannot run '{command}': Permission denied", "lock", name, command)
    assert run("lock", "-n", name, "false").returncode == 1


@pytest.mark.parametrize(
    ("words", "kind"), [(["-n"], []), (["--wait", "0"], []), (["-w", "0.1"], ["--shared"])]
)
def test_a_lock_that_is_not_to_be_had(run, name, valkey, waiting, words, kind):
    with Lock(name, valkey):
        assert run("lock", *words, *kind, name, "echo", "ran") == (75, b"", b"")
        assert run("lock", *words, *kind, "-E", "99", name, "echo", "ran") == (99, b"", b"")
        assert waiting() == 0
    assert run("lock", *words, *kind, name, "echo", "ran") == (0, b"ran\n", b"")


def test_shared_is_the_read_side_of_a_read_write_lock(run, name, valkey):
    with ReadWriteLock(name, valkey).write:
        assert run("lock", "-n", "--shared", name, "true").returncode == 75
    with ReadWriteLock(name, valkey).read:
        assert run("lock", "-n", "--shared", name, "true").returncode == 0
        assert run("lock", "-n", name, "true").returncode == 75


def test_options_end_where_the_command_begins(run, name):
    words = ("echo", "-n", "--url", "nonsense", "--help", "--", "-E")
    said = b"--url nonsense --help -- -E"
    assert run("lock", name, *words).stdout == said
    assert run("lock", "-n", "--lease", "5", name, "--", *words).stdout == said
    assert run("lock", "--", name, *words).stdout == said


def test_what_the_command_leaves_in_the_background_goes_on(start, name, valkey):
    code = "sleep 1000 > /dev/null 2>&1 & echo $!"
    process = start("lock", name, "sh", "-c", code, start_new_session=True)
    left = int(answer(process))
    try:
        assert process.wait(PATIENCE) == 0
        assert not Lock(name, valkey).locked()
        assert exists(left)
    finally:
        os.kill(left, signal.SIGKILL)


# -- waiters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "number"), [([], signal.SIGINT), (["--shared"], signal.SIGTERM)])
def test_a_waiter_that_is_interrupted_leaves_the_queue(start, name, valkey, waiting, kind, number):
    with Lock(name, valkey):
        process = start("lock", *kind, name, "echo", "ran")
        wait_until(lambda: waiting() == 1)
        process.send_signal(number)
        # A shell shows that as 128 + number; 130 for Ctrl-C.
        assert process.wait(PATIENCE) == -number
        assert waiting() == 0
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    assert not Lock(name, valkey).locked()
