"""Several `bloomlock lock` at once, and some of them killed."""

from __future__ import annotations

import os
import signal

import pytest
import redis
from cli_process import PATIENCE, answer
from servers import wait_until

from bloomlock import Lock
from bloomlock.server import PrivateServer

pytestmark = pytest.mark.processes

# Reads, waits and writes: any two of these at once lose a count.
COUNT = 'n=$(cat "$0"); sleep 0.02; echo $((n + 1)) > "$0"'


@pytest.fixture
def queue(valkey, name):
    """Tell how many are waiting."""
    with redis.Redis.from_url(valkey) as client:
        yield lambda: client.zcard(f"bloomlock:{{{name}}}:lock:queue")


@pytest.mark.parametrize("kind", [[], ["--fair"]])
def test_one_at_a_time(start, name, tmp_path, kind):
    count = tmp_path / "count"
    count.write_text("0\n")
    processes = [start("lock", *kind, name, "sh", "-c", COUNT, str(count)) for _ in range(8)]
    assert [process.wait(60) for process in processes] == [0] * 8
    assert count.read_text() == "8\n"


def test_locks_of_other_names_are_held_together(start, name, tmp_path):
    count = tmp_path / "count"
    count.write_text("0\n")
    # None writes before all have read: with one lock for all this would never end.
    wait = 'touch "$0.$$"; while [ $(ls "$0".* | wc -l) -lt 4 ]; do sleep 0.02; done'
    code = ("sh", "-c", COUNT.replace("sleep 0.02", wait), str(count))
    processes = [start("lock", f"{name}-{number}", *code) for number in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert count.read_text() == "1\n"


def test_fences_rise_in_the_order_of_the_grants(start, name, tmp_path):
    log = tmp_path / "log"
    code = ("sh", "-c", 'echo $BLOOMLOCK_FENCE >> "$0"', str(log))
    processes = [start("lock", name, *code) for _ in range(6)]
    assert [process.wait(60) for process in processes] == [0] * 6
    fences = [int(line) for line in log.read_text().split()]
    assert len(fences) == 6
    assert fences == sorted(set(fences))


def test_fair_is_in_the_order_of_asking(start, name, valkey, queue, tmp_path):
    log = tmp_path / "log"
    with Lock(name, valkey):
        processes = []
        for number in range(5):
            code = ("sh", "-c", 'echo $1 >> "$0"', str(log), str(number))
            processes.append(start("lock", "--fair", name, *code))
            wait_until(lambda number=number: queue() == number + 1)
    assert [process.wait(60) for process in processes] == [0] * 5
    assert log.read_text().split() == list("01234")


@pytest.mark.parametrize("kind", [[], ["--fair"], ["--shared"]])
def test_a_waiter_that_is_killed_holds_up_nobody(start, name, valkey, queue, tmp_path, kind):
    mark = tmp_path / "ran"
    with Lock(name, valkey):
        # The lock is handed to it all the same, and stays with it for its ttl.
        first = start("lock", *kind, "--ttl", "1", name, "touch", str(mark))
        wait_until(lambda: queue() == 1)
        second = start("lock", name, "echo", "done")
        wait_until(lambda: queue() == 2)
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE)
    assert second.wait(60) == 0
    assert answer(second) == b"done\n"
    assert not mark.exists()


def test_a_holder_that_is_killed_holds_up_others_for_its_ttl_only(start, name):
    first = start("lock", "--ttl", "2", name, "sh", "-c", "echo $$; exec sleep 1000")
    command = int(answer(first))
    second = start("lock", name, "echo", "done")
    first.send_signal(signal.SIGKILL)
    assert second.wait(60) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(command, 0)


@pytest.mark.parametrize("kind", [[], ["--fair"], ["--shared"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_waiter_that_is_interrupted_leaves_the_queue(
    start, name, valkey, queue, tmp_path, kind, number
):
    mark = tmp_path / "ran"
    with Lock(name, valkey):
        process = start("lock", *kind, name, "touch", str(mark))
        wait_until(lambda: queue() == 1)
        process.send_signal(number)
        # A shell shows that as 128 + number; 130 for Ctrl-C.
        assert process.wait(PATIENCE) == -number
        assert queue() == 0
        assert process.stderr.read() == b""
    assert not mark.exists()
    assert not Lock(name, valkey).locked()


def test_a_waiter_whose_server_stays_away_says_so(start, name):
    with PrivateServer() as server, redis.Redis.from_url(server.url) as client:
        client.set(f"bloomlock:{{{name}}}:lock", "somebody", px=600_000)
        # It waits for a server to come back for as long as the ttl.
        process = start("lock", "--ttl", "1", name, "true", url=server.url)
        wait_until(lambda: client.zcard(f"bloomlock:{{{name}}}:lock:queue") == 1)
        server.kill()
        assert process.wait(PATIENCE) == 2
        message = process.stderr.read()
        assert message.startswith(b"bloomlock: ")
        assert message.count(b"\n") == 1


def test_a_waiter_whose_server_is_stuck_can_be_interrupted(start, name):
    with PrivateServer() as server, redis.Redis.from_url(server.url) as client:
        client.set(f"bloomlock:{{{name}}}:lock", "somebody", px=600_000)
        process = start("lock", name, "true", url=server.url)
        wait_until(lambda: client.zcard(f"bloomlock:{{{name}}}:lock:queue") == 1)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == -signal.SIGINT
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert b"Traceback" not in process.stderr.read()
