"""Servers that forget: who was restarted has no vote until all it can have granted is over."""

from __future__ import annotations

import pytest
from servers import wait_until
from several import LONG

from bloomlock import Redlock
from bloomlock.errors import ConfigurationError, QuorumError

TTL = 5.0
"""Servers that were started before are older than this soon."""


def all_vote(several, seconds=TTL + 1):
    uptimes = [client.info("server")["uptime_in_seconds"] for client in several.clients]
    return min(uptimes) > seconds


def after_a_restart(several, **options):
    """The first holds servers 0 and 1, and 1 forgets: the second may get 1 and 2."""
    first, second = (several.lock(renew=False, **options) for _ in range(2))
    several.clients[2].set(first.key, "somebody else's", px=600_000)
    # What an earlier test took may be on its way back.
    assert first.acquire(timeout=LONG)
    several.clients[2].delete(first.key)
    several.servers[1].restart()
    return first, second


def test_a_server_that_was_restarted_has_no_vote(three):
    first, second = after_a_restart(three, ttl=600, longest_ttl=0)
    assert second.acquire(blocking=False), "without that there are two holders"
    first.check()
    second.release()
    careful = three.lock(ttl=600, longest_ttl=600)
    with pytest.raises(
        QuorumError, match=r"clients\[1\]: restarted, it has no vote for \d+ s more"
    ):
        careful.acquire(blocking=False)
    wait_until(lambda: three.tokens(first.key)[1:] == [None, None])


def test_a_longer_lease_of_others_asks_for_a_longer_wait(three):
    wait_until(lambda: all_vote(three))
    with pytest.raises(QuorumError, match=r"0 of 3 .* clients\[2\]: restarted, it has no vote"):
        three.lock(ttl=TTL, longest_ttl=3600).acquire(blocking=False)
    wait_until(lambda: three.held(three.lock().key) == 0)
    lock = three.lock(ttl=TTL, longest_ttl=TTL, server_timeout=TTL)
    lock.acquire()
    with pytest.raises(ConfigurationError, match="ttl must be at most longest_ttl = 5, not 6"):
        lock.extend(6)
    lock.release()


def test_a_vote_of_a_young_server_begins_to_count_with_its_age(three):
    wait_until(lambda: all_vote(three))
    three.servers[2].restart()
    lock = three.lock(ttl=TTL, longest_ttl=TTL)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 3)
    # Its age is told in whole seconds, so it may be taken to be a second younger.
    wait_until(lambda: all_vote(three))
    three.servers[0].kill()
    lock.extend()
    lock.release()
    wait_until(lambda: three.held(lock.key) == 0)


def test_who_waits_waits_for_a_restarted_majority(three):
    lock = three.lock(ttl=TTL, longest_ttl=TTL)
    for index in (0, 1):
        three.servers[index].restart()
    with pytest.raises(QuorumError):
        lock.acquire(blocking=False)
    assert lock.acquire(timeout=LONG)
    lock.release()


def test_a_server_that_does_not_tell_its_age_has_no_vote(three):
    for client in three.clients:
        user = ["worker", "reset", "on", ">secret", "~*", "&*", "+@all", "-info"]
        client.execute_command("ACL", "SETUSER", *user)
    urls = [f"{url}&username=worker&password=secret" for url in three.urls]
    lock = Redlock("job", clients=urls, ttl=5)
    with pytest.raises(QuorumError, match=r"0 of 3 .*clients\[2\]: .*'info'"):
        lock.acquire(blocking=False)
    wait_until(lambda: three.held(lock.key) == 0)


def test_the_same_server_twice_is_found_out(three):
    wait_until(lambda: all_vote(three))
    # Of two a majority is both, so neither answer comes too late to count.
    urls = [three.urls[0], three.servers[0].tcp_url]
    lock = Redlock("job", clients=urls, ttl=TTL, server_timeout=TTL)
    with pytest.raises(ConfigurationError, match=r"clients\[0\] and clients\[1\] are the same one"):
        lock.acquire(blocking=False)
    wait_until(lambda: three.held(lock.key) == 0)
