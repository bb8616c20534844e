"""What is sent for requests under a claim: the claims, with the requests, and how these ended."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from scrapy import Request
from scrapy.utils.request import request_from_dict

from bloomlock.errors import CapacityError, OutcomeUnknownError
from scrapy_ext.answers import RoundTrip

if TYPE_CHECKING:
    from scrapy import Spider

    from bloomlock import BloomFilter, Claim
    from scrapy_ext.answers import Key

_PROTOCOL = 4
_DEFAULTS = Request("data:,").to_dict()

ATTEMPTS = 1_000_000
"""Under a limit, what failed is kept with its error for the next start. None reaches this one."""
DONE = "done"


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that waits or is fetched in this process.

    Attributes:
        key: Its fingerprint.
        url: Its address.
        payload: What another process can make it of.
        claim: Its claim; None: it is owed one, or another process has it.
        is_owed: Whether it is to be claimed when the server answers.
        is_fetched: Whether it came out of the queue (noted with a JOBDIR).
        is_started: Whether a downloader middleware has met it.
        has_response: Whether its response is there.
        outcome: `DONE`, or why it failed; empty while it is open.
    """

    key: Key
    url: str
    payload: str | bytes | None
    claim: Claim | None = None
    is_owed: bool = False
    is_fetched: bool = False
    is_started: bool = False
    has_response: bool = False
    outcome: str = ""


@dataclass(slots=True)
class ClaimTrip(RoundTrip):
    """Claims different items. It may be made in any thread: it changes nothing else.

    Attributes:
        payloads: One for each item.
        lease: Seconds.
        claims: The answers.
    """

    payloads: Sequence[bytes | None] = ()
    lease: float = 60.0
    claims: list[Claim] = field(default_factory=list)

    @property
    def has_no_reply(self) -> bool:
        """Whether claims may have been granted of which no reply came."""
        return self.error is not None and not isinstance(self.error, CapacityError)

    def make(self, shared: BloomFilter) -> None:
        """Claim the items. Never raises."""
        started = time.monotonic()
        try:
            self.claims = shared.claim_many(
                self.keys, self.lease, payloads=self.payloads, max_attempts=ATTEMPTS
            )
        # BLE001: a raise from here loses every link of the page and can hang the crawl.
        except Exception as error:  # noqa: BLE001
            self.error = error
            if isinstance(error, CapacityError):
                self._find_seen(shared)
        self.cost = time.monotonic() - started


@dataclass(slots=True)
class Settlement:
    """Sends outcomes. It may be made in any thread: it changes nothing else.

    Attributes:
        entries: Requests with an outcome.
        owed: Requests that are owed a claim.
        dropped: Requests that were dropped although claims of them may have been granted.
        lease: Seconds.
        claims: What the claims of `owed` were answered.
        granted: Those of them that are this process's, by request.
        claimed_in: The generation of the filter that answered.
        kept: For each of `entries` that was sent whether its claim was kept; False: it was lost,
            and what is done is recorded without it.
        error: Why not all is sent. It may be sent again then.
        cost: Seconds it took.
    """

    entries: list[OpenRequest]
    owed: list[OpenRequest]
    dropped: list[OpenRequest]
    lease: float
    claims: list[Claim] = field(default_factory=list)
    granted: dict[Key, Claim] = field(default_factory=dict)
    claimed_in: int = 0
    kept: dict[Key, bool] = field(default_factory=dict)
    error: Exception | None = None
    cost: float = 0.0

    def make(self, shared: BloomFilter) -> None:
        """Claim what is owed, then record what is done and give back what failed. Never raises."""
        started = time.monotonic()
        try:
            # First: what a page led to is safe before the page is recorded.
            self._claim_owed(shared)
            self._record(shared)
            self._give_back(shared)
            self._offer(shared)
        # BLE001: whatever it is, the outcomes are sent again.
        except Exception as error:  # noqa: BLE001
            self.error = error
        self.cost = time.monotonic() - started

    def _claim_owed(self, shared: BloomFilter) -> None:
        if self.owed:
            self.claims = self._claim(shared, self.owed)
            self.claimed_in = shared.generation
            answered = zip(self.owed, self.claims, strict=True)
            self.granted = {one.key: claim for one, claim in answered if claim}

    def _claim(self, shared: BloomFilter, requests: list[OpenRequest]) -> list[Claim]:
        return shared.claim_many(
            [one.key for one in requests],
            self.lease,
            payloads=[one.payload for one in requests],
            max_attempts=ATTEMPTS,
        )

    def _record(self, shared: BloomFilter) -> None:
        done = [one for one in self.entries if one.outcome == DONE]
        # What was owed may have been claimed before, by a claim whose reply was lost. That one has
        # to end: it would keep the spider open for its lease.
        claimed = self.granted | {one.key: one.claim for one in done if one.claim is not None}
        claimed = {one.key: claimed[one.key] for one in done if one.key in claimed}
        if unclaimed := [one.key for one in done if one.key not in claimed]:
            shared.update(unclaimed)
            self.kept.update(dict.fromkeys(unclaimed, True))
        if claimed:
            try:
                kept: Sequence[bool | None] = shared.commit_many(claimed.values())
            except OutcomeUnknownError as error:
                # A commit was sent twice, and the claim was over by then.
                kept = error.results
            answers = {key: was_kept is True for key, was_kept in zip(claimed, kept, strict=True)}
            # The claim went with data of the server, or another process has it: it is done all the
            # same. If this fails, all of it is sent again.
            if lost := [key for key, was_kept in answers.items() if not was_kept]:
                shared.update(lost)
            self.kept.update(answers)

    def _give_back(self, shared: BloomFilter) -> None:
        """Give back what failed, with the error; the server lists it then.

        What was taken over is not offered again: it would keep the crawl open, to fail once in
        each lease.
        """
        given: dict[str, list[OpenRequest]] = {}
        for one in self.entries:
            if one.outcome != DONE and one.claim is not None:
                given.setdefault(one.outcome, []).append(one)
        for error, some in given.items():
            shared.abandon_many(
                [one.claim for one in some if one.claim is not None], error, offer=False
            )
            self.kept.update(dict.fromkeys((one.key for one in some), True))

    def _offer(self, shared: BloomFilter) -> None:
        """Offer what was dropped to all processes, this one too.

        A claim whose reply was lost would keep the spider open for its lease.
        """
        if self.dropped:
            claims = self._claim(shared, self.dropped)
            shared.abandon_many([claim for claim in claims if claim], offer=True)


def encode_request(request: Request, spider: Spider) -> bytes | None:
    """Return a request as bytes; None if it cannot be serialised.

    Its callback and errback must be methods of the spider, and what it carries must be picklable.
    """
    try:
        known = _known_of(request, spider)
        # Half of the size: most requests have little but a URL. Another class may have defaults of
        # its own.
        if type(request) is Request:
            known = {
                key: value
                for key, value in known.items()
                if key == "url" or value != _DEFAULTS[key]
            }
        return pickle.dumps(known, protocol=_PROTOCOL)
    # A request may carry anything, and what that raises is its own affair.
    except Exception:  # noqa: BLE001
        return None


def decode_request(payload: str | bytes | None, spider: Spider) -> Request | None:
    """Return the request that `encode_request` was given; None if it cannot be made again."""
    if not isinstance(payload, bytes):
        return None
    try:
        return request_from_dict(pickle.loads(payload), spider=spider)  # noqa: S301 - as Scrapy
    # A method that is gone, a class that changed: whatever it is, the crawl goes on.
    except Exception:  # noqa: BLE001
        return None


def _known_of(request: Request, spider: Spider) -> dict[str, Any]:
    """Return what `to_dict` returns, in a tenth of its time where a callback is given.

    `to_dict` compares a callback with all methods of the spider.
    """
    if type(request).to_dict is not Request.to_dict:
        return request.to_dict(spider=spider)
    names = {}
    for role in ("callback", "errback"):
        method = getattr(request, role)
        name = _name_of(method, spider)
        if callable(method) and name is None:
            return request.to_dict(spider=spider)
        names[role] = name
    known: dict[str, Any] = {key: getattr(request, key) for key in request.attributes}
    known.update(names, headers=dict(request.headers))
    if type(request) is not Request:
        known["_class"] = f"{type(request).__module__}.{type(request).__name__}"
    return known


def _name_of(method: Callable[..., Any] | None, spider: Spider) -> str | None:
    """Return the name by which a spider has a method; None if it has it by no plain one."""
    function = getattr(method, "__func__", None)
    name = getattr(function, "__name__", "")
    found = getattr(spider, name, None) if name else None
    return name if found is not None and getattr(found, "__func__", None) is function else None


class Payloads(Sequence[bytes | None]):
    """The payloads of requests, each made when it is read: most are of known items, and are not."""

    def __init__(self, requests: Sequence[Request | None], spider: Spider) -> None:
        self._requests = requests
        self._spider = spider

    def __len__(self) -> int:
        """Return how many requests there are."""
        return len(self._requests)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes | None]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes | None] | None:
        """Return the payload of a request."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        request = self._requests[index]
        if request is None:
            return None
        return encode_request(request, self._spider)
