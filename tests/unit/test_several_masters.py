"""A server that takes writes to one key at several masters is refused by its name."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from bloomlock.effects import Request
from bloomlock.errors import ConfigurationError
from bloomlock.filters.stored_filter import check_room
from bloomlock.keys import FilterKeys
from bloomlock.spec import RequestedSpec

CRDT_CONFIG = [b"crdt.config", -2, [b"admin"], 0, 0, 0]
"""As COMMAND INFO describes a command that a server has."""
ACTIVE_REPLICA = """# Replication\r
role:active-replica\r
master_global_link_status:up\r
master_host:192.168.10.20\r
slave_read_only:0\r
"""
MASTER = "# Replication\r\nrole:master\r\nconnected_slaves:1\r\n# Memory\r\nused_memory:1\r\n"
DENIED = NoPermissionError("this user has no permissions to run the command")


def create(replication, crdt):
    """Look for room, answered by hand as such a server does."""
    wanted = RequestedSpec.check(1000, 1e-6)
    core = check_room(FilterKeys("pages"), wanted.describe(), 1000)
    request = next(core)
    assert isinstance(request, Request)
    core.send([replication, crdt, ResponseError("This instance has cluster support disabled")])


@pytest.mark.parametrize(
    ("replication", "crdt", "name"),
    [
        (ACTIVE_REPLICA.encode(), [None], "a KeyDB active replica"),
        (MASTER.encode(), [CRDT_CONFIG], "a Redis Enterprise Active-Active database"),
        (DENIED, [CRDT_CONFIG], "a Redis Enterprise Active-Active database"),
    ],
)
def test_no_filter_is_made_there(replication, crdt, name):
    with pytest.raises(ConfigurationError) as refused:
        create(replication, crdt)
    assert str(refused.value) == (
        f"filter 'pages' cannot be on this server, which is {name}: each of its masters takes "
        "writes to the same string, of which the last one wins, so bits that were set are lost; "
        "give a server with one master for each key"
    )


@pytest.mark.parametrize("crdt", [[None], [], None, ResponseError("unknown command"), DENIED])
@pytest.mark.parametrize("replication", [MASTER.encode(), b"role:slave\r\n", DENIED])
def test_others_are_taken_as_they_are(replication, crdt):
    with pytest.raises(StopIteration):  # it has ended, and refused nothing
        create(replication, crdt)
