"""`bloomlock lock`: whose exit status it gives, and what the command gets."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
import redis
from cli_process import COMMAND, PATIENCE, answer, children_of, environment, send
from servers import exists, wait_until

from bloomlock import Lock, ReadWriteLock

NOWHERE = "unix:///nowhere/at/all.sock"


def refuse(done, status: int, *parts: str) -> None:
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (status, b"")
    assert message.startswith("bloomlock: ")
    assert message.count("\n") == 1
    for part in parts:
        assert part in message


@pytest.mark.parametrize("status", [0, 1, 2, 75, 255])
def test_the_exit_status_is_that_of_the_command(run, name, status):
    done = run("lock", name, "--", "sh", "-c", f"exit {status}")
    assert done == (status, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_the_exit_status_of_a_command_that_a_signal_ended(run, name, number):
    done = run("lock", name, "sh", "-c", f"kill -{int(number)} $$")
    assert done == (128 + number, b"", b"")


def test_the_ends_of_the_command_are_ours(run, name):
    given = bytes(range(256)) * 1000
    assert run("lock", name, "cat", given=given) == (0, given, b"")
    assert run("lock", name, "sh", "-c", "echo oops >&2") == (0, b"", b"oops\n")


def test_what_the_caller_opened_is_for_the_command(valkey, name):
    script = '"$@" sh -c "cat <&7" 7<<END\nfrom seven\nEND'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "lock", name],
        capture_output=True,
        check=False,
        timeout=60,
        env=environment(valkey, {}),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"from seven\n", b"")


def test_the_command_finds_the_name_and_a_fence_that_rises(run, name):
    words = ("lock", name, "--", "sh", "-c", 'echo "$BLOOMLOCK_LOCK_NAME $BLOOMLOCK_FENCE"')
    lines = [run(*words).stdout.decode().split() for _ in range(4)]
    fences = [int(fence) for _, fence in lines]
    assert [found for found, _ in lines] == [name] * 4
    assert fences == sorted(set(fences))


def test_the_lock_is_held_from_before_the_command_until_after_it(start, name, valkey):
    lock = Lock(name, valkey)
    process = start("lock", name, "--", "sh", "-c", "echo on; read answer")
    assert answer(process) == b"on\n"
    assert lock.locked()
    send(process, b"\n")
    assert process.wait(PATIENCE) == 0
    assert not lock.locked()
    lock.close()


def test_the_lock_is_given_back_after_a_command_that_fails(run, name, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/nowhere/at/all\n")
    broken.chmod(0o755)
    refuse(run("lock", name, str(broken)), 127, f"cannot run '{broken}': No such file")
    assert run("lock", "-n", name, "false").returncode == 1
    assert run("lock", "-n", name, "true").returncode == 0


def test_a_command_that_is_not_there_is_found_out_first(run, tmp_path):
    # A server that is not there would be the complaint if it were asked first.
    words = ("lock", "--url", NOWHERE, "n")
    plain = tmp_path / "plain"
    plain.touch()
    refuse(run(*words, "no-such-command"), 127, "cannot run 'no-such-command': command not found")
    refuse(run(*words, "./no/such"), 127, "cannot run './no/such': there is no such file")
    refuse(run(*words, ""), 127, "cannot run '': command not found")
    refuse(run(*words, str(plain)), 126, f"cannot run '{plain}': permission denied")
    refuse(run(*words, str(tmp_path)), 126, "it is a directory")
    path = f"{tmp_path}:{os.environ['PATH']}"
    refuse(run(*words, "plain", PATH=path), 126, "cannot run 'plain': permission denied")


def test_a_script_that_does_not_say_whose_it_is(run, name, tmp_path):
    script = tmp_path / "script"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    assert run("lock", name, str(script), "one").stdout == f"{script} one\n".encode()


@pytest.mark.parametrize("words", [["-n"], ["--timeout", "0"], ["--timeout", "0.2"], ["-w", "0.2"]])
@pytest.mark.parametrize("kind", [[], ["--fair"], ["--shared"]])
def test_a_lock_that_is_not_to_be_had(run, name, valkey, tmp_path, words, kind):
    mark = tmp_path / "ran"
    with Lock(name, valkey):
        assert run("lock", name, *words, *kind, "touch", str(mark)) == (1, b"", b"")
        done = run("lock", *words, *kind, "-E", "99", name, "touch", str(mark))
        assert done == (99, b"", b"")
    assert not mark.exists()
    assert run("lock", name, *words, *kind, "touch", str(mark)) == (0, b"", b"")
    assert mark.exists()


def test_who_gave_up_is_not_waiting_any_more(run, name, valkey):
    with Lock(name, valkey), redis.Redis.from_url(valkey) as client:
        assert run("lock", name, "--timeout", "0.2", "true").returncode == 1
        assert client.zcard(f"bloomlock:{{{name}}}:lock:queue") == 0


def test_shared_is_together_and_nobody_else_meanwhile(start, run, name):
    words = ("lock", "--shared", name, "sh", "-c", "echo on; read answer")
    readers = [start(*words) for _ in range(2)]
    assert [answer(reader) for reader in readers] == [b"on\n"] * 2
    assert run("lock", "-n", name, "true").returncode == 1
    send(readers[0], b"\n")
    assert readers[0].wait(PATIENCE) == 0
    assert run("lock", "-n", "--fair", name, "true").returncode == 1
    send(readers[1], b"\n")
    assert readers[1].wait(PATIENCE) == 0
    assert run("lock", "-n", name, "true").returncode == 0


def test_shared_is_the_read_side_of_a_read_write_lock(run, name, valkey):
    lock = ReadWriteLock(name, valkey)
    with lock.write:
        assert run("lock", "-n", "--shared", name, "true").returncode == 1
    with lock.read:
        assert run("lock", "-n", "--shared", name, "true").returncode == 0
        assert run("lock", "-n", name, "true").returncode == 1
    lock.close()


@pytest.mark.parametrize("kind", [[], ["--fair"], ["--shared"]])
def test_on_every_server(run, server_url, name, kind):
    words = ("lock", *kind, name, "sh", "-c", "echo $BLOOMLOCK_FENCE")
    fences = [int(run(*words, url=server_url).stdout) for _ in range(2)]
    assert fences[0] < fences[1]


def test_options_end_where_the_command_begins(run, name, tmp_path):
    words = ("echo", "-n", "--url", "nonsense", "--help", "--", "-E")
    said = b"--url nonsense --help -- -E"
    assert run("lock", name, *words).stdout == said
    assert run("lock", name, "-n", *words).stdout == said
    assert run("lock", "-n", name, "--ttl", "5", "--", *words).stdout == said
    assert run("lock", "--", name, *words).stdout == said


def test_how_long_it_took_is_said_on_request(run, name, valkey):
    done = run("lock", "-v", name, "true")
    pattern = rb"bloomlock: lock '.*': obtained, fence \d+, after \d+\.\d+ s\n"
    assert re.fullmatch(pattern, done.stderr)
    with Lock(name, valkey):
        done = run("lock", "-v", "-n", name, "true")
    assert re.fullmatch(rb"bloomlock: lock '.*': not obtained after \d+\.\d+ s\n", done.stderr)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["n"], "Missing argument 'COMMAND...'"),
        (["n", "--"], "Missing argument 'COMMAND...'"),
        ([], "Missing argument 'NAME'"),
        (["", "true"], "name must be a text"),
        (["x" * 1025, "true"], "name must be a text"),
        (["--nonsense", "n", "true"], "--nonsense"),
        (["n", "--nonsense", "--", "true"], "--nonsense"),
        (["--ttl", "0", "n", "true"], "ttl must be"),
        (["--ttl", "-1", "n", "true"], "--ttl': it must be a number of seconds, at least 0"),
        (["--ttl", "long", "n", "true"], "at least 0, not 'long'"),
        (["--timeout", "nan", "n", "true"], "--timeout': it must be a number of seconds"),
        (["--timeout", "inf", "n", "true"], "--timeout': it must be a number of seconds"),
        (["--grace", "-0.5", "n", "true"], "--grace': it must be a number of seconds"),
        (["-E", "256", "n", "true"], "256"),
        (["-E", "no", "n", "true"], "'no'"),
        (["-s", "--fair", "n", "true"], "--fair and --shared do not go together"),
        (["-n", "-w", "3", "n", "true"], "--nonblock and --timeout do not go together"),
    ],
)
def test_bad_input(run, words, part):
    refuse(run("lock", "--url", NOWHERE, *words), 2, part)


def test_no_server(run):
    refuse(run("lock", "--url", NOWHERE, "n", "true"), 2, f"no Redis server answers at {NOWHERE}")
    refuse(run("lock", "--url", "http://x", "n", "true"), 2, "--url must be a URL that starts with")


def test_a_key_of_another_type(run, name, valkey):
    with redis.Redis.from_url(valkey) as client:
        key = f"bloomlock:{{{name}}}:lock"
        client.sadd(key, "something else")
        refuse(run("lock", "--timeout", "1", name, "true"), 2, "WRONGTYPE")
        assert client.smembers(key) == {b"something else"}
        client.delete(key)


def test_nothing_is_left_running(start, name, valkey):
    process = start("lock", name, "--", "sh", "-c", "echo on; read answer")
    assert answer(process) == b"on\n"
    pids = children_of(process.pid)
    assert len(pids) == 2  # the command and its guard
    send(process, b"\n")
    assert process.wait(PATIENCE) == 0
    for pid in pids:
        wait_until(lambda pid=pid: not exists(pid))


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
