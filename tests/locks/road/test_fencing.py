"""Step 13: a holder that slept through its lease writes. Its number tells that it is late."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys

import pytest
from road.fencing import Numbered, NumberedAtOnce
from road.gate import LONG, every_preemption
from road.ours import Ours
from road.steps import OwnerLua

from bloomlock import Lock

FOR_EVER = -1


@pytest.fixture
def page(tmp_path):
    """A table that many write to: what a lock protects."""
    path = tmp_path / "page.db"
    with contextlib.closing(sqlite3.connect(path)) as table, table:
        table.execute("CREATE TABLE page (body TEXT, fence INTEGER)")
        table.execute("INSERT INTO page VALUES ('', 0)")
        table.commit()
        yield table


def write(table, body):
    table.execute("UPDATE page SET body = ?", (body,))


def write_fenced(table, body, fence):
    done = table.execute(
        "UPDATE page SET body = ?, fence = ? WHERE fence <= ?", (body, fence, fence)
    )
    return done.rowcount == 1


def body_of(table):
    return table.execute("SELECT body FROM page").fetchone()[0]


def two_holders(way, client):
    """The first sleeps through its lease, and the second has the lock."""
    late, other = way(client, "job"), way(client, "job")
    assert late.acquire()
    client.pexpire(late.key, 0)
    assert other.acquire()
    return late, other


def test_a_late_write_overwrites(client, page):
    two_holders(OwnerLua, client)
    write(page, "the second holder's")
    write(page, "the first one's, who woke up")  # nothing stops it
    assert body_of(page) == "the first one's, who woke up"


def fence_of(way):
    return way.lock.fence if isinstance(way, Ours) else way.fence


@pytest.mark.parametrize("way", [NumberedAtOnce, Ours])
def test_a_late_write_with_a_number_is_refused(way, client, page):
    late, other = two_holders(way, client)
    first, second = fence_of(late), fence_of(other)
    assert first < second
    assert write_fenced(page, "the second holder's", second)
    assert not write_fenced(page, "the first one's, who woke up", first)
    assert body_of(page) == "the second holder's"


def late_holder_has_the_higher_number(way, server_url, client):
    """The lease runs out in the midst of an acquire, at every place in turn."""
    client.flushall()
    higher = []
    late = None

    def acquire_late(r):
        nonlocal late
        late = way(r, "job")
        return late.acquire

    def the_lease_is_over_and_another_comes():
        other = way(client, "job")
        client.pexpire(other.key, 0)
        assert other.acquire()
        return fence_of(other)

    for got_it, number in every_preemption(
        server_url, acquire_late, the_lease_is_over_and_another_comes
    ):
        higher.append(got_it and fence_of(late) > number)
        client.flushall()
    return higher


def test_a_number_taken_after_the_lock_can_be_higher_than_that_of_the_next_holder(
    server_url, client
):
    assert any(late_holder_has_the_higher_number(Numbered, server_url, client))


@pytest.mark.parametrize("way", [NumberedAtOnce, Ours])
def test_a_number_taken_with_the_lock_is_lower_than_that_of_the_next(way, server_url, client):
    higher = late_holder_has_the_higher_number(way, server_url, client)
    assert higher
    assert not any(higher)


def keys_for_ever_after(way, client):
    lock = way(client, "job")
    assert lock.acquire()
    lock.release()
    return [key for key in client.keys("*") if client.pttl(key) == FOR_EVER]


def test_a_counter_stays_for_ever_and_ours_does_not(client):
    assert keys_for_ever_after(NumberedAtOnce, client) == [b"job:fence"]
    client.flushall()
    assert keys_for_ever_after(Ours, client) == []


SLEEPER = """
import sqlite3, sys
from bloomlock import Lock
lock = Lock("job", client=sys.argv[1], ttl=1.0)
lock.acquire()
print(lock.fence, flush=True)
sys.stdin.readline()
table = sqlite3.connect(sys.argv[2])
done = table.execute("UPDATE page SET body = 'late', fence = ? WHERE fence <= ?", 2 * (lock.fence,))
table.commit()
print(done.rowcount, flush=True)
"""


def test_ours_a_process_that_was_stopped_past_its_lease_is_refused(
    server_url, client, page, tmp_path
):
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, server_url, str(tmp_path / "page.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as sleeper:
        try:
            first = int(sleeper.stdout.readline())
            sleeper.send_signal(signal.SIGSTOP)
            other = Lock("job", client=client)
            assert other.acquire(timeout=LONG)
            assert other.fence > first
            assert write_fenced(page, "in time", other.fence)
            page.commit()
            sleeper.send_signal(signal.SIGCONT)
            sleeper.stdin.write("go on\n")
            sleeper.stdin.flush()
            assert sleeper.stdout.readline() == "0\n"
        finally:
            sleeper.kill()
    assert body_of(page) == "in time"
    other.release()
