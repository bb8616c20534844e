"""Whether claims hold what they promise on a server, through whatever stands before it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import redis
from redis.exceptions import RedisError

from bloomlock import BloomFilter, ClaimState
from bloomlock.catalog import delete_filter
from bloomlock.errors import BloomlockError, ClaimLostError, ServerError
from bloomlock.server import find_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
LEASE = 0.3
"""Seconds of a lease that is waited for."""
LEASE_OF_A_BUSY_MACHINE = 2.0
LONG = 600.0
LONGEST_WAIT = 5.0
CAPACITY = 1000
MANY = 50


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one promise.

    Attributes:
        promise: Its name.
        holds: Whether it was kept.
        why: What was seen instead; empty if it holds.
    """

    promise: str
    holds: bool
    why: str = ""


class Broken(Exception):  # noqa: N818 - a promise is
    """A promise is not kept; the message says what was seen."""


class _Pair:
    """Two workers, each with a connection of its own, and their filter on fresh keys."""

    def __init__(self, url: str | None, prefix: str) -> None:
        self.url, self._prefix = url, prefix
        self.mine = self.open()
        self.other = self.open()

    def open(self) -> BloomFilter:
        return BloomFilter("check", CAPACITY, client=self.url, prefix=self._prefix)

    def close(self) -> None:
        for one in (self.mine, self.other):
            one.close()
        delete_filter("check", client=self.url, prefix=self._prefix)


def run_checks(url: str | None) -> Iterator[Result]:
    """Try each promise; one that fails does not keep the others from being tried.

    Raises:
        ServerError: If the server cannot be reached.
    """
    for promise, check in PROMISES.items():
        prefix = f"bloomlock-check-{secrets.token_hex(8)}:"
        yield _try(promise, partial(_on_fresh_keys, check, url, prefix))


def _try(promise: str, check: Callable[[], None]) -> Result:
    try:
        check()
    except Broken as broken:
        return Result(promise, holds=False, why=str(broken))
    except ServerError:
        raise  # there is no server to check
    except (BloomlockError, RedisError, OSError) as error:
        return Result(promise, holds=False, why=f"{type(error).__name__}: {error}")
    return Result(promise, holds=True)


def _on_fresh_keys(check: Callable[[_Pair], None], url: str | None, prefix: str) -> None:
    pair = _Pair(url, prefix)
    try:
        check(pair)
    finally:
        pair.close()


def _expect(what: str, found: object, *wanted: object) -> None:
    if found not in wanted:
        shown = " or ".join(map(_shown, wanted))
        raise Broken(f"{what} is {_shown(found)}, not {shown}")


def _shown(value: object) -> str:
    return " and ".join(sorted(map(str, value))) if isinstance(value, set) else str(value)


def _one_worker(pair: _Pair) -> None:
    for item in map(str, range(MANY)):
        _expect("the first claim", pair.mine.claim(item, LONG).state, ClaimState.NEW)
    for worker in (pair.other, pair.mine):
        states = {claim.state for claim in worker.claim_many(map(str, range(MANY)))}
        _expect("a second claim of the same item", states, {ClaimState.BUSY})


def _commit_is_seen(pair: _Pair) -> None:
    for item in map(str, range(MANY)):
        pair.mine.claim(item, LONG).commit()
        _expect(
            "another's claim of a committed item", pair.other.claim(item).state, ClaimState.SEEN
        )
        if not pair.other.exists(item):
            raise Broken("a committed item is not in the filter for another connection")


def _given_back(pair: _Pair) -> None:
    pair.mine.claim("a", LONG).abandon()
    if pair.other.exists("a"):
        raise Broken("an item that was given back is in the filter")
    _expect("the claim of an item that was given back", pair.other.claim("a").state, ClaimState.NEW)


def _lease_ends(pair: _Pair) -> None:
    late = pair.mine.claim("a", LEASE, renew=False)
    taken = _until(lambda: pair.other.claim("a", LONG), "the lease of a dead worker does not end")
    if taken.fence is None or late.fence is None or taken.fence <= late.fence:
        raise Broken(f"the fence of the later claim is {taken.fence}, and was {late.fence}")
    if any(pair.mine.commit_many([late])):
        raise Broken("a commit was accepted though another worker had claimed the item since")


def _lease_is_renewed(pair: _Pair) -> None:
    try:
        _outlives_its_lease(pair, "a", LEASE)
    except (Broken, ClaimLostError):  # this machine may have stood still for as long
        _outlives_its_lease(pair, "b", LEASE_OF_A_BUSY_MACHINE)


def _outlives_its_lease(pair: _Pair, item: str, lease: float) -> None:
    held = pair.mine.claim(item, lease)
    end = time.monotonic() + 4 * lease
    while time.monotonic() < end and not held.lost:
        _expect("a claim that is renewed", pair.other.claim(item).state, ClaimState.BUSY)
        time.sleep(lease / 4)
    if held.lost:
        raise Broken(f"a renewed claim was lost within {4 * lease:g} s")
    held.commit()


def _nothing_forgotten(pair: _Pair) -> None:
    items = [str(number) for number in range(MANY)]
    dead = pair.mine.claim_many(items, LEASE, renew=False)
    _expect("each of many claims", {claim.state for claim in dead}, {ClaimState.NEW})
    time.sleep(LEASE)
    found: list[str | bytes] = []

    def collect() -> bool:
        for worker in (pair.mine, pair.other):
            found.extend(claim.item for claim in worker.expired(LONG))
        return len(found) >= len(items)

    _until(collect, "expired() does not give all items of a dead worker")
    _expect("what expired() gave", sorted(map(str, found)), sorted(items))


def _batches(pair: _Pair) -> None:
    items = [str(number) for number in range(MANY)]
    made = pair.mine.claim_many(items, LONG)
    _expect("each of many claims", {claim.state for claim in made}, {ClaimState.NEW})
    _expect("the commit of many claims", set(pair.mine.commit_many(made)), {True})
    states = {claim.state for claim in pair.other.claim_many(items)}
    _expect("each of many committed items", states, {ClaimState.SEEN})


def _outcome_is_awaited(pair: _Pair) -> None:
    pair.mine.claim("a", LEASE, renew=False)
    waited = pair.other.claim("a", LONG, wait=LONGEST_WAIT)
    _expect("a claim that waited for a dead worker", waited.state, ClaimState.NEW)
    waited.commit()
    _expect("the next", pair.mine.claim("a", wait=LONGEST_WAIT).state, ClaimState.SEEN)


def _clear_ends_claims(pair: _Pair) -> None:
    held = pair.mine.claim("a", LONG)
    pair.other.clear()
    if any(pair.mine.commit_many([held])):
        raise Broken("a commit of before was accepted by a filter that was cleared since")
    _expect("the claim of an item of before", pair.other.claim("a").state, ClaimState.NEW)


def _counts(pair: _Pair) -> None:
    pair.mine.commit_many(pair.mine.claim_many(map(str, range(MANY)), LONG))
    counts = pair.other.info().claims
    _expect("the number of claims", counts.claimed, MANY)
    _expect("the number of commits", counts.committed, MANY)
    _expect("the number of open claims", counts.open, 0)


def _until(look: Callable[[], T], otherwise: str) -> T:
    deadline = time.monotonic() + LONGEST_WAIT
    while not (found := look()):
        if time.monotonic() > deadline:
            raise Broken(f"{otherwise} in {LONGEST_WAIT:g} s")
        time.sleep(LEASE / 10)
    return found


def _nothing_is_evicted(pair: _Pair) -> None:
    with redis.Redis.from_url(find_address(pair.url).url) as client:
        memory = client.info("memory")
    policy, most = memory.get("maxmemory_policy", "noeviction"), memory.get("maxmemory", 0)
    if most and policy != "noeviction":
        raise Broken(f"maxmemory is {most} and maxmemory-policy {policy}: claims may be evicted")


PROMISES: dict[str, Callable[[_Pair], None]] = {
    "scripts run, and an item is given back": _given_back,
    "one worker has an item": _one_worker,
    "a commit is seen by every connection": _commit_is_seen,
    "batches answer for each item": _batches,
    "a lease ends, fences rise, and a late commit is refused": _lease_ends,
    "a lease is renewed while its worker lives": _lease_is_renewed,
    "nothing of a dead worker is forgotten": _nothing_forgotten,
    "the outcome of another's claim is awaited": _outcome_is_awaited,
    "a clear ends all claims": _clear_ends_claims,
    "each claim is counted once": _counts,
    "nothing is evicted": _nothing_is_evicted,
}
