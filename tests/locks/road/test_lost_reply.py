"""Step 12: the server did it, the reply was lost. The client asks again, and is in its own way."""

from __future__ import annotations

import pytest
from road.gate import Gate
from road.ours import Ours
from road.steps import OwnerLua, OwnerWatch, SetNxPx


@pytest.mark.parametrize("way", [SetNxPx, OwnerWatch, OwnerLua])
def test_a_repeated_set_nx_is_told_busy_by_its_own_first_try(way, server_url, client):
    with Gate(server_url) as gate, gate.client(retries=3) as r:
        lock = way(r, "job")
        gate.deafen()
        assert not lock.acquire()
        assert gate.lost == 1
        assert client.get("job") == lock.token  # held by it, and it does not know
        assert not way(client, "job").acquire()


@pytest.mark.parametrize("retries", [0, 3])
def test_ours_knows_its_own_first_try(server_url, client, retries):
    number = 0
    while True:
        client.flushall()
        with Gate(server_url) as gate, gate.client(retries) as r:
            lock = Ours(r, "job")
            gate.deafen(number)
            assert lock.acquire()
            if not gate.lost:
                break
            assert lock.held
            assert lock.lock.owned()
            lock.release()
            assert client.get(lock.key) is None
        number += 1
    assert number


@pytest.mark.parametrize("retries", [0, 3])
def test_ours_is_given_back_once_though_it_was_sent_twice(server_url, client, retries):
    with Gate(server_url) as gate, gate.client(retries) as r:
        lock, other = Ours(r, "job"), Ours(client, "job")
        assert lock.acquire()
        gate.deafen()
        lock.release()
        assert gate.lost == 1
        assert other.acquire()
        other.release()
