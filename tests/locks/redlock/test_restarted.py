"""Servers that forget: who was restarted has no vote until all it can have granted is over."""

from __future__ import annotations

import time

import pytest
from servers import wait_until

from bloomlock import ConfigurationError, QuorumError, Redlock

TTL = 1.0
LONGER_TTL = 5.0
"""For a lock that has to be renewed however busy the machine is."""


def all_vote(several, seconds):
    uptimes = [client.info("server")["uptime_in_seconds"] for client in several.clients]
    return min(uptimes) > seconds


def second_after_a_restart(several, **options):
    """The first holds servers 0 and 1, and 1 forgets: does the second get 1 and 2?

    Returns both, the answer, and after how many seconds at most it was given.
    """
    first, second = (several.lock(renew=False, **options) for _ in range(2))
    several.clients[2].set(first.key, "somebody else's", px=60_000)
    assert first.acquire(blocking=False)
    several.clients[2].delete(first.key)
    began = time.monotonic()
    several.servers[1].restart()
    got = second.acquire(blocking=False)
    return first, second, got, time.monotonic() - began


def test_a_server_that_was_restarted_has_no_vote(three):
    wait_until(lambda: all_vote(three, 2))
    first, second, got, seconds = second_after_a_restart(three, ttl=2, longest_ttl=2)
    assert not got or seconds > 2
    assert got or second.acquire(timeout=60)
    assert first.remaining() == 0.0
    second.release()


def test_without_that_there_are_two_holders(three):
    first, second, got, _ = second_after_a_restart(three, longest_ttl=0)
    assert got
    first.check()
    second.check()
    second.release()


def test_a_longer_lease_of_others_asks_for_a_longer_wait(three):
    wait_until(lambda: all_vote(three, TTL))
    with pytest.raises(QuorumError, match=r"0 of 3 .* clients\[2\]: restarted, it has no vote"):
        three.lock(ttl=TTL, longest_ttl=3600).acquire(blocking=False)
    lock = three.lock(ttl=TTL, longest_ttl=TTL)
    with (
        pytest.raises(ConfigurationError, match="ttl must be at most longest_ttl = 1, not 3"),
        lock,
    ):
        lock.extend(3)


def test_who_waits_waits_for_a_restarted_majority(three):
    lock = three.lock(ttl=LONGER_TTL, longest_ttl=LONGER_TTL)
    for index in (0, 1):
        three.servers[index].restart()
    with pytest.raises(QuorumError):
        lock.acquire(blocking=False)
    wait_until(lambda: three.held(lock.key) == 0)
    assert lock.acquire(timeout=60)
    assert lock.owned()
    lock.release()


def test_a_vote_of_a_young_server_begins_to_count_with_its_age(three):
    wait_until(lambda: all_vote(three, LONGER_TTL))
    three.servers[2].restart()
    lock = three.lock(ttl=LONGER_TTL, longest_ttl=LONGER_TTL)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 3)
    # Its age is told in whole seconds, so it may be taken to be a second younger.
    wait_until(lambda: all_vote(three, LONGER_TTL + 1))
    three.servers[0].kill()
    lock.extend()
    lock.release()
    wait_until(lambda: three.held(lock.key) == 0)


def test_ages_are_told_where_scripts_are_forbidden_as_well(three):
    wait_until(lambda: all_vote(three, LONGER_TTL))
    options = {"ttl": LONGER_TTL, "server_timeout": LONGER_TTL}
    lock = Redlock("job", clients=as_worker(three, "-@scripting"), **options)
    with lock:
        assert lock.owned()
    three.servers[0].restart()
    three.servers[1].restart()
    lock = Redlock("job", clients=as_worker(three, "-@scripting"), **options)
    with pytest.raises(QuorumError, match=r"clients\[0\]: restarted.*clients\[1\]: restarted"):
        lock.acquire(blocking=False)
    wait_until(lambda: three.held(lock.key) == 0)


@pytest.mark.parametrize("forbidden", [["-info"], ["-info", "-@scripting"]])
def test_a_server_that_does_not_tell_its_age_has_no_vote(three, forbidden):
    lock = Redlock("job", clients=as_worker(three, *forbidden), ttl=5)
    with pytest.raises(QuorumError, match=r"0 of 3 .*clients\[2\]: .*'info'"):
        lock.acquire(blocking=False)
    wait_until(lambda: three.held(lock.key) == 0)


def as_worker(several, *rules):
    for client in several.clients:
        user = ["worker", "reset", "on", ">secret", "~*", "&*", "+@all", *rules]
        client.execute_command("ACL", "SETUSER", *user)
    return [f"{url}&username=worker&password=secret" for url in several.urls]


def test_the_same_server_twice_is_found_out(three):
    urls = [three.urls[0], three.servers[0].tcp_url, three.urls[1]]
    lock = Redlock("job", clients=urls, ttl=1, server_timeout=1)
    wait_until(lambda: all_vote(three, 1))
    with pytest.raises(ConfigurationError, match=r"clients\[0\] and clients\[1\] are the same one"):
        lock.acquire(blocking=False)
    wait_until(lambda: three.held(lock.key) == 0)
