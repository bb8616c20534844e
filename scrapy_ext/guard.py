"""The filter of a crawl that has no shared queue: it always answers, with or without its server."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro

from bloomlock import MemoryBloomFilter
from bloomlock.errors import PartialResultError
from scrapy_ext.engine import run_in_thread
from scrapy_ext.fingerprints import RecentFingerprints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy.utils.asyncio import CallLaterResult

    from bloomlock import BloomFilter
    from scrapy_ext.engine import FilterStats

logger = logging.getLogger("bloomlock.scrapy")

PROBE_S = 1.0
"""While the server is away it is tried this often."""
MIRROR_BYTES = 2**28
MIRRORED = ("atomic", "lua")
"""Strategies whose filters take another filter's bits."""


class Guard:
    """Records keys in the shared filter and says which are new. Its checks never raise.

    What this process was answered, it knows. While the server is away, a key that it does not
    know is let through, and given to the filter later. A filter that comes back without its
    content, or with that of an earlier moment, is given all that this process knows. `close` closes
    the spider where that is the policy. All is called in the reactor's thread.
    """

    def __init__(
        self, shared: BloomFilter, stats: FilterStats, close: Callable[[str], None] | None
    ) -> None:
        self.shared = shared
        self._count = stats.count
        self._close = close
        self._generation = shared.generation
        # A mirror has a part of the bits of the shared filter: what looks known here by chance
        # looks known there.
        self._known: MemoryBloomFilter | RecentFingerprints = RecentFingerprints()
        if shared.strategy in MIRRORED and shared.num_bits // 8 <= MIRROR_BYTES:
            self._known = MemoryBloomFilter.like(shared)
        # What was let through and the filter was not given yet.
        self._owed = RecentFingerprints()
        self._away_since: float | None = None
        # The filter may lack what it had. Until it was given that, its "new" is not believed.
        self._may_lack = False
        self._is_finished = False
        self._timer: CallLaterResult | None = None

    def check(self, key: bytes) -> bool:
        """Record a key and return whether it was new; the reactor waits for the round trip."""
        were_known = [key in self._known]
        started = time.monotonic()
        answers, error = self._ask([key])
        self._count("bloomlock/waits")
        self._count("bloomlock/wait_seconds", time.monotonic() - started)
        return self._settle([key], were_known, answers, error)[0]

    async def check_many(self, keys: Sequence[bytes]) -> list[bool]:
        """Record keys and return for each whether it was new; of equal ones the first is."""
        # Read before: what is found seen during the round trip may be what it has recorded.
        were_known = [key in self._known for key in keys]
        answers: list[bool | None] = [None] * len(keys)
        error = None
        if keys and self._away_since is None:
            answers, error = await run_in_thread(partial(self._ask, keys))
            self._count("bloomlock/batches")
        return self._settle(keys, were_known, answers, error)

    def finish(self) -> None:
        """Give the filter what is owed, if the server answers, and try no more. May raise."""
        self._is_finished = True
        if self._timer is not None:
            self._timer.cancel()
        if self._may_lack:
            self._probe()
            self._follow()
            self.shared.update(self._lacking([*self._owed]))

    def _ask(self, keys: Sequence[bytes]) -> tuple[list[bool | None], Exception | None]:
        answers: list[bool | None] = []
        error: Exception | None = None
        try:
            if self._away_since is None:
                answers += self.shared.add_many(keys)
        # A raise from here loses every link of the page.
        except Exception as raised:  # noqa: BLE001
            error = raised
            answers += raised.results if isinstance(raised, PartialResultError) else ()
        return answers + [None] * (len(keys) - len(answers)), error

    def _settle(
        self,
        keys: Sequence[bytes],
        were_known: Sequence[bool],
        answers: Sequence[bool | None],
        error: Exception | None,
    ) -> list[bool]:
        self._note(error)
        are_new = []
        passed: set[bytes] = set()
        for key, was_known, answer in zip(keys, were_known, answers, strict=True):
            is_owed = key in self._owed if self.shared.has_discards else was_known
            if answer is None:
                is_new = not was_known
            else:
                is_new = answer and not (is_owed and self._may_lack)
            # Of equal ones the first is new.
            is_new &= key not in passed
            if is_new:
                passed.add(key)
                if answer is None:
                    self._count("bloomlock/allowed")
                    self._owed.add(key)
            if is_new or answer is not None:
                self._known.add(key)
            are_new.append(is_new)
        return are_new

    def _note(self, error: Exception | None) -> None:
        if self._away_since is None:
            self._count("bloomlock/trips")
            if error is None:
                self._follow()
        if error is None:
            return
        self._count("bloomlock/errors")
        self._may_lack = True
        self._recover_in(PROBE_S)
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._count("bloomlock/outages")
            logger.error(
                "The filter %r cannot be asked (%s: %s); until then requests that this process has "
                "not seen are fetched.",
                self.shared.name,
                type(error).__name__,
                error,
            )
            if self._close is not None:
                self._close("bloomlock_outage")

    def _follow(self) -> None:
        # Another generation is one that was emptied on purpose, or made for a lost one.
        if self.shared.generation == self._generation:
            return
        self._generation = self.shared.generation
        if self.shared.cleared:
            self._known.clear()
            self._owed.clear()
        else:
            self._may_lack = True
            self._recover_in(0.0)

    def _recover_in(self, seconds: float) -> None:
        if self._timer is None and not self._is_finished:
            self._timer = call_later(seconds, lambda: deferred_from_coro(self._recover()))

    async def _recover(self) -> None:
        try:
            await run_in_thread(self._probe)
            # The answer tells whether the filter was cleared on purpose.
            self._follow()
            owed = [*self._owed]
            await run_in_thread(partial(self.shared.update, self._lacking(owed)))
        except Exception as error:  # noqa: BLE001 - as in `_ask`
            self._timer = None
            self._note(error)
            return
        self._timer = None
        self._owed.remove(owed)
        # Something more may have been let through.
        self._may_lack = bool(self._owed)
        self._count("bloomlock/refills")
        if self._away_since is not None:
            lasted = time.monotonic() - self._away_since
            self._away_since = None
            logger.warning("The filter %r answers again after %.1f s.", self.shared.name, lasted)
        if self._may_lack:
            self._recover_in(0.0)

    def _probe(self) -> None:
        self.shared.exists(b"bloomlock probe")

    def _lacking(self, owed: list[bytes]) -> MemoryBloomFilter | list[bytes]:
        # What was discarded shall not come back.
        if self.shared.has_discards:
            return owed
        return [*self._known] if isinstance(self._known, RecentFingerprints) else self._known
