"""Workers of threads and tasks that take part in a round of claim_model.py."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from claim_model import (
    ADDED,
    ADDING,
    BUSY,
    COMMIT,
    DIE,
    FAILING,
    GIVE,
    LOST,
    MAX_ATTEMPTS,
    NAMESPACES,
    NEVER,
    NEW,
    NOT_THERE,
    OFFER,
    OK,
    ONCE,
    SEEN,
    THERE,
    TRIED,
    UNKNOWN,
    UNSAID,
    Claimed,
    History,
    Look,
)
from interrupting import InterruptedAt

from bloomlock import (
    AsyncBloomFilter,
    BloomlockError,
    ClaimLostError,
    FailedTooOften,
    FilterLostError,
    FilterNotFoundError,
    InProgress,
    once,
)

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = 10_000.0
"""So long that leases end only when the conductor lets them."""
INTERRUPTED = 1 / 20
"""Part of the calls that are interrupted or cancelled, in rounds with faults."""
HOLDS = 6
TRIES = 3
LARGEST_BATCH = 20
PATIENCE = 120.0
WAYS = {
    "one": 8,
    "many": 6,
    "once": 5,
    "expired": 3,
    "some_expired": 3,
    "end": 10,
    "extend": 1,
    "look": 4,
    "add": 1,
}
"""What a worker does, and how often."""
ENDS = {COMMIT: 8, GIVE: 3, OFFER: 3, DIE: 3}
SCRIPT = "return add(1)"
WRONG = (BloomlockError, redis.RedisError, KeyboardInterrupt, asyncio.CancelledError)


class BodyError(Exception):
    """What work raises."""


class Worker:
    """Claims items through some objects, one call after the other.

    Args:
        history: What it writes down.
        number: Its own.
        objects: Filters, all for threads or all for asyncio; others use them too.
    """

    def __init__(self, history: History, number: int, objects: list[Any]) -> None:
        self.history = history
        self.random = random.Random(f"{history.seed} worker {number}")
        self.objects = objects
        self.payloads = (f"payload {number}.{i} \r\n\0 é" for i in itertools.count())
        self.held: list[tuple[Any, Claimed, Any]] = []

    async def work(self, steps: int) -> None:
        for _ in range(steps):
            way = self.random.choices(list(WAYS), WAYS.values())[0]
            self.history.what[way] += 1
            await getattr(self, f"_{way}")()
            while len(self.held) > HOLDS:
                await self._end()

    async def _ask(self, call: Callable[[], Any]) -> Any:
        """Make a call, which may be interrupted; FilterLostError is dealt with, and goes on."""
        interrupted = self.history.faults and self.random.random() < INTERRUPTED
        at = self.random.randrange(400)
        if isinstance(self.objects[0], AsyncBloomFilter):
            task = asyncio.ensure_future(call())
            if interrupted:
                asyncio.get_running_loop().call_later(at / 100_000, task.cancel)
            return await task
        if interrupted:
            with InterruptedAt(at):
                return call()
        return call()

    async def _recover(self, error: BaseException, made: Any) -> None:
        """Attach again if the filter was lost; raise what nothing explains."""
        lost = (FilterLostError, FilterNotFoundError)
        if not self.history.faults and not isinstance(error, lost):
            raise error
        until = time.monotonic() + PATIENCE
        while isinstance(error, lost):
            # (Of a loop only one task may wait for a lock of threads.)
            while not self.history.at_home.acquire(blocking=False):  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.001)
            try:
                answer = made.reattach()
                if inspect.isawaitable(answer):
                    await answer
            except (BloomlockError, redis.RedisError):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.002)
            else:
                return
            finally:
                self.history.at_home.release()

    def _payload(self) -> str | bytes | None:
        payload = next(self.payloads)
        return self.random.choice((payload, payload.encode(), payload, None, "", b""))

    def _options(self, item: Any) -> dict[str, Any]:
        renew = self.random.random() < 0.5
        limit = MAX_ATTEMPTS if str(item).startswith(FAILING) else None
        return {"ttl": LEASE, "renew": renew, "max_attempts": limit}

    def _note(
        self, item: Any, start: Any, given: Any, claim: Any, made: Any, **more: Any
    ) -> Claimed:
        state = UNKNOWN if claim is None else claim.state.value
        noted = Claimed(
            start,
            self.history.now(),
            state,
            given,
            UNSAID if claim is None else claim.payload,
            fence=0 if claim is None else claim.fence or 0,
            near=self.history.near,
            **more,
        )
        self.history.claims[item].append(noted)
        if state == NEW:
            self.held.append((claim, noted, made))
        return noted

    async def _one(self) -> None:
        made = self.random.choice(self.objects)
        item, given = self.history.item(self.random), self._payload()
        wait = self.random.choice((None, None, 0.02))
        start = self.history.now()
        claim = None
        try:
            claim = await self._ask(
                lambda: made.claim(item, payload=given, wait=wait, **self._options(item))
            )
        except WRONG as error:
            await self._recover(error, made)
        self._note(item, start, given, claim, made)

    async def _many(self) -> None:
        made = self.random.choice(self.objects)
        namespace = self.random.choice(NAMESPACES)
        number = self.random.choice((2, 5, LARGEST_BATCH))
        items = [self.history.item(self.random, namespace) for _ in range(number)]
        given = [self._payload() for _ in items]
        start = self.history.now()
        claims: list[Any] = [None] * len(items)
        try:
            claims = await self._ask(
                lambda: made.claim_many(items, payloads=given, **self._options(items[0]))
            )
        except WRONG as error:
            await self._recover(error, made)
        assert [claim.item for claim in claims if claim is not None] in (items, [])
        for item, payload, claim in zip(items, given, claims, strict=True):
            self._note(item, start, payload, claim, made)

    async def _expired(self) -> None:
        made = self.random.choice(self.objects)
        limit = self.random.randrange(1, 5)
        start = self.history.now()
        found = made.expired(LEASE, renew=False)
        try:
            for _ in range(limit):
                claim = await self._ask(
                    partial(anext if hasattr(found, "__anext__") else next, found, None)
                )
                if claim is None:
                    return
                self._note(claim.item, start, UNSAID, claim, made, from_expired=True)
                start = self.history.now()
        except WRONG as error:
            self._note_unnamed(start)
            await self._recover(error, made)

    async def _some_expired(self) -> None:
        made = self.random.choice(self.objects)
        start = self.history.now()
        try:
            found = await self._ask(lambda: made.claim_expired(5, LEASE, renew=False))
        except WRONG as error:
            self._note_unnamed(start)
            await self._recover(error, made)
            return
        for claim in found:
            self._note(claim.item, start, UNSAID, claim, made, from_expired=True)

    def _note_unnamed(self, start: Any) -> None:
        self.history.unnamed.append(Claimed(start, self.history.now(), UNKNOWN, UNSAID))

    async def _end(self) -> None:
        """End some claims in one way."""
        if not self.held:
            return
        how = self.random.choices(list(ENDS), ENDS.values())[0]
        number = self.random.choice((1, 1, 2, 4))
        self.random.shuffle(self.held)
        some, self.held = self.held[:number], self.held[number:]
        made = some[0][2]
        claims = [claim for claim, _, _ in some]
        failed = self.random.choice((None, "it failed"))
        offer: bool | None = how == OFFER
        if how == OFFER and all(one.from_expired for _, one, _ in some):
            offer = self.random.choice((None, True))
        elif how == GIVE and not any(one.from_expired for _, one, _ in some):
            offer = self.random.choice((None, False))
        calls: dict[str, Callable[[], Any]] = {
            COMMIT: lambda: made.commit_many(claims),
            GIVE: lambda: made.abandon_many(claims, failed, offer=offer),
            OFFER: lambda: made.abandon_many(claims, failed, offer=offer),
        }
        if number == 1:
            calls = {
                COMMIT: claims[0].commit,
                GIVE: lambda: claims[0].abandon(failed, offer=offer),
                OFFER: lambda: claims[0].abandon(failed, offer=offer),
            }
        if how == DIE:
            return
        began = self.history.now()
        for _, noted, _ in some:
            noted.how, noted.began = how, began
        answers = await self._insist(calls[how], len(some), made)
        for (_, noted, _), answer in zip(some, answers, strict=True):
            noted.became, noted.ended = answer, self.history.now()

    async def _insist(self, call: Callable[[], Any], number: int, made: Any) -> list[str]:
        """End claims, with some tries if need be; return what became of each."""
        for attempt in range(TRIES):
            try:
                answer = await self._ask(call)
            except ClaimLostError:
                return [LOST if attempt == 0 else UNKNOWN] * number
            except WRONG as error:
                await self._recover(error, made)
            else:
                if not isinstance(answer, list):
                    return [OK] * number
                return [OK if yes else LOST if attempt == 0 else UNKNOWN for yes in answer]
        return [UNKNOWN] * number

    async def _extend(self) -> None:
        if self.held:
            claim, _, made = self.random.choice(self.held)
            with contextlib.suppress(ClaimLostError):
                try:
                    await self._ask(claim.extend)
                except ClaimLostError:
                    raise
                except WRONG as error:
                    await self._recover(error, made)

    async def _once(self) -> None:
        made = self.random.choice(self.objects)
        call = once_of(made)
        item = self.history.item(self.random, ONCE)
        noted = Claimed(self.history.now(), NEVER, UNKNOWN, None, UNSAID, near=self.history.near)
        began: list[Any] = []

        def begin() -> None:
            noted.end, noted.state = self.history.now(), NEW

        def body() -> None:
            if self.random.random() < 0.3:
                noted.how = GIVE
            began.append(self.history.now())
            if noted.how == GIVE:
                raise BodyError

        try:
            await self._ask(lambda: call(item, begin, body))
            noted.became = OK
            noted.state = noted.state if noted.state == NEW else SEEN
        except BodyError:
            noted.became = UNKNOWN if self.history.faults else OK
        except ClaimLostError:
            noted.became = LOST
        except InProgress:
            noted.state = BUSY
        except WRONG as error:
            if not isinstance(error, FailedTooOften):
                await self._recover(error, made)
        self._note_once(noted, began)
        self.history.claims[item].append(noted)

    def _note_once(self, noted: Claimed, began: list[Any]) -> None:
        """Note how a call ended that took the key, or when it was answered."""
        now = self.history.now()
        if noted.state == NEW:
            # What is interrupted before the body is given back.
            noted.how = GIVE if noted.how == GIVE or not began else COMMIT
            noted.began, noted.ended = began[0] if began else noted.end, now
        else:
            noted.end, noted.became = now, UNKNOWN

    async def _look(self) -> None:
        made = self.random.choice(self.objects)
        item = self.history.item(self.random)
        start = self.history.now()
        try:
            found = await self._ask(lambda: made.exists(item))
        except WRONG as error:
            await self._recover(error, made)
            return
        said = THERE if found else NOT_THERE
        self.history.looks[item].append(Look(start, self.history.now(), said, self.history.near))

    async def _add(self) -> None:
        made = self.random.choice(self.objects)
        item = self.history.item(self.random, ADDED)
        call = self.random.choice(("add", "update", "script"))
        calls: dict[str, Callable[[], Any]] = {
            "add": lambda: made.add(item),
            "update": lambda: made.update([item]),
            "script": lambda: made.run_script(SCRIPT, [item]),
        }
        start = self.history.now()
        said = TRIED
        try:
            is_new = await self._ask(calls[call])
            # What is near is not added.
            said = ADDING if is_new or call == "script" or not self.history.near else TRIED
            if call == "add" and not is_new:
                said = THERE
        except WRONG as error:
            await self._recover(error, made)
        look = Look(start, self.history.now(), said, self.history.near, call)
        self.history.looks[item].append(look)


def once_of(made: Any) -> Any:
    """Return a function that runs once for each item, through this object."""
    if isinstance(made, AsyncBloomFilter):

        @once(made, key="item", ttl=LEASE)
        async def run_async(item: Any, begin: Callable[[], None], body: Callable[[], None]) -> None:
            begin()
            await asyncio.sleep(0)
            body()

        return run_async

    @once(made, key="item", ttl=LEASE)
    def run(item: Any, begin: Callable[[], None], body: Callable[[], None]) -> None:
        begin()
        body()

    return run
