"""Calls of a worker that go wrong: replies are lost, tasks are cancelled, others act in between."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from claim_tools import settled
from proxy import Proxy, Verdict, deliver
from servers import wait_until

from bloomlock import AsyncBloomFilter
from bloomlock.errors import FilterLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from claim_tools import Clock

LEASE = 90.5
"""No lease ends when the clock stands: it goes by whole seconds."""
FAULTS = {"none": 12, "a reply is lost": 4, "all are lost": 3, "cancelled": 2, "between": 4}
INSERTED = ("claim", "claim", "commit", "extend", "add")
"""What another worker may do in the middle of a call."""
OK, ERROR = "ok", "error"
ENDS = (redis.ConnectionError, asyncio.CancelledError)


@dataclass(eq=False)
class Handle:
    """A NEW claim as its worker has it."""

    number: int
    claim: Any
    item: Any
    generation: int
    until: float
    from_expired: bool
    refused: bool = False
    lease: float = LEASE


@dataclass(eq=False)
class Worker:
    """An object and the claims that were made by it."""

    number: int
    filter: Any
    generation: int
    direct: bool = False
    held: list[Handle] = field(default_factory=list)

    @property
    def is_asyncio(self) -> bool:
        return isinstance(self.filter, AsyncBloomFilter)


class Reply(NamedTuple):
    """What a call came to: OK with a value, or ERROR: its effect is unknown.

    `is_repeated`: a part of it may have been carried out twice.
    """

    how: str
    value: Any = None
    is_repeated: bool = False


class Calls:
    """What workers ask in a round of the model.

    Attributes:
        runner: Of the objects for asyncio.
        proxy: Stands between the objects and the server, but for the last worker's.
        workers: By what they do their work.
        generation: The number of the filter after it was cleared last.
    """

    runner: asyncio.Runner
    proxy: Proxy
    workers: list[Worker]

    def __init__(self, seed: str, clock: Clock) -> None:
        self.seed, self.clock = seed, clock
        self.random = random.Random(seed)
        self.numbers = itertools.count()
        self.log: deque[str] = deque(maxlen=25)
        self.done: dict[str, int] = {}
        self.generation = 0
        self._inserted: BaseException | None = None

    def look(self) -> None:
        """Compare what the filter holds with what it should."""
        raise NotImplementedError

    def step(self, name: str, worker: Worker) -> None:
        """Let a worker do something, and look what the filter holds after it."""
        self.done[name] = self.done.get(name, 0) + 1
        self.log.append(f"{name} by {worker.number}{' (asyncio)' * worker.is_asyncio}")
        getattr(self, f"_{name}")(worker)
        self.look()

    def note(self, *more: Any) -> None:
        self.log[-1] += " " + " ".join(map(str, more))

    def wait(self, call: Callable[[], Any]) -> Any:
        """Make a call of an object for threads or for asyncio."""
        answer = call()
        return self.runner.run(awaited(answer)) if inspect.isawaitable(answer) else answer

    def ask(self, worker: Worker, call: Callable[[], Any], *, between: int = 0) -> Reply | None:
        """Make a call with a fault; None: the filter was cleared, and nothing happened."""
        if worker.generation != self.generation:
            self.note("of a filter that was cleared")
            try:
                self.wait(call)
            except FilterLostError:
                self.wait(worker.filter.reattach)
                worker.generation = self.generation
                return None
            raise AssertionError("a filter that was cleared answers")
        if worker.direct:
            return Reply(OK, self.wait(call))
        weights = FAULTS | {"between": 12} if between else FAULTS
        (fault,) = self.random.choices(list(weights), weights.values())
        if fault == "cancelled" and not worker.is_asyncio:
            fault = "all are lost"
        cuts = self.proxy.lost
        try:
            value = self._with_fault(fault, call, between)
        except ENDS as error:
            assert fault in {"all are lost", "cancelled"}, (fault, error)
            self.note(f"[{type(error).__name__}]")
            return Reply(ERROR, is_repeated=True)
        finally:
            self.proxy.judge = deliver
            wait_until(lambda: not self.proxy.under_way)
            if self._inserted is not None:
                raise self._inserted
        return Reply(OK, value, is_repeated=self.proxy.lost > cuts)

    def _with_fault(self, fault: str, call: Callable[[], Any], between: int) -> Any:
        first = len(self.proxy.seen) + self.random.randrange(between + 1)
        verdict: Verdict = self.random.choice(("before", "after"))
        if fault == "a reply is lost":
            self.proxy.judge = lambda _, number: verdict if number == first else "pass"
        elif fault == "all are lost":
            self.proxy.judge = lambda _, number: verdict if number >= first else "pass"
        elif fault == "between":
            other, step = self.workers[-1], self.random.choice(INSERTED)
            first = len(self.proxy.seen) + between

            def insert(_name: str, number: int) -> Verdict:
                if number == first:
                    try:
                        self.step(step, other)
                        self.log.append("  that was in the middle of the call before;")
                    except BaseException as error:  # noqa: BLE001 - raised by the round itself
                        self._inserted = error
                return "pass"

            if other.generation == self.generation:
                self.proxy.judge = insert
        elif fault == "cancelled":
            return self.runner.run(self._cancelled(call, first))
        return self.wait(call)

    async def _cancelled(self, call: Callable[[], Any], first: int) -> Any:
        """Cancel a call while the server has a command of it, or before it gets it."""
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(awaited(call()))
        verdict: Verdict = self.random.choice(("before", "pass"))

        async def cancel_soon() -> None:
            await settled()
            task.cancel()

        def cancel(_name: str, number: int) -> Verdict:
            if number == first:
                asyncio.run_coroutine_threadsafe(cancel_soon(), loop).result()
            return verdict if number >= first else "pass"

        self.proxy.judge = cancel
        return await task


async def awaited(answer: Any) -> Any:
    return await answer
