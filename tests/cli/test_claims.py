"""`bloomlock claims`: what is claimed, what failed, and what a server promises."""

from __future__ import annotations

import itertools
import json
from urllib.parse import urlsplit

import pytest
from claim_tools import let_expire
from proxy import Proxy

from bloomlock import BloomFilter, ClaimState
from bloomlock.cli.claims_check import PROMISES
from bloomlock.server import PrivateServer

SCRIPTS, ONE_WORKER, SEEN_BY_ALL = list(PROMISES)[:3]


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


@pytest.mark.parametrize("arguments", [(), ("a", "--all")])
def test_items_or_all(run, name, orders, arguments):
    done = run("claims", "drop", name, *arguments)
    assert (done.returncode, done.stderr) == (2, b"bloomlock: give ITEMs, or --all\n")


def test_no_such_filter(run, name):
    for command in ("ls", "expired"):
        done = run("claims", command, name)
        assert done.returncode == 2
        assert done.stderr.count(b"\n") == 1


def check(run, url):
    """Return the exit status, and the promises that fail with the reason."""
    done = run("claims", "check", "--client", url, "--json")
    results = json.loads(done.stdout)
    assert [result["promise"] for result in results] == list(PROMISES)
    return done.returncode, {one["promise"]: one["why"] for one in results if not one["holds"]}


def test_a_server_holds_them(run, r, valkey):
    assert check(run, valkey) == (0, {})
    assert not r.keys("bloomlock-check-*")
    with Proxy(valkey) as proxy:
        done = run("claims", "check", "--client", proxy.url)
    assert done.returncode == 0
    assert done.stdout.decode().splitlines() == [f"holds  {promise}" for promise in PROMISES]


def test_a_lost_reply_breaks_no_promise(run, r, valkey):
    with Proxy(valkey) as proxy:
        proxy.judge = lambda name, number: "after" if "EVAL" in name and number % 7 == 0 else "pass"
        assert check(run, proxy.url) == (0, {})
        assert proxy.cuts["after"] > 5


def test_replies_that_never_arrive(run, valkey):
    with Proxy(valkey) as proxy:
        proxy.judge = lambda name, _: "after" if name.startswith("EVAL") else "pass"
        status, failing = check(run, proxy.url)
    assert status == 1
    assert "ConnectionError" in failing[SCRIPTS]


def test_where_scripts_are_forbidden(run, r, valkey):
    r.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    try:
        status, failing = check(run, f"{valkey}&username=plain&password=pw")
        assert status == 1
        assert "claims need a server that runs scripts" in failing[SCRIPTS]
        assert not r.keys("bloomlock-check-*")
    finally:
        r.execute_command("ACL", "DELUSER", "plain")


class Balancer(Proxy):
    """Sends every second connection to another server."""

    def __init__(self, *urls):
        super().__init__(urls[0])
        self._paths = itertools.cycle([urlsplit(url).path for url in urls])

    @property
    def server(self):
        return next(self._paths)

    @server.setter
    def server(self, path):
        """Leave the first one where it is."""


def test_a_stale_replica(run, r, valkey):
    """Some connections see another state than the others."""
    with PrivateServer() as stale, Balancer(valkey, stale.url) as balancer:
        status, failing = check(run, balancer.url)
    assert status == 1
    assert failing.keys() & {ONE_WORKER, SEEN_BY_ALL}


def test_a_server_that_drops_writes(run, r, valkey):
    """As one that evicts, or acknowledges what it does not keep."""

    def forget(_name, _number):
        for key in r.keys("bloomlock-check-*:claims:open"):
            r.delete(key)
        return "pass"

    with Proxy(valkey, forget) as proxy:
        status, failing = check(run, proxy.url)
    assert status == 1
    assert ONE_WORKER in failing


def test_no_server(run, tmp_path):
    done = run("claims", "check", "--client", f"unix://{tmp_path}/none")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)


def test_a_server_that_evicts(run):
    with PrivateServer(config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as server:
        status, failing = check(run, server.url)
    assert (status, list(failing)) == (1, ["nothing is evicted"])
    assert "allkeys-lru" in failing["nothing is evicted"]
