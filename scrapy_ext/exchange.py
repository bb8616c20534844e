"""The exchange with the server: one step after another, in a thread beside the reactor."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from scrapy_ext.crawl_state import Answer, dead_among
from scrapy_ext.engine import Bell, run_in_thread
from scrapy_ext.requests import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twisted.internet.defer import Deferred

    from scrapy_ext.crawl_state import Crawl
    from scrapy_ext.scheduler import Scheduler

logger = logging.getLogger("bloomlock.scrapy")

PUSHES_PER_TRIP = 256
"""They take the server some milliseconds."""
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0
"""How often a process that has nothing to do looks for requests of others."""
RENEWALS_PER_LEASE = 3
PROBE_S = 1.0
"""How often a step is repeated while the server is away."""


class Exchange:
    """Sends pages in steps of one round trip, and repeats a step until the server answers it.

    `is_idle`: the engine has nothing to do; `stays`: this process never ends by itself.
    """

    _running: Deferred[None]

    def __init__(self, crawl: Crawl, lease: float, scheduler: Scheduler) -> None:
        self.answer = Answer("running")
        self.is_idle = self.stays = self.is_over = False
        self._crawl = crawl
        self._lease = lease
        self._scheduler = scheduler
        # In order: pages to queue, pages that have ended, and calls for when all before is sent. At
        # a None the engine asked for requests, so later ones go into a later step.
        self._waiting: deque[Page | Callable[[], None] | None] = deque()
        self._calls: list[Callable[[], None]] = []
        self._step: tuple[list[Page], dict[str, Any], list[bytes]] | None = None
        self._number = 0
        self._bell = Bell()
        self._is_due = self._is_hungry = self._is_asked = False
        self._away_since: float | None = None
        self._look_s = SHORTEST_LOOK_S
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting) + (self._step is not None)

    def now(self, pushes: Sequence[Page] = ()) -> None:
        """Make a step while the spider opens; raises the errors of `Crawl.exchange`."""
        self._number += 1
        self.answer = self._crawl.exchange(pushes, {"step": self._number})

    def send(self, one: Page | Callable[[], None] | None) -> None:
        """Send a page, or make a call when all before it is sent."""
        self._waiting.append(one)
        if self._away_since is None:
            self._bell.ring()

    def want(self) -> None:
        """Ask for requests in the step of the last page sent: that is Scrapy's order."""
        if not self._is_hungry:
            self._is_hungry = True
            self._bell.ring()
        has_pushes = self._step is not None and self._step[0]
        # If no host is due, the timer makes a step when one is.
        may_get = self.answer.waiting and (self.answer.due_s is None or self.answer.is_full)
        if (self._waiting or may_get or has_pushes) and not self._is_asked:
            self._is_asked = True
            self.send(None)

    def look(self) -> None:
        """Make a step now, though no request is known to wait."""
        self._is_hungry = True
        self._make_due()

    def start(self) -> None:
        self._running = deferred_from_coro(self._run())

    def stop(self) -> None:
        self.is_over = True
        self._bell.ring()

    async def finish(self, collect: Callable[[], None]) -> None:
        """Send the rest, and what `collect` adds, as long as the server answers."""
        await maybe_deferred_to_future(self._running)
        collect()
        self._is_hungry = False
        while len(self) and await self._trip():
            pass

    async def _run(self) -> None:
        while not self.is_over:
            if self._away_since is not None:
                await self._wait(PROBE_S)
            elif not (len(self) or self._is_due):
                renew_s = self._lease / RENEWALS_PER_LEASE
                look_s = max(self._look_at - time.monotonic(), 0)
                await self._wait(min(renew_s, look_s) if self._is_hungry else renew_s)
            if (len(self) or self._is_due) and not self.is_over:
                try:
                    await self._trip()
                except Exception:
                    logger.exception("A step of the crawl was not carried out in order.")
                    await self._wait(PROBE_S)

    async def _wait(self, seconds: float) -> None:
        timer = call_later(seconds, self._make_due)
        await self._bell.wait()
        timer.cancel()

    def _make_due(self) -> None:
        self._is_due = True
        self._bell.ring()

    async def _trip(self) -> bool:
        """Make a step, or repeat the unanswered one; return whether the server answered."""
        if self._step is None:
            self._step = self._make_step()
        self._is_due = False
        try:
            answer = await run_in_thread(self._crawl.exchange, *self._step)
        # Whatever the error is, the step is kept and sent again.
        except Exception as error:  # noqa: BLE001
            self._scheduler.not_answered(error, is_first=self._away_since is None)
            self._away_since = self._away_since or time.monotonic()
            return False
        pushes, self._step = self._step[0], None
        if self._away_since is not None:
            lasted = time.monotonic() - self._away_since
            self._away_since = None
            logger.warning("The queue answers again after %.1f s.", lasted)
        self.answer = answer
        if answer.got:
            self._look_s = SHORTEST_LOOK_S
            self._is_hungry = False
        else:
            self._look_s = min(2 * self._look_s, LONGEST_LOOK_S)
        due_s = self._look_s if answer.due_s is None else answer.due_s
        self._look_at = time.monotonic() + due_s
        self._scheduler.take(pushes, answer)
        if answer.state != "gone":
            for call in self._calls:
                call()
        return True

    def _make_step(self) -> tuple[list[Page], dict[str, Any], list[bytes]]:
        pushes: list[Page] = []
        ended: list[Page] = []
        self._calls = []
        is_asked = self._is_due
        while self._waiting and len(pushes) + len(ended) < PUSHES_PER_TRIP and not is_asked:
            one = self._waiting.popleft()
            if one is None:
                is_asked, self._is_asked = True, False
            elif not isinstance(one, Page):
                self._calls.append(one)
            elif one.id:
                ended.append(one)
            else:
                pushes.append(one)
        is_empty = not (pushes or ended or self._calls or self._waiting)
        wanted, busy = self._scheduler.room() if is_asked and self._is_hungry else (0, {})
        self._number += 1
        # Only a process that is out of requests looks for dead ones.
        is_looking = self._is_hungry and self.answer.taken
        told = {
            "step": self._number,
            "done": [page.id for page in ended if page.error is None],
            "failed": [(page.id, page.error) for page in ended if page.error is not None],
            "wanted": wanted,
            "busy": busy,
            "idle": self.is_idle and is_empty and self._scheduler.is_at_rest(),
            "stays": self.stays,
            "dead": dead_among(self.answer.workers) if is_looking else [],
        }
        return pushes, told, [record for page in (*ended, *pushes) for record in page.records]
