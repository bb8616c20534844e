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


def test_ls_shows_whose_workers_died(run, r, name, orders):
    for item in ("a", "b"):
        orders.claim(item, renew=False)
    let_expire(r)
    orders.claim("c", ttl=600)
    items = json.loads(run("claims", "ls", name, "--json").stdout)["items"]
    assert {row["item"] for row in items if row["state"] == "over"} == {"a", "b"}
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
