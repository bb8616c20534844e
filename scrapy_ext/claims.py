"""Requests that are claimed while they wait or are fetched, and recorded when they are done."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from operator import or_
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro

from bloomlock import ClaimState
from bloomlock.errors import CapacityError
from scrapy_ext.answers import Verdict
from scrapy_ext.guard import GuardedFilter
from scrapy_ext.settlements import (
    ATTEMPTS,
    DONE,
    ClaimTrip,
    OpenRequest,
    Payloads,
    Settlement,
    decode_request,
    encode_request,
)
from scrapy_ext.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from scrapy import Request, Spider

    from bloomlock import BloomFilter, Claim
    from scrapy_ext.answers import Key, RoundTrip
    from scrapy_ext.settings import FilterSettings

logger = logging.getLogger("bloomlock.scrapy")

SETTLE_SECONDS, SETTLE_AT = 0.1, 64
"""Outcomes are sent when that time has passed since the first of them, or as many are there."""
SETTLE_AGAIN_SECONDS = 1.0
OPEN_PER_LEASE_SECOND = 1000
"""So that renewals, three for each lease, stay below some thousands in a second."""
TAKEN_AT_ONCE = 256


class ClaimingFilter(GuardedFilter):
    """A guarded filter that claims an item when it is checked, and records it when it is done.

    What is claimed here is in this process's hands: known to it, but to no filter. What the filter
    gets back when it lost its content is what is done.
    """

    def __init__(
        self,
        config: FilterSettings,
        connect: Callable[[], Any],
        count: Callable[[str], None],
        close: Callable[[str], None],
        spider: Spider,
    ) -> None:
        super().__init__(config, connect, count, close)
        self._spider = spider
        self._open: dict[Key, OpenRequest] = {}
        self._settled: dict[Key, OpenRequest] = {}
        # What the policy kept out although the server may have granted a claim of it.
        self._dropped: dict[Key, OpenRequest] = {}
        self._requests: WeakValueDictionary[Key, Request] = WeakValueDictionary()
        # One settlement at a time; the reactor's thread waits only where there is nothing else.
        self._sending = threading.Lock()
        self._is_due = False
        # False: no open request is owed to the filter.
        self._may_owe = False
        self._reported: set[str] = set()
        self._is_finished = False

    def _try_out(self, shared: BloomFilter) -> None:
        # Claims are scripts, which a server may forbid: nothing would ever be recorded.
        shared.drop_failed([b"no request"])

    # What is open.

    def note(self, key: Key, request: Request) -> None:
        """Say which request an item that is about to be checked stands for."""
        self._requests[key] = request

    def entry(self, key: Key) -> OpenRequest | None:
        """Return the open request of an item, None if this process has none."""
        found = self._open.get(key)
        return None if found is None or found.outcome else found

    @property
    def without_outcome(self) -> list[OpenRequest]:
        """The open requests."""
        return [one for one in self._open.values() if not one.outcome]

    def _lease(self) -> float:
        return max(self._config.lease, len(self._open) / OPEN_PER_LEASE_SECOND)

    # Checks, as of the filter that records at once.

    def _are_at_hand(self, keys: Sequence[Key]) -> list[bool]:
        seen, is_open = super()._are_at_hand(keys), self._open.__contains__
        return list(map(or_, seen, map(is_open, keys)))

    def is_seen_here(self, key: Key) -> bool:
        """Return whether an item is seen by what is known without the server; see `note_kept`."""
        return key in self._open or super().is_seen_here(key)

    def _is_at_hand(self, key: Key) -> bool:
        return key in self._open or super()._is_at_hand(key)

    def _begin(self, keys: Sequence[Key]) -> RoundTrip | None:
        asked = [key for key in dict.fromkeys(keys) if not self._is_at_hand(key)]
        if not asked or not self._breaker.may_try():
            return None
        requests = [self._requests.get(key) for key in asked]
        return ClaimTrip(
            asked,
            self._were_known(asked),
            self._clears,
            payloads=Payloads(requests, self._spider),
            lease=self._lease(),
        )

    def _read(self, trip: RoundTrip) -> dict[Key, Verdict]:
        cleared = trip.clears != self._clears
        found: dict[Key, Verdict] = {}
        claims = trip.claims if isinstance(trip, ClaimTrip) else []
        for claim, was_known in zip(claims, trip.were_known, strict=False):
            key = claim.item
            found[key] = Verdict.SEEN
            if claim.state is ClaimState.SEEN and not cleared:
                self._known.add(key)
            if claim.state is not ClaimState.NEW:
                self._count(f"claims/{claim.state}")
            elif key in self._open:
                # It was let through while this was asked.
                self._open[key].claim, self._open[key].is_owed = claim, False
            else:
                self._hold(claim)
                found[key] = Verdict.NEW
                if was_known and not cleared:
                    # It is done; the filter lost it.
                    self._refill_due = True
                    self.settle([key], DONE)
                    found[key] = Verdict.SEEN
        if isinstance(trip.error, CapacityError):
            seen = (key for key, new in zip(trip.keys, trip.answers, strict=False) if new is False)
            found.update(dict.fromkeys(seen, Verdict.SEEN))
        return found

    def _verdicts(
        self,
        keys: Sequence[Key],
        trips: Sequence[RoundTrip],
        undroppable: Collection[int],
        unrecorded: Collection[int],
    ) -> list[Verdict]:
        verdicts = super()._verdicts(keys, trips, undroppable, unrecorded)
        lost = [trip for trip in trips if isinstance(trip, ClaimTrip) and trip.has_no_reply]
        asked = {key for trip in lost for key in trip.keys}
        for key, verdict in zip(keys, verdicts, strict=True):
            if verdict is Verdict.DROPPED and key in asked:
                self._dropped[key] = self._open_request(key)
                self._settle_later(SETTLE_AGAIN_SECONDS)
        return verdicts

    def _open_request(self, key: Key) -> OpenRequest:
        """Return what is known of a request that the server may have no claim of."""
        request = self._requests.get(key)
        payload = None if request is None else encode_request(request, self._spider)
        return OpenRequest(key, "" if request is None else request.url, payload)

    def _hold(self, claim: Claim) -> None:
        """Keep a claim that is this process's now."""
        key = claim.item
        request = self._requests.get(key)
        if claim.payload is None and "payload" not in self._reported:
            self._reported.add("payload")
            logger.warning(
                "%s cannot be serialised, nor may others be: they are lost if this process dies "
                "(only the first is logged).",
                request,
            )
        self._count("claims/new" if claim.payload is not None else "claims/unserializable")
        url = "" if request is None else request.url
        self._open[key] = OpenRequest(key, url, claim.payload, claim)

    def decide(
        self, key: Key, *, owed: bool = True, droppable: bool = True, recorded: bool = True
    ) -> Verdict:
        """Decide about an item that nothing is known of, by the policy; see GuardedFilter."""
        if key in self._open:
            return Verdict.SEEN
        if not (owed and recorded) or (droppable and self._config.on_outage == "drop"):
            return super().decide(key, owed=False, droppable=droppable, recorded=recorded)
        if key in self._known:
            return Verdict.SEEN
        self._open[key] = self._open_request(key)
        self._open[key].is_owed = True
        self._may_owe = True
        self._settle_later(SETTLE_AGAIN_SECONDS)
        return Verdict.ALLOWED

    def _follow(self, shared: BloomFilter) -> None:
        super()._follow(shared)
        # The claims went with the generation; their requests are here all the same.
        for one in self._open.values():
            one.claim, one.is_owed = None, True
        if self._open:
            self._may_owe = True
            self._settle_later(SETTLE_SECONDS)

    # Outcomes.

    def settle(self, keys: Iterable[Key], outcome: str) -> None:
        """Note how requests ended: `DONE`, or why they failed. It is sent soon, with others."""
        for key in keys:
            one = self._open.get(key)
            if one is not None and not one.outcome:
                one.outcome = outcome
                self._settled[key] = one
        if len(self._settled) >= SETTLE_AT:
            self._settle_later(0.0)
        elif self._settled:
            self._settle_later(SETTLE_SECONDS)

    def _settle_later(self, seconds: float) -> None:
        if not self._is_due and not self._is_finished:
            self._is_due = True
            call_later(seconds, lambda: deferred_from_coro(self._settle()))

    async def _settle(self) -> None:
        """Send the outcomes there are, in a thread."""
        if self._is_finished:
            return
        if self._breaker.may_try():
            settlement = self._next_settlement()
            await run_in_thread(lambda: self._send(settlement))
            if self._is_finished:
                return
            self._take(settlement)
            if self._may_refill():
                self._refilled(*await run_in_thread(partial(self._refill, self._owed())))
        self._is_due = False
        if self._owed_requests() or self._dropped or self._breaker.broken:
            self._settle_later(SETTLE_AGAIN_SECONDS)
        elif self._settled:
            self._settle_later(SETTLE_SECONDS)

    def settle_now(self, *, at_end: bool = False) -> bool:
        """Send the outcomes there are, and return whether all are sent; the caller waits for it.

        `at_end`: the server is asked in any case, as it is not asked again.
        """
        if self._settled or self._owed_requests() or self._dropped:
            if not (at_end or self._breaker.may_try()):
                return False
            settlement = self._next_settlement()
            self._send(settlement)
            self._take(settlement)
        if self._may_refill():
            self._refilled(*self._refill(self._owed()))
        return not self._settled

    def _owed_requests(self) -> list[OpenRequest]:
        """Return the open requests that the filter has no claim of, and is to have one."""
        if not self._may_owe:
            return []
        owed = [one for one in self._open.values() if one.is_owed]
        self._may_owe = bool(owed)
        return owed

    def _dropped_requests(self) -> list[OpenRequest]:
        """Return what was dropped though a claim may have been granted, and was not met since."""
        for key in self._dropped.keys() & self._open.keys():
            del self._dropped[key]
        return [*self._dropped.values()]

    def _next_settlement(self) -> Settlement:
        return Settlement(
            [*self._settled.values()],
            self._owed_requests(),
            self._dropped_requests(),
            self._lease(),
        )

    def _send(self, settlement: Settlement) -> None:
        with self._sending:
            settlement.make(self.shared)

    def _take(self, settlement: Settlement) -> None:
        """Take the answers to a settlement. What two of them sent is taken once."""
        if settlement.error is None:
            # First: what this process claimed in another generation is owed to this one.
            self._note_answer()
        is_current = settlement.claimed_in == self._generation
        for one, claim in zip(settlement.owed, settlement.claims, strict=False):
            if one.is_owed and is_current:
                one.is_owed = False
                one.claim = claim or None
        for key, kept in settlement.kept.items():
            self._forget(key, kept=kept)
        if settlement.error is not None:
            self._failed(settlement.error, settlement.cost)
            return
        for one in settlement.dropped:
            self._dropped.pop(one.key, None)
        for one in settlement.entries:
            # It failed here, but another process has it, which says how it ends.
            if one.claim is None and not one.is_owed:
                self._forget(one.key, kept=False)

    def _forget(self, key: Key, *, kept: bool) -> None:
        """Take a request whose outcome was sent from the open ones."""
        ended = self._settled.pop(key, None)
        if ended is None:
            return
        if self._open.get(key) is ended:
            del self._open[key]
        is_done = ended.outcome == DONE
        if not is_done:
            # It is tried again by the next start, not for each link to it.
            self._unrecorded.add(key)
        else:
            self._known.add(key)
            self._note_added([key])
        what = "lost" if not kept else "committed" if is_done else "failed"
        self._count(f"claims/{what}")

    # What other processes left.

    def take_over(self, *, with_failed: bool = False) -> list[Request] | None:
        """Claim requests of processes that died or stopped, at most `TAKEN_AT_ONCE`.

        Args:
            with_failed: Whether those that failed are tried again, all of them.

        Returns:
            The requests, which are to be scheduled; None if the server cannot be asked.

        Cost: two round trips, one for each shard more without such requests; the caller waits.
        """
        if not self._breaker.may_try():
            return None
        started = time.monotonic()
        claims: list[Claim] = []
        try:
            if with_failed and (failed := self.shared.failed()):
                tried = self.shared.claim_many(
                    [one.item for one in failed],
                    self._lease(),
                    payloads=[one.payload for one in failed],
                    max_attempts=ATTEMPTS,
                )
                claims += [claim for claim in tried if claim]
            claims += self.shared.claim_expired(TAKEN_AT_ONCE, self._lease(), max_attempts=ATTEMPTS)
        # BLE001: what was claimed is worked on; the rest is asked for again.
        except Exception as error:  # noqa: BLE001
            self._failed(error, time.monotonic() - started)
            if not claims:
                return None
        else:
            self._note_answer()
        return [request for claim in claims if (request := self._adopt(claim)) is not None]

    def _adopt(self, claim: Claim) -> Request | None:
        """Make the request of a claim that was taken over; None if there is none to schedule."""
        own = self._open.get(claim.item)
        if own is not None:
            own.claim, own.is_owed = claim, False  # its lease had run out
            return None
        request = decode_request(claim.payload, self._spider)
        url = "" if request is None else request.url
        if self._were_known([claim.item])[0]:
            # It is done; the server has gone back to an earlier moment.
            self._refill_due = True
            self._open[claim.item] = OpenRequest(claim.item, url, claim.payload, claim)
            self.settle([claim.item], DONE)
            return None
        self._open[claim.item] = OpenRequest(claim.item, url, claim.payload, claim)
        self._count("claims/taken_over" if request is not None else "claims/unusable")
        if request is None:
            self.settle([claim.item], "the request cannot be made again by this spider")
        return request

    def others_open(self) -> int | None:
        """Return how many claims are open, in all processes; None if the server cannot be asked."""
        if not self._breaker.may_try():
            return None
        started = time.monotonic()
        try:
            num_open = self.shared.count_claims().open
        except Exception as error:  # noqa: BLE001 - whatever it is, the crawl goes on
            self._failed(error, time.monotonic() - started)
            return None
        self._note_answer()
        return num_open

    # The end.

    def finish(self, last: Callable[[BloomFilter], None]) -> None:
        """Send all outcomes and hand over what is open, then as GuardedFilter. Never raises."""
        if self._filter is not None and not self._is_finished:
            self._is_finished = True
            # What is done and not recorded is handed over too, and fetched again.
            self.settle_now(at_end=True)
            try:
                self._hand_over()
            except Exception as error:  # noqa: BLE001 - what is open expires, and is taken over
                logger.warning("Open requests are left to expire: %s", error)
        super().finish(last)

    def _hand_over(self) -> None:
        """Give back what this process did not get to, so that the next start has it at once."""
        claims = [one.claim for one in self._open.values() if one.claim is not None]
        if claims:
            self.shared.abandon_many(claims, offer=True)
            for _ in claims:
                self._count("claims/handed_over")
            logger.info("%d requests are handed over to the next process.", len(claims))
        self._open.clear()
