"""The lock scripts as functions of a state and a time: a server whose clock stands still runs them.

All steps are taken at one time of that server: the times of a state are moved there, and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.steps import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moved_clock import Stopped

    from bloomlock.locks.protocol.steps import LockOperation

KEYS = LockKeys.of("job")
SHARED, END = b"=read", b"end"
BEGIN = 2_000_000_000
NOW_MS, NOW_US = BEGIN * 1000, BEGIN * 1_000_000
UNIT_MS = 100
"""Leases are multiples of it. Between two commands the server's clock goes on by less."""

Times = tuple[tuple[bytes, float], ...]


class LockState(NamedTuple):
    """The state of one lock, in ms; `expires_ms` is when `value` does. Tickets are in us."""

    value: bytes | None = None
    expires_ms: int = 0
    holders: Times = ()
    queue: Times = ()
    alive: Times = ()
    fence: int = 0

    def at(self, now_ms: int) -> LockState:
        is_over = self.value is None or self.expires_ms <= now_ms
        holders = tuple(one for one in self.holders if one[1] > now_ms and not is_over)
        return self._replace(value=None if is_over else self.value, holders=holders)

    def moved(self, by_ms: int) -> LockState:
        def later(times: Times, by: int = by_ms) -> Times:
            return tuple((name, time + by) for name, time in times)

        queue = later(self.queue, by_ms * 1000)
        holders, alive = later(self.holders), later(self.alive)
        fence = self.fence + by_ms * 1000
        return LockState(self.value, self.expires_ms + by_ms, holders, queue, alive, fence)

    def tokens(self) -> set[bytes]:
        if self.value == SHARED:
            return {token for token, _ in self.holders}
        return set() if self.value is None else {self.value}

    def records(self) -> list[bytes]:
        """Return the records of the queue, first asked first."""
        return [record for record, _ in self.queue]


class Step(NamedTuple):
    """What a script answered and left, and the fences that it announced, by the tokens."""

    answer: Any
    state: LockState
    told: dict[bytes, int]


class Scripts:
    def __init__(self, stopped: Stopped) -> None:
        self._client, stop_at, _ = stopped
        stop_at(BEGIN)
        self._listening = self._client.pubsub(ignore_subscribe_messages=False)
        self._heard: set[bytes] = set()
        self._hear({END})
        source = SCRIPT.source.replace("call('TIME')", f"{{'{BEGIN}', '0'}}")
        self._digest = self._client.script_load(source)
        self._known: dict[Any, Step] = {}

    def run(
        self,
        script: LockOperation[Any],
        state: LockState,
        now_ms: int,
        request: Any,
        channels: Iterable[bytes],
    ) -> Step:
        """Run one; `channels` are those that somebody listens to."""
        by_ms = NOW_MS - now_ms
        before = state.at(now_ms).moved(by_ms)
        # Of an older fence only that it is older counts.
        before = before._replace(fence=max(before.fence, NOW_US - 1))
        heard = frozenset(channels)
        case = script, before, request, heard
        if case not in self._known:
            self._hear({*heard, END})
            self._known[case] = self._run(script, before, request)
        answer, after, told = self._known[case]
        left = after.moved(-by_ms)
        if after.fence < NOW_US:
            left = left._replace(fence=state.fence)
        if hasattr(answer, "fence"):
            answer = answer._replace(fence=answer.fence - by_ms * 1000)
        return Step(answer, left, {token: fence - by_ms * 1000 for token, fence in told.items()})

    def _run(self, script: LockOperation[Any], before: LockState, request: Any) -> Step:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.delete(*KEYS)
            if before.value is not None:
                pipe.set(KEYS.lock, before.value, px=before.expires_ms - NOW_MS)
            tables = (KEYS.holders, before.holders), (KEYS.queue, before.queue)
            for key, times in (*tables, (KEYS.alive, before.alive)):
                if times:
                    pipe.zadd(key, dict(times))
            pipe.set(KEYS.fence, before.fence)
            pipe.evalsha(self._digest, len(KEYS), *KEYS, *script.arguments(request))
            pipe.publish(END, "")
            pipe.get(KEYS.lock).pttl(KEYS.lock)
            for key in (KEYS.holders, KEYS.queue, KEYS.alive):
                pipe.zrange(key, 0, -1, withscores=True)
            pipe.get(KEYS.fence)
            *_, reply, _, value, left_ms, holders, queue, alive, fence = pipe.execute()
        expires_ms = NOW_MS + UNIT_MS * round(left_ms / UNIT_MS)
        tables = (tuple(table) for table in (holders, queue, alive))
        after = LockState(value, expires_ms, *tables, int(fence))
        return Step(script.read(reply), after, self._told())

    def _hear(self, channels: set[bytes]) -> None:
        more, fewer = channels - self._heard, self._heard - channels
        if more:
            self._listening.subscribe(*more)
        if fewer:
            self._listening.unsubscribe(*fewer)
        for _ in (*more, *fewer):
            assert self._listening.get_message(timeout=60)["type"].endswith("subscribe")
        self._heard = channels

    def _told(self) -> dict[bytes, int]:
        told = {}
        while (message := self._listening.get_message(timeout=60))["channel"] != END:
            token, fence = message["data"].split(b" ")
            told[token] = int(fence)
        return told
