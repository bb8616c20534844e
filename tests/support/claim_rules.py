"""The rules of claims: what becomes of an item at each call of a worker.

They say what docs/reference/guarantees.md promises, and nothing of how it is stored;
`claim_model.py` holds bloomlock to them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DAY = 86_400
"""Seconds for which it is remembered that a claim was taken over."""
LEASE_OVER = "its lease ran out before the work was done"
NEW, SEEN, BUSY, FAILED = "new", "seen", "busy", "failed"
NEVER, AFTER_LEASE, AT_ONCE = "never", "after the lease", "at once"
"""When an item that is given back is offered by `expired`."""


class Open(NamedTuple):
    """A claim that was not ended; `token` is None if the item was given back and is offered."""

    token: int | None
    attempts: int
    limit: int
    payload: Any


class Failure(NamedTuple):
    """What is known of an item that failed; `token` is of a claim that may yet be committed."""

    attempts: int
    limit: int
    error: str
    payload: Any
    token: int | None = None

    @property
    def is_final(self) -> bool:
        return 0 < self.limit <= self.attempts


class Answer(NamedTuple):
    """The answer to a claim; `payload` is that of the claim there is."""

    state: str
    attempts: int = 0
    payload: Any = None


@dataclass
class Rules:
    """The items of one filter.

    Attributes:
        generation: How often the filter was cleared.
        done: When items were committed or added last.
        dead: Items that were discarded since.
        open, ends: Claims that were not ended, and when their leases end.
        lost: Tokens of claims that others took over, and when.
        counts: How often claims were made and ended.
    """

    generation: int = 0
    done: dict[Any, float] = field(default_factory=dict)
    dead: set[Any] = field(default_factory=set)
    open: dict[Any, Open] = field(default_factory=dict)
    ends: dict[Any, float] = field(default_factory=dict)
    failed: dict[Any, Failure] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def over(self, now: float) -> list[Any]:
        """Return the items whose leases are over."""
        return [item for item, end in self.ends.items() if end <= now]

    def claim(
        self,
        now: float,
        item: Any,
        token: int,
        lease: float,
        payload: Any = None,
        limit: int | None = None,
        *,
        only_expired: bool = False,
    ) -> Answer:
        """Claim an item by a token: a new one, or that of a claim of its worker without answer."""
        found = self.open.get(item)
        is_over = found is not None and self.ends[item] <= now
        if item in self.done:
            if found is not None and is_over:
                # Else it could be committed after a discard and another worker's commit.
                self._take_over(now, found.token)
                self._finish(item, "expired")
            return Answer(SEEN)
        if found is not None and token == found.token:
            self.ends[item] = max(self.ends[item], now + lease)
            if not only_expired:
                self.open[item] = found._replace(payload=payload)
            return Answer(NEW, found.attempts, self.open[item].payload)
        if found is not None and found.token is not None and not is_over:
            return Answer(BUSY, payload=found.payload)
        failure = self.failed.get(item)
        attempts = max(found.attempts if found else 0, failure.attempts if failure else 0)
        known = found or failure
        limit = limit or (known.limit if known else 0)
        if 0 < limit <= attempts:
            if found is not None:
                # No other worker has it, so its worker may still commit it.
                error = LEASE_OVER if found.token is not None or not failure else failure.error
                self.failed[item] = Failure(attempts, limit, error, found.payload, found.token)
                self._finish(item, "expired")
            return Answer(FAILED, attempts)
        if found is not None and found.token is not None:
            self._take_over(now, found.token)
            self.counts["expired"] += 1
        if failure is not None:
            self._take_over(now, failure.token)
            self.failed[item] = failure._replace(token=None)
        self.lost.pop(token, None)
        payload = found.payload if found and only_expired else payload
        self.open[item] = Open(token, attempts + 1, limit, payload)
        self.ends[item] = now + lease
        self.counts["claimed"] += 1
        return Answer(NEW, attempts + 1, payload)

    def commit(self, now: float, generation: int, item: Any, token: int) -> bool:
        """Mark an item as done; False: another worker claimed it since, or all was cleared.

        Or the claim is over, so this is a repetition or comes late, and the item was discarded.
        """
        found, failure = self.open.get(item), self.failed.get(item)
        if generation != self.generation or token in self.lost:
            return False
        if found is not None and found.token != token:
            return False
        is_own = found is not None or (failure is not None and failure.token == token)
        if item in self.dead and not is_own:
            return False
        self.done[item] = now
        self.dead.discard(item)
        self.failed.pop(item, None)
        if found is not None:
            self._finish(item, "committed")
        return True

    def add(self, now: float, item: Any) -> bool:
        """Mark an item as done; True if it is new."""
        is_new = item not in self.done
        self.done.setdefault(item, now)
        self.dead.discard(item)
        return is_new

    def discard(self, item: Any) -> bool:
        """Discard an item; True if it was there."""
        was_there = self.done.pop(item, None) is not None
        if was_there:
            self.dead.add(item)
        return was_there

    def abandon(
        self, now: float, generation: int, item: Any, token: int, error: str | None, offered: str
    ) -> None:
        """Give an item back; without an error the attempt does not count."""
        found = self.open.get(item)
        if generation != self.generation or found is None or found.token != token:
            return
        # One that was retried since has no attempts.
        attempts = found.attempts if error is not None else max(0, found.attempts - 1)
        if error is not None and found.limit:
            self.failed[item] = Failure(attempts, found.limit, error, found.payload)
        counter = "abandoned" if error is None else "failed"
        if offered == NEVER or 0 < found.limit <= attempts:
            self._finish(item, counter)
            return
        self.open[item] = found._replace(token=None, attempts=attempts)
        self.ends[item] = now if offered == AT_ONCE else self.ends[item]
        self.counts[counter] += 1

    def extend(self, now: float, generation: int, item: Any, token: int, lease: float) -> bool:
        """Let a lease end no earlier than that; False: the claim is over."""
        found = self.open.get(item)
        if generation != self.generation or found is None or found.token != token:
            return False
        self.ends[item] = max(self.ends[item], now + lease)
        return True

    def retry(self, now: float, item: Any) -> bool:
        """Offer an item that failed, or whose lease is over; False: it did not fail."""
        found, failure = self.open.get(item), self.failed.get(item)
        if self._is_live(now, item):
            return True
        if found is not None:
            self.open[item] = found._replace(attempts=0)
        elif failure is not None:
            self.open[item] = Open(None, 0, failure.limit, failure.payload)
        else:
            return False
        self._forget_failure(now, item)
        self.ends[item] = now
        return True

    def drop(self, now: float, item: Any) -> bool:
        """Forget an item that failed, or whose lease is over; False: there is nothing to forget."""
        if self._is_live(now, item):
            return False
        found, failure = self.open.get(item), self.failed.get(item)
        self._forget_failure(now, item)
        if found is not None:
            self._take_over(now, found.token)
            self._finish(item, "expired")
        return found is not None or failure is not None

    def clear(self, generation: int) -> None:
        """Forget everything."""
        self.generation = generation
        self.dead.clear()
        for known in (self.done, self.open, self.ends, self.failed, self.lost, self.counts):
            known.clear()

    def _is_live(self, now: float, item: Any) -> bool:
        found = self.open.get(item)
        return found is not None and found.token is not None and self.ends[item] > now

    def _forget_failure(self, now: float, item: Any) -> None:
        failure = self.failed.pop(item, None)
        if failure is not None:
            self._take_over(now, failure.token)

    def _take_over(self, now: float, token: int | None) -> None:
        if token is not None:
            self.lost = {one: at for one, at in self.lost.items() if at > now - DAY}
            self.lost[token] = now

    def _finish(self, item: Any, counter: str) -> None:
        """End a claim; an item that was given back was counted then."""
        if self.open.pop(item).token is not None:
            self.counts[counter] += 1
        del self.ends[item]
