"""`@once` with a fingerprint in filters that forget: by a time window, by `discard`."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
from moved_clock import stopped_server
from proxy import Proxy
from window_clocks import LAST, SLICE, Clocks

from bloomlock import AsyncBloomFilter, BloomFilter, FingerprintMismatchError, once
from bloomlock.filters.claim import Claim


@pytest.fixture
def clocks(tmp_path):
    with stopped_server("valkey", tmp_path) as server:
        yield Clocks(*server)


def charging(made, body=lambda: None):
    @once(made, key="order", fingerprint="amount")
    def charge(order, amount):
        body()
        return f"charged {amount}"

    return charge


def is_known_as_done(charge):
    assert charge("a", 5) is None
    with pytest.raises(FingerprintMismatchError):
        charge("a", 6)


def fresh(clocks, **options):
    """Return an object that has heard nothing of the time."""
    return charging(clocks.make(**options))


@pytest.mark.parametrize("refresh", [False, True])
def test_a_fingerprint_is_remembered_as_long_as_its_key(clocks, monkeypatch, refresh):
    """Though a slice begins between the two."""
    commit = Claim.commit

    def commit_later(claim):
        clocks.set(SLICE)
        commit(claim)

    with monkeypatch.context() as patched:
        patched.setattr(Claim, "commit", commit_later)
        patched.setattr(Claim, "__exit__", lambda claim, *_: claim.commit())
        assert fresh(clocks, refresh=refresh)("a", 5) == "charged 5"
    for seconds in (SLICE, LAST, LAST + SLICE - 1, LAST + SLICE, LAST + 2 * SLICE - 1):
        clocks.set(seconds)
        is_known_as_done(fresh(clocks, refresh=refresh))
    clocks.set(LAST + 2 * SLICE)
    assert fresh(clocks)("a", 6) == "charged 6"


class Death(BaseException):
    pass


def test_a_fingerprint_of_a_process_that_died_is_renewed(clocks, monkeypatch):
    def die(_claim, *_):
        raise Death

    with monkeypatch.context() as patched:
        patched.setattr(Claim, "__exit__", die)
        with contextlib.suppress(Death):
            fresh(clocks)("a", 5)
    clocks.set(3 * SLICE)
    assert fresh(clocks)("a", 5) == "charged 5"
    for seconds in (LAST, LAST + SLICE, LAST + 4 * SLICE - 1):
        clocks.set(seconds)
        is_known_as_done(fresh(clocks))


def test_asyncio(clocks, monkeypatch):
    async def main():
        made = await clocks.make(AsyncBloomFilter, client=clocks.url)

        @once(made, key="order", fingerprint="amount")
        async def charge(order, amount):
            return f"charged {amount}"

        renewed = []
        commit = made._run

        async def run(core):
            renewed.append(core.__name__)
            return await commit(core)

        monkeypatch.setattr(made, "_run", run)
        assert await charge("a", 5) == "charged 5"
        assert renewed[-1] == "_renew_after_commit"
        assert await charge("a", 5) is None
        with pytest.raises(FingerprintMismatchError):
            await charge("a", 6)
        await made.close()

    asyncio.run(main())


def test_a_server_that_is_gone_after_the_commit_is_no_failure_of_the_call(r, valkey, caplog):
    with Proxy(valkey) as proxy, BloomFilter("done", 1000, client=proxy.url, window=60) as made:
        charge = charging(made)
        assert charge("warm", 1)
        commits = []

        def judge(name, _number):
            commits.append(name)
            return "pass"

        proxy.judge = judge
        assert charge("b", 1) == "charged 1"
        last = len(commits)
        count = iter(range(10**6))
        proxy.judge = lambda *_: "pass" if next(count) < last - 2 else "before"
        with caplog.at_level(logging.WARNING, "bloomlock"):
            assert charge("c", 5) == "charged 5"
        assert "a fingerprint in filter 'done' may be forgotten before its key" in caplog.text
        proxy.judge = lambda *_: "pass"
        assert charge("c", 5) is None


def test_a_key_that_was_forgotten_is_done_again_and_its_fingerprints_stay(done):
    charge = charging(done)
    assert charge("a", 5) == "charged 5"
    assert done.discard("a")
    assert charge("a", 6) == "charged 6"
    assert charge("a", 6) is None
    assert charge("a", 5) is None, "a fingerprint of before the discard"
    with pytest.raises(FingerprintMismatchError):
        charge("a", 7)
