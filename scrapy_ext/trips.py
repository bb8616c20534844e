"""Round trips to the queue, one after the other, beside the reactor."""

from __future__ import annotations

import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from scrapy_ext.pages import OpenPage
from scrapy_ext.queue import Answer, Push, Step, dead_among
from scrapy_ext.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.utils.asyncio import CallLaterResult
    from twisted.internet.defer import Deferred

    from scrapy_ext.crawl_state import Crawl

logger = logging.getLogger("bloomlock.scrapy")

PUSHES_PER_TRIP = 256
"""Some milliseconds of the server's time."""
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0
"""How often a process that has nothing to do looks for requests of others."""
RENEWALS_PER_LEASE = 3
PROBE_S = 1.0
"""How often a step is repeated while the server is away."""


class Owner(Protocol):
    """Whose trips they are: the scheduler."""

    def room(self) -> tuple[int, dict[str, int]]:
        """Return how many requests the engine can begin, and how many more each busy host."""

    def is_at_rest(self) -> bool:
        """Return whether nothing is at hand, and nothing was for long enough."""

    def take(self, step: Step, answer: Answer) -> None:
        """Take the answer to a step."""

    def not_answered(self, error: Exception, *, is_first: bool) -> None:
        """Note that a step was not answered; it is sent again."""


class Trips:
    """Sends what waits as steps, each in one round trip, and each until it is answered.

    Args:
        crawl: The crawl.
        lease: Seconds.
        owner: Whose they are.
    """

    def __init__(self, crawl: Crawl, lease: float, owner: Owner) -> None:
        self.answer = Answer("running")
        """The last one."""
        self.is_idle = False
        """Whether the engine has said that it has nothing to do."""
        self.stays = False
        self._crawl = crawl
        self._lease = lease
        self._owner = owner
        # In order: requests, pages that are done, and what is called when all before is sent. Where
        # a None stands the engine has asked for requests; what comes later is sent later.
        self._waiting: deque[Push | OpenPage | Callable[[], None] | None] = deque()
        self._calls: list[Callable[[], None]] = []
        self._step: Step | None = None
        self._number = 0
        self._running: Deferred[None] | None = None
        self._timer: CallLaterResult | None = None
        self._is_running = self._is_soon = self._is_due = False
        self._is_hungry = self._is_asked = self._is_over = False
        self._away_since: float | None = None
        self._look_s = SHORTEST_LOOK_S
        self._dead: list[str] = []

    def __len__(self) -> int:
        return len(self._waiting) + (self._step is not None)

    def exchange(self, **what: Any) -> None:
        """Make a step now, before the reactor does anything; errors are those of the crawl."""
        self.answer = self._crawl.exchange(self._next_step(**what))

    def send(self, one: Push | OpenPage | Callable[[], None]) -> None:
        """Send something, or call it when all before is sent."""
        self._waiting.append(one)
        self._schedule()

    def want(self) -> None:
        """Ask for requests, after all that has been sent until now, as Scrapy's order is."""
        self._is_hungry = True
        has_pushes = self._step is not None and self._step.pushes
        # If all hosts that have requests are not due, the timer asks when one is.
        may_get = self.answer.waiting and (self.answer.due_s is None or self.answer.is_full)
        if (self._waiting or may_get or has_pushes) and not self._is_asked:
            self._is_asked = True
            self._waiting.append(None)
            self._schedule()

    def look(self) -> None:
        """Ask for requests also if none are known of, and say how this process is."""
        self._is_hungry = self._is_due = True
        self._schedule()

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def finish(self, collect: Callable[[], None]) -> None:
        """Send what waits and what `collect` adds, as long as the server answers."""
        if self._is_running and self._running is not None:
            await maybe_deferred_to_future(self._running)
        collect()
        self._is_hungry = False
        while len(self) and await self._trip():
            pass

    def _schedule(self) -> None:
        """Make a trip as soon as the reactor has done what it is at."""
        if not (self._is_running or self._is_soon or self._away_since is not None):
            self._arm(0.0)

    def _arm(self, seconds: float | None = None) -> None:
        """Look again after some seconds; None: when lease, a host or an empty hand says so."""
        if self._is_over:
            return
        if seconds is None:
            seconds = self._lease / RENEWALS_PER_LEASE
            if self._is_hungry:
                due_s = self.answer.due_s
                seconds = min(seconds, self._look_s if due_s is None else due_s)
        if self._timer is not None:
            self._timer.cancel()
        self._is_soon = seconds == 0
        self._timer = call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._is_due |= not self._is_soon
        self._is_soon = False
        if not self._is_running:
            self._is_running = True
            self._running = deferred_from_coro(self._run())

    async def _run(self) -> None:
        pause: float | None = None
        try:
            while (len(self) or self._is_due) and not self._is_over:
                if not await self._trip():
                    pause = PROBE_S
                    break
        finally:
            self._is_running = False
            self._arm(pause)

    async def _trip(self) -> bool:
        if self._step is None:
            self._step = self._make_step()
        self._is_due = False
        step = self._step
        try:
            answer = await run_in_thread(partial(self._crawl.exchange, step))
        # The step is kept and sent again, whatever it was.
        except Exception as error:  # noqa: BLE001
            is_first = self._away_since is None
            if is_first:
                self._away_since = time.monotonic()
            self._owner.not_answered(error, is_first=is_first)
            return False
        self._step = None
        if self._away_since is not None:
            lasted = time.monotonic() - self._away_since
            self._away_since = None
            logger.warning("The queue answers again after %.1f s.", lasted)
        self._take(step, answer)
        return True

    def _make_step(self) -> Step:
        pushes: list[Push] = []
        pages: list[OpenPage] = []
        self._calls = []
        is_asked = self._is_due
        while self._waiting and len(pushes) + len(pages) < PUSHES_PER_TRIP and not is_asked:
            one = self._waiting.popleft()
            if one is None:
                is_asked, self._is_asked = True, False
            elif isinstance(one, Push):
                pushes.append(one)
            elif isinstance(one, OpenPage):
                pages.append(one)
            else:
                self._calls.append(one)
        pushes += [one.record() for one in pages if not one.id]
        taken = [one for one in pages if one.id]
        here = (pushes, taken, self._calls, self._waiting)
        wanted, free = self._owner.room() if is_asked and self._is_hungry else (0, {})
        return self._next_step(
            pushes=pushes,
            done=[one.id for one in taken if one.error is None],
            failed=[(one.id, one.error) for one in taken if one.error is not None],
            wanted=wanted,
            free=free,
            is_idle=self.is_idle and not any(here) and self._owner.is_at_rest(),
            stays=self.stays,
            dead=self._dead,
        )

    def _next_step(self, **what: Any) -> Step:
        self._number += 1
        return Step(self._number, **what)

    def _take(self, step: Step, answer: Answer) -> None:
        self.answer = answer
        if answer.state == "gone":
            self._owner.take(step, answer)
            return
        if answer.got:
            self._look_s = SHORTEST_LOOK_S
            self._is_hungry = False
        else:
            self._look_s = min(2 * self._look_s, LONGEST_LOOK_S)
        # A process that has requests of its own finds the dead when it has none.
        self._dead = dead_among(answer.workers) if self._is_hungry and answer.taken else []
        self._owner.take(step, answer)
        for call in self._calls:
            call()
