"""`bloomlock claims`: what is claimed, what failed, and what is done about it."""

from __future__ import annotations

import json

import pytest
from claim_tools import let_expire

from bloomlock import BloomFilter, ClaimState


@pytest.fixture
def orders(r, valkey, name):
    with BloomFilter(name, 1000, client=valkey, shards=2) as made:
        yield made


def test_ls(run, name, orders):
    orders.claim("working", ttl=600, payload="more")
    orders.claim("broken", max_attempts=1).abandon(ValueError("why\nso"))
    orders.claim(b"\xff", max_attempts=3).abandon("later")
    orders.claim("done").commit()
    done = run("claims", "ls", name)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    assert "claimed       4\n" in text
    assert "committed     1\n" in text
    lines = {line.split()[0]: line.split() for line in text.splitlines()[-3:]}
    assert lines["open"][-3:] == ["1", "working", "more"]
    assert lines["failed"][1:] == ["-", "1", "broken", "ValueError:", "why?so"]
    assert lines["failing"][1:] == ["-", "1", "\\xff", "later"]
    told = json.loads(run("claims", "ls", name, "--json").stdout)
    assert told["counts"]["failed_items"] == 2
    assert (told["items"][0]["state"], told["items"][0]["item"]) == ("open", "working")
    assert 500 < told["items"][0]["remaining"] <= 600
    assert orders.claim("working").state is ClaimState.BUSY, "a look claims nothing"


def test_expired(run, r, name, orders):
    assert run("claims", "expired", name).returncode == 1
    for item in ("a", "b"):
        orders.claim(item, renew=False)
    let_expire(r)
    orders.claim("c", ttl=600)
    done = run("claims", "expired", name, "--json")
    assert done.returncode == 0
    assert {row["item"] for row in json.loads(done.stdout)} == {"a", "b"}
    assert b"over" in run("claims", "expired", name).stdout
    assert sorted(claim.item for claim in orders.expired()) == ["a", "b"], "they are there still"


def test_retry_and_drop(run, name, orders):
    for item in ("a", "b", "c"):
        orders.claim(item, max_attempts=1).abandon("why")
    done = run("claims", "retry", name, "a", "unknown")
    assert (done.returncode, done.stdout) == (1, b"1 retried\n")
    assert done.stderr == b"bloomlock: unknown: it did not fail\n"
    assert [claim.item for claim in orders.expired()] == ["a"], "it is offered to who asks"
    done = run("claims", "drop", name, "b")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1 dropped\n", b"")
    assert [failed.item for failed in orders.failed()] == ["c"]
    assert list(orders.expired()) == [], "what is dropped is offered to nobody"
    assert orders.claim("b").attempts == 1
    assert run("claims", "retry", name, "--all").stdout == b"1 retried\n"
    assert orders.claim("c").state is ClaimState.NEW
    assert run("claims", "retry", name, "--all").stdout == b"0 retried\n"


def test_what_a_server_promises(run, r, valkey):
    """The command leaves: it is only tried."""
    done = run("claims", "check", "--client", valkey)
    assert done.returncode == 0
    assert {line.split()[0] for line in done.stdout.decode().splitlines()} == {"holds"}
    assert r.dbsize() == 0
